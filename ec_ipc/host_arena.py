"""The arena in host memory: one POSIX shared-memory object, reserved and mapped in full at start."""

import os

import torch
from torch.utils.dlpack import from_dlpack

from ec_ipc import _core, dtypes, shared_memory
from ec_ipc.arena import Arena, ArenaMapping, Completion
from ec_ipc.errors import ArenaUnavailable
from ec_ipc.names import arena_name
from ec_ipc.segment import DEFAULT_MODE, HOST


class HostArena(Arena):
    """A producer's block of shared host memory."""

    kind = HOST

    def __init__(self, mapping: _core.Mapping) -> None:
        self.nbytes = mapping.nbytes
        self._mapping: _core.Mapping | None = mapping

    def write(self, offset: int, source: torch.Tensor) -> Completion | None:
        if self._mapping is None:
            raise ArenaUnavailable("the arena has been closed; open a new store to publish")
        if source.is_cpu and source.is_contiguous() and not source.is_neg():
            self._mapping.write(offset, source.data_ptr(), source.nbytes, _threads(source.nbytes))
        else:
            extent = torch.frombuffer(self._mapping, dtype=torch.uint8)[offset : offset + source.nbytes]
            extent.view(source.dtype).view(source.shape).copy_(source.detach())
        return None

    def close(self) -> None:
        self._mapping = None


def _threads(nbytes: int) -> int:
    """For a copy: as many as torch may use, and no more than the cores that this thread is bound to, as the
    threads that it begins are bound to them too."""
    if nbytes < 2 * _core.COPY_THREAD_BYTES:
        return 1
    return min(torch.get_num_threads(), len(os.sched_getaffinity(0)))


class HostArenaMapping(ArenaMapping):
    """A host arena as a reader sees it. The block stays mapped until the last view has died, and so does
    what is tied to its end, as its page lock is."""

    def __init__(self, mapping: _core.Mapping) -> None:
        self._mapping = mapping

    def view(self, pin: _core.Pin) -> torch.Tensor:
        dtype = dtypes.of_code(pin.dtype)
        view = from_dlpack(pin.to_dlpack(self._mapping, *dtypes.DLPACK[pin.dtype]))
        return view if view.dtype is dtype else view.view(dtype)

    def load(self, pin: _core.Pin, device: torch.device) -> torch.Tensor:
        """The view on a CPU; for a GPU one asynchronous copy, during which the view lives on."""
        view = self.view(pin)
        if device.type != "cuda":
            return view
        from ec_ipc import host_to_device

        return host_to_device.copy(view, device, self._mapping)


def create(
    segment: _core.Segment, name: str, nbytes: int, timeout_s: float
) -> tuple[HostArena, HostArenaMapping]:
    """Reserve a new block, map it, and write its record into the directory."""
    block = arena_name(name, segment.incarnation)
    shared_memory.unlink(block)  # left by a segment of this name that was removed under its engines
    fd = shared_memory.create(block, DEFAULT_MODE)
    try:
        with shared_memory.closing_on_error(fd):
            shared_memory.reserve(fd, block, nbytes, DEFAULT_MODE)
        mapping = _core.Mapping(fd, nbytes, populate=True)  # owns fd
        segment.set_arena(
            HOST, nbytes, bytes(_core.DEVICE_BYTES), bytes(_core.HANDLE_BYTES), segment.incarnation, timeout_s
        )
    except BaseException:
        shared_memory.unlink(block)
        raise
    return HostArena(mapping), HostArenaMapping(mapping)


def map_record(record: _core.ArenaRecord, name: str) -> HostArenaMapping:
    """Map another participant's block by its name."""
    block = arena_name(name, record.incarnation)
    fd = shared_memory.open_existing(block)
    if fd is None:
        raise ArenaUnavailable(f"host arena {block} is gone: its owner has ended")
    with shared_memory.closing_on_error(fd):
        shared_memory.check_owner_and_mode(fd, block, DEFAULT_MODE)
    return HostArenaMapping(_core.Mapping(fd, record.nbytes, populate=True))

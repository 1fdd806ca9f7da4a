"""The arena in GPU memory: one cudaMalloc block, exported by one CUDA IPC handle.

The handle names the whole block, and CUDA loses offsets, so the block is the arena's alone and the
directory has the offsets. A canary at both ends tells a reader that it has mapped the right one.
"""

import logging
import secrets
import threading
import time
import weakref
from collections.abc import Callable

import torch

from ec_ipc import _core, cuda_runtime, dtypes
from ec_ipc.arena import Arena, ArenaMapping, Completion
from ec_ipc.cuda_events import CompletionQueue, keep_for_ever
from ec_ipc.errors import ArenaUnavailable, ECIPCError, SegmentError
from ec_ipc.segment import CUDA

logger = logging.getLogger(__name__)

RELEASE_TIMEOUT_S = 2.0  # how long a leaving owner waits for others to unmap
GUARD_BYTES = 256  # before and after the arena; keeps its start aligned
CANARY_BYTES = 8
BLOCK_BYTES = 2 << 20  # CUDA packs smaller allocations together, and exports what it has packed

# Of this process. A handle cannot be opened by its exporter, nor twice by one process.
_own: dict[bytes, int] = {}
_opened: "weakref.WeakValueDictionary[bytes, _OpenHandle]" = weakref.WeakValueDictionary()
_queues: dict[int, CompletionQueue] = {}
_lock = threading.RLock()


def completions(device: int) -> CompletionQueue:
    """This process's queue for a GPU, for arenas and mappings alike."""
    with _lock:
        if device not in _queues:
            _queues[device] = CompletionQueue(device)
        return _queues[device]


class CudaArena(Arena):
    """A producer's block of GPU memory."""

    kind = CUDA

    def __init__(self, nbytes: int, device: int) -> None:
        self.nbytes = nbytes
        self.device = device
        self.canary = secrets.randbits(63) | 1
        self._base = cuda_runtime.allocate(_block_size(nbytes))
        try:
            self.handle = cuda_runtime.export(self._base)
            for address in _canaries(self._base, nbytes):
                cuda_runtime.write_bytes(address, self.canary.to_bytes(CANARY_BYTES, "little"))
            self._bytes: torch.Tensor | None = cuda_runtime.as_tensor(
                self._base + GUARD_BYTES, nbytes, device, self
            )
            self._completions = completions(device)
        except BaseException:
            cuda_runtime.free(self._base, device)
            raise
        _own[self.handle] = self._base

    def write(self, offset: int, source: torch.Tensor) -> Completion | None:
        if self._bytes is None:
            raise ArenaUnavailable("the arena has been closed; open a new store to publish")
        extent = self._bytes[offset : offset + source.numel() * source.element_size()]
        extent.view(source.dtype).view(source.shape).copy_(source.detach(), non_blocking=True)
        stream = cuda_runtime.current_stream(self.device)
        return lambda action: self._completions.after_now(stream, action)

    def drain(self, timeout_s: float) -> bool:
        return self._completions.drain(timeout_s)

    def close(self) -> None:
        if self._bytes is None:
            return
        self._bytes = None
        with _lock:
            _own.pop(self.handle, None)

    def give_back(self, used_elsewhere: Callable[[], bool]) -> None:
        """Free the block once nobody else maps it: CUDA leaves undefined what happens before. Readers
        unmap by their timers; what takes too long is left to the end of this process."""
        end = time.monotonic() + RELEASE_TIMEOUT_S
        while used_elsewhere():
            if time.monotonic() > end:
                logger.warning(
                    "the cuda arena of %d bytes is still mapped elsewhere after %s s; it is freed when this "
                    "process ends",
                    self.nbytes,
                    RELEASE_TIMEOUT_S,
                )
                return
            time.sleep(0.02)
        cuda_runtime.free(self._base, self.device)


class _OpenHandle:
    """Another process's block, mapped once in this process and unmapped with its last user."""

    def __init__(self, handle: bytes, device: int) -> None:
        self._device = device
        self.base = cuda_runtime.open_handle(handle)

    def __del__(self) -> None:
        if hasattr(self, "base"):
            try:
                cuda_runtime.close_handle(self.base, self._device)
            except ArenaUnavailable as error:
                logger.warning("unmapping a cuda arena: %s", error)


class _Hold:
    """Owns the pin of a view. Torch frees the view in any thread, at any time; the pin lives on until
    the last kernel that could read it is done."""

    def __init__(self, pin: _core.Pin, mapping: "CudaArenaMapping", stream: int) -> None:
        self._pin = pin
        self._mapping = mapping
        self._stream = stream  # on which it was loaded: the freeing thread's says nothing

    def __del__(self) -> None:
        pin, mapping = self._pin, self._mapping
        if not mapping.completions.after(self._stream, lambda failure: _release(pin, mapping, failure)):
            keep_for_ever(pin, mapping)  # the process ends, and its kernels may still read


def _release(pin: _core.Pin, mapping: "CudaArenaMapping", failure: ECIPCError | None) -> None:
    """Drop a hold. The mapping is an argument so that it has lived as long."""
    if failure is not None:
        keep_for_ever(pin, mapping)
    else:
        pin.release()


class CudaArenaMapping(ArenaMapping):
    """A CUDA arena as a reader sees it, on the reader's own device."""

    def __init__(self, base: int, record: _core.ArenaRecord, device: int, handle: _OpenHandle | None) -> None:
        self._base = base
        self._nbytes = record.nbytes
        self._device = device
        self._handle = handle  # None: this process's own arena
        self.completions = completions(device)
        check_canary(base, record)

    def view(self, pin: _core.Pin) -> torch.Tensor:
        dtype = dtypes.decode(pin.dtype, pin.shape, pin.nbytes)
        if pin.offset > self._nbytes or pin.nbytes > self._nbytes - pin.offset:
            raise SegmentError(
                f"an entry has {pin.nbytes} bytes at {pin.offset} of an arena of {self._nbytes}"
            )
        hold = _Hold(pin, self, cuda_runtime.current_stream(self._device))
        address = self._base + GUARD_BYTES + pin.offset
        view = cuda_runtime.as_tensor(address, pin.nbytes, self._device, hold)
        return view.view(dtype).view(pin.shape)

    def drain(self, timeout_s: float) -> bool:
        return self.completions.drain(timeout_s)


def create(
    segment: _core.Segment, nbytes: int, timeout_s: float, device: int | None
) -> tuple[CudaArena, CudaArenaMapping]:
    """Allocate on a device, and write the record into the directory."""
    device = cuda_runtime.current_device() if device is None else device
    with cuda_runtime.on_device(device):
        arena = CudaArena(nbytes, device)
    try:
        segment.set_arena(
            CUDA, nbytes, cuda_runtime.device_uuid(device), arena.handle, arena.canary, timeout_s
        )
        record = segment.arena(segment.slot)
        if record is None:
            raise SegmentError(f"the arena of slot {segment.slot} has vanished; the segment is damaged")
        with cuda_runtime.on_device(device):
            mapping = CudaArenaMapping(_own[arena.handle], record, device, None)
    except BaseException:
        arena.close()
        arena.give_back(lambda: False)
        raise
    return arena, mapping


def map_record(record: _core.ArenaRecord, device: int | None) -> CudaArenaMapping:
    """Map another participant's arena on this process's device, once; one's own as it is."""
    device = cuda_runtime.current_device() if device is None else device
    with cuda_runtime.on_device(device):
        with _lock:
            own = _own.get(record.handle)
            if own is not None:
                return CudaArenaMapping(own, record, device, None)
            handle = _opened.get(record.handle)
            if handle is None:
                handle = _open(record, device)
                _opened[record.handle] = handle
        return CudaArenaMapping(handle.base, record, device, handle)


def _open(record: _core.ArenaRecord, device: int) -> _OpenHandle:
    try:
        return _OpenHandle(record.handle, device)
    except ECIPCError as error:
        raise ArenaUnavailable(
            f"the cuda arena of slot {record.slot}, on GPU {record.device.hex()}, cannot be mapped here: "
            f"{error}; without peer access between the two GPUs, let the producer use arena 'host'"
        ) from error


def check_canary(base: int, record: _core.ArenaRecord) -> None:
    """ArenaUnavailable when the mapped block is not the one that the record describes."""
    expected = record.canary.to_bytes(CANARY_BYTES, "little")
    for address in _canaries(base, record.nbytes):
        found = cuda_runtime.read_bytes(address, CANARY_BYTES)
        if found != expected:
            raise ArenaUnavailable(
                f"the cuda arena of slot {record.slot} has canary {found.hex()} where {expected.hex()} was "
                "written: the IPC handle leads to another block"
            )


def _block_size(nbytes: int) -> int:
    return (nbytes + 2 * GUARD_BYTES + BLOCK_BYTES - 1) // BLOCK_BYTES * BLOCK_BYTES


def _canaries(base: int, nbytes: int) -> tuple[int, int]:
    # The end is rounded up, as an arena may have any size and addresses are written in words.
    return base, base + GUARD_BYTES + (nbytes + 7) // 8 * 8

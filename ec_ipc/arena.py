"""What every arena can do. One owner writes; others map it once and view extents in place.

``host_arena`` is one implementation. Another needs a kind in ``segment``, these two classes, and a
line in each of the two functions below; the conformance suite runs over it unchanged.
"""

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable

import torch

from ec_ipc import _core
from ec_ipc.errors import ArenaUnavailable, ConfigurationError, ECIPCError
from ec_ipc.segment import CUDA, HOST, KIND_NAMES

logger = logging.getLogger(__name__)

KINDS = ("auto", "host", "cuda")

# Takes what to do when the bytes are there, or with the error that kept them from it.
Completion = Callable[[Callable[[ECIPCError | None], None]], None]


class Arena(ABC):
    """The memory block of one producer. Only the process that made it writes into it."""

    kind: int
    nbytes: int

    @abstractmethod
    def write(self, offset: int, source: torch.Tensor) -> Completion | None:
        """Copy a tensor of any strides to ``offset``. None when the bytes are there on return; else
        call the result with what is to happen once they are."""

    @abstractmethod
    def close(self) -> None:
        """Write no more. Mappings elsewhere, and live views, stay valid."""

    def give_back(self, used_elsewhere: Callable[[], bool]) -> None:  # noqa: B027 - optional
        """Free the memory, after the arena's record is gone; ``used_elsewhere`` says whether another
        process still maps it."""

    def drain(self, timeout_s: float) -> bool:
        """Wait until every write so far has completed. False when the time was not enough."""
        return True


class ArenaMapping(ABC):
    """Another process's arena, or one's own, as seen by a reader."""

    @abstractmethod
    def view(self, pin: _core.Pin) -> torch.Tensor:
        """A tensor over the pinned extent, without a copy. Its storage owns the pin from then on.

        Raises:
            SegmentError: the entry's numbers do not fit the arena or each other.
        """

    def load(self, pin: _core.Pin, device: torch.device) -> torch.Tensor:
        """The pinned extent where a model on ``device`` can use it: the view, where that is possible."""
        return self.view(pin)

    def drain(self, timeout_s: float) -> bool:
        """Wait until the holds of views that have died so far are dropped. False when it takes longer."""
        return True


def create(
    kind: str, segment: _core.Segment, name: str, nbytes: int, timeout_s: float, device: int | None
) -> tuple[Arena, ArenaMapping]:
    """Make this participant's arena and publish its record; the owner's own mapping comes with it.

    Args:
        kind: ``auto``, ``host`` or ``cuda``.
        segment: joined; the arena belongs to its slot.
        name: POSIX name of the segment, from which the arena's name is made.
        nbytes: size of the arena.
        timeout_s: how long to wait for the writer byte.
        device: ordinal of the GPU for a CUDA arena; None: this thread's.
    """
    if kind not in KINDS:
        raise ConfigurationError(f"arena {kind!r} is unknown; use one of {', '.join(KINDS)}")
    if nbytes <= 0:
        raise ConfigurationError(f"arena_bytes is {nbytes}; an arena needs at least one byte")
    if kind != "host" and _can_use_cuda(kind, device):
        from ec_ipc import cuda_arena

        return cuda_arena.create(segment, nbytes, timeout_s, device)
    from ec_ipc import host_arena

    return host_arena.create(segment, name, nbytes, timeout_s)


def _can_use_cuda(kind: str, device: int | None) -> bool:
    """Whether an arena is to be in GPU memory. What ``auto`` takes is said, with the reason."""
    from ec_ipc import cuda_probe

    reason = cuda_probe.obstacle(device)
    if kind == "auto" and reason is None:
        reason = cuda_probe.no_peers()
    if kind == "cuda" and reason is not None:
        raise ArenaUnavailable(
            f"arena 'cuda' cannot be used here: {reason}; set arena to 'host', or to 'auto'"
        )
    if kind == "auto":
        takes = ("host", reason) if reason else ("cuda", "the probe passed")
        logger.info("arena 'auto' takes %s: %s", *takes)
    return reason is None


def map_record(record: _core.ArenaRecord, name: str, device: int | None) -> ArenaMapping:
    """Map the arena that a record in the directory describes.

    Raises:
        ArenaUnavailable: it is gone, or this process cannot map that kind.
    """
    if record.kind == HOST:
        from ec_ipc import host_arena

        return host_arena.map_record(record, name)
    if record.kind == CUDA:
        from ec_ipc import cuda_arena

        return cuda_arena.map_record(record, device)
    raise ArenaUnavailable(f"an arena has kind {record.kind}; expected one of {sorted(KIND_NAMES)}")

"""What every arena can do. One owner writes; others map it once and view extents in place.

``host_arena`` is one implementation. Another needs a kind in ``segment``, these two classes, and a
line in each of the two functions below; the conformance suite runs over it unchanged.
"""

from abc import ABC, abstractmethod

import torch

from ec_ipc import _core
from ec_ipc.errors import ArenaUnavailable, ConfigurationError
from ec_ipc.segment import CUDA, HOST, KIND_NAMES

KINDS = ("auto", "host", "cuda")


class Arena(ABC):
    """The memory block of one producer. Only the process that made it writes into it."""

    kind: int
    nbytes: int

    @abstractmethod
    def write(self, offset: int, source: torch.Tensor) -> None:
        """Copy a tensor of any strides to ``offset``; the bytes are there when this returns."""

    @abstractmethod
    def close(self) -> None:
        """Give up this process's own access. Mappings elsewhere, and live views, stay valid."""


class ArenaMapping(ABC):
    """Another process's arena, or one's own, as seen by a reader."""

    @abstractmethod
    def view(self, pin: _core.Pin) -> torch.Tensor:
        """A tensor over the pinned extent, without a copy. Its storage owns the pin from then on.

        Raises:
            SegmentError: the entry's numbers do not fit the arena or each other.
        """


def create(
    kind: str, segment: _core.Segment, name: str, nbytes: int, timeout_s: float
) -> tuple[Arena, ArenaMapping]:
    """Make this participant's arena and publish its record; the owner's own mapping comes with it.

    Args:
        kind: ``auto``, ``host`` or ``cuda``.
        segment: joined; the arena belongs to its slot.
        name: POSIX name of the segment, from which the arena's name is made.
        nbytes: size of the arena.
        timeout_s: how long to wait for the writer byte.
    """
    if kind not in KINDS:
        raise ConfigurationError(f"arena {kind!r} is unknown; use one of {', '.join(KINDS)}")
    if nbytes <= 0:
        raise ConfigurationError(f"arena_bytes is {nbytes}; an arena needs at least one byte")
    if kind == "cuda":
        raise ArenaUnavailable("the cuda arena is not in this build; set arena to 'host'")
    from ec_ipc import host_arena

    return host_arena.create(segment, name, nbytes, timeout_s)


def map_record(record: _core.ArenaRecord, name: str) -> ArenaMapping:
    """Map the arena that a record in the directory describes.

    Raises:
        ArenaUnavailable: it is gone, or this process cannot map that kind.
    """
    if record.kind == HOST:
        from ec_ipc import host_arena

        return host_arena.map_record(record, name)
    if record.kind == CUDA:
        raise ArenaUnavailable("the cuda arena is not in this build; let the producer use 'host'")
    raise ArenaUnavailable(f"an arena has kind {record.kind}; expected one of {sorted(KIND_NAMES)}")

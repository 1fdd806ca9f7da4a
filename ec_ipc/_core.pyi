"""The C++ core: the directory segment, its entry words and locks.

It moves integers and bytes only. Tensors, names of shared memory and policy live in Python.
A token is ``(entry, generation)``; one that cannot exist names no entry. All times are seconds; all
sizes are bytes. Arguments of a wrong length or range are a ValueError. In a forked child every call
on a handle raises ForkedHandle, and releases do nothing.
"""

from collections.abc import Sequence
from typing import ClassVar

from typing_extensions import CapsuleType

MAGIC: int  # first word of a segment, in every layout; the second is its version
LAYOUT_VERSION: int
MAX_PARTICIPANTS: int  # 36, one bit each in an entry's word
MAX_RANK: int  # the most dimensions of an embedding
MAX_ANNOUNCED: int  # a counter that reaches this sticks until its deadline
DIGEST_BYTES: int  # 32
FINGERPRINT_BYTES: int  # 32
HANDLE_BYTES: int  # 64, a CUDA IPC memory handle
DEVICE_BYTES: int  # 16, a device UUID
ALIGNMENT: int  # every extent starts at a multiple of it
COPY_THREAD_BYTES: int  # the least that a thread is begun for

class ECIPCError(RuntimeError): ...
class SegmentError(ECIPCError): ...
class LockTimeout(ECIPCError): ...
class ForkedHandle(ECIPCError): ...
class NoFreeSlot(ECIPCError): ...

class State:
    FREE: ClassVar[State]
    WRITING: ClassVar[State]
    READY: ClassVar[State]

class Outcome:
    """What became of a ``reserve`` or an ``announce``."""

    RESERVED: ClassVar[Outcome]  # ours to write
    ANNOUNCED: ClassVar[Outcome]  # READY already, the announcements were added to it
    WRITING_HERE: ClassVar[Outcome]  # this participant is writing it
    WRITING_ELSEWHERE: ClassVar[Outcome]
    ABSENT: ClassVar[Outcome]  # announce only
    ARENA_FULL: ClassVar[Outcome]  # reserve only: nothing left to evict
    DIRECTORY_FULL: ClassVar[Outcome]  # reserve only: max_items live, or both buckets full
    TOO_LARGE: ClassVar[Outcome]  # reserve only: larger than the arena
    SATURATED: ClassVar[Outcome]  # added, but the counter is full: only its deadline clears it

def segment_bytes(max_items: int) -> int: ...
def initialise_segment(fd: int, max_items: int, fingerprint: bytes, description: str) -> None:
    """Write the header of a segment that has its size. Under the creator's lock byte."""

def segment_is_ready(fd: int) -> bool:
    """Whether the ready word has been written: False for a new or half-made segment."""

def lock_creator(fd: int, timeout_s: float) -> None: ...
def unlock_creator(fd: int) -> None: ...
def anyone_alive(fd: int) -> bool:
    """Whether any participant's lock byte is held, whatever the layout: the bytes never move."""

class Mapping:
    """A host arena mapped into this process. Exports the buffer protocol (writable, all of it)."""

    def __init__(self, fd: int, nbytes: int, populate: bool) -> None:
        """Takes ownership of fd (closes it after mapping). SegmentError when fd is shorter."""
    nbytes: int
    address: int
    def write(self, offset: int, address: int, nbytes: int, threads: int = 1) -> None:
        """Copy from an address of this process, without the GIL, with up to so many threads, each of which
        gets COPY_THREAD_BYTES or more. SegmentError when it does not fit."""

class Found:
    entry: int
    generation: int
    state: State
    announced: int
    nbytes: int
    shape: tuple[int, ...]
    arena_slot: int
    arena_incarnation: int
    writer_slot: int  # -1 unless WRITING

class Placement:
    outcome: Outcome
    entry: int  # -1, like the generation, when there is no entry to name
    generation: int
    offset: int  # RESERVED only

class Pin:
    """One counted hold. Dropped when the object dies, or by release()."""

    entry: int
    generation: int
    arena_slot: int
    arena_incarnation: int
    offset: int
    nbytes: int
    dtype: int
    shape: tuple[int, ...]
    def to_dlpack(self, mapping: Mapping, code: int, bits: int) -> CapsuleType:
        """A DLPack capsule over the extent, of the entry's shape; its consumer owns the pin from then on.
        SegmentError unless it lies in the mapping and has as many bytes as the shape takes."""
    def release(self) -> None:
        """Drop the hold now; once. SegmentError for a pin with a capsule: its bytes may be in use."""
    released: bool
    current: bool
    """Whether a look-up would still lead to it: its arena is there, and its epoch has not passed."""

class ArenaRecord:
    slot: int
    incarnation: int
    kind: int  # ec_ipc.arena.KINDS
    nbytes: int
    device: bytes  # DEVICE_BYTES
    handle: bytes  # HANDLE_BYTES
    canary: int

class ParticipantRecord:
    slot: int
    incarnation: int
    pid: int
    role: str
    engine: int
    alive: bool

class Maintained:
    expired: int
    reclaimed: int
    evicted: int

class Segment:
    """A mapped directory segment and, after join(), one participant in it."""

    def __init__(self, fd: int) -> None:
        """Takes ownership of fd, maps it and checks every number in the header. Closes fd also when
        it raises. fd must be an open file of its own (no dup): the lock bytes belong to that."""
    max_items: int
    nbytes: int
    fingerprint: bytes
    description: str
    layout_version: int
    slot: int  # -1 before join
    incarnation: int  # 0 before join
    holds: int  # counted holds of this process through this handle
    def fileno(self) -> int: ...
    def join(self, role: str, engine: int, timeout_s: float) -> int: ...
    def leave(self, timeout_s: float) -> bool:
        """Abort own writes and give the slot back: True at once without holds, else False and it
        happens when the last hold dies."""
    def anyone_else(self) -> bool:
        """Whether another participant's lock byte is held."""
    def find(self, digest: bytes) -> Found | None: ...
    def reserve(
        self,
        digest: bytes,
        nbytes: int,
        dtype: int,
        shape: tuple[int, ...],
        announce: int,
        ttl_s: float,
        deallocate: bool,
        timeout_s: float,
    ) -> Placement: ...
    def fits(self, arena_slot: int, nbytes: int) -> bool:
        """Whether an extent is free in that arena, counting what could be evicted or has expired."""
    # False, and nothing changed, when the token is not of an entry that this participant is writing.
    def publish(self, entry: int, generation: int, announce: int = 0) -> bool: ...
    def abort(self, entry: int, generation: int) -> bool: ...
    def announce(self, digest: bytes, n: int, ttl_s: float, timeout_s: float) -> Placement: ...
    # None also after leave(); SegmentError before join().
    def pin(self, digest: bytes) -> Pin | None: ...
    def pin_token(self, entry: int, generation: int) -> Pin | None: ...
    def pin_shared(self, entry: int, generation: int) -> Pin | None:
        """A further hold on what somebody holds. Its bytes are there for as long, so this works also
        when its arena's record has gone or its epoch has passed since."""
    # True when the token is current, though the counter may be 0 or full; else a late release.
    def settle(self, entry: int, generation: int, n: int = 1) -> bool: ...
    def settle_key(self, digest: bytes, n: int = 1) -> bool: ...
    def maintain(self, timeout_s: float) -> Maintained:
        """Reclaim every dead participant, expire what is overdue, free what lies in dead arenas or
        is of an older epoch. Needs no join."""
    def set_arena(
        self, kind: int, nbytes: int, device: bytes, handle: bytes, canary: int, timeout_s: float
    ) -> None:
        """Once per join: the arena is named by this participant's slot and incarnation. Shorter
        device and handle bytes are padded with zeroes."""
    def arena(self, slot: int) -> ArenaRecord | None: ...
    def arenas(self) -> list[ArenaRecord]: ...
    def arena_used(self, slot: int) -> int:
        """Bytes of that arena that a non-FREE entry covers."""
    def dead_arenas(self) -> list[ArenaRecord]: ...
    def forget_arena(self, slot: int, incarnation: int, timeout_s: float) -> bool:
        """Clear the record of one's own arena or of a dead owner's. Unlink its memory first."""
    def mark_mapped(self, slot: int, incarnation: int) -> None:
        """Say that this participant has mapped that arena (incarnation 0: has not)."""
    def mapped_by(self, engine: int, role: str, slot: int, incarnation: int) -> int:
        """How many participants of that engine and role have mapped that arena."""
    def participants(self) -> list[ParticipantRecord]: ...
    def entries(self) -> list[Found]:
        """Every entry that is not FREE; a snapshot, entry by entry."""
    def total_holds(self) -> int: ...
    def holds_by_slot(self) -> dict[int, int]:
        """How many entries each participant holds; without those that hold none."""
    def count(self, counter: str, n: int = 1) -> None: ...
    def counters(self) -> dict[str, int]: ...
    def counters_of(self, slots: Sequence[int]) -> tuple[int, ...]:
        """What was counted in those slots, by all that have had them, in the order of ``counters()``."""
    pressure: int  # a word that producers raise when an arena is short of space
    epoch: int
    def bump_epoch(self) -> int:
        """Start a new epoch: entries of earlier ones are no longer found."""

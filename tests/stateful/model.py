"""What the store should do, as a dictionary: one process, no concurrency, exact in every number."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from ec_ipc import _core
from ec_ipc._core import Outcome, State

Token = tuple[int, int]

COUNTED = (
    "published",
    "reads",
    "bytes_published",
    "freed_by_last_reader",
    "evicted",
    "expired",
    "reclaimed",
    "late_releases",
    "misses",
)


def aligned(nbytes: int) -> int:
    return -(-nbytes // _core.ALIGNMENT) * _core.ALIGNMENT


@dataclass(eq=False)
class Participant:
    """One open or closed handle. ``arena_bytes`` is 0 for one that only reads."""

    arena_bytes: int
    deallocate: bool
    arena_there: bool = True


@dataclass(eq=False)
class Entry:
    """One life of an entry."""

    key: str
    tensor: torch.Tensor
    owner: Participant
    offset: int
    announced: int
    deallocate: bool
    epoch: int
    may_expire: bool
    used: int
    state: State = State.WRITING
    holds: dict[Participant, int] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        return self.tensor.numel() * self.tensor.element_size()

    @property
    def extent(self) -> tuple[int, int]:
        return self.offset, self.offset + aligned(self.nbytes)

    @property
    def idle(self) -> bool:
        return self.state is State.READY and not self.holds

    @property
    def evictable(self) -> bool:
        return self.idle and self.announced == 0


@dataclass(frozen=True)
class Expected:
    """What a reservation should come to: an outcome, the entry that is there, or a place."""

    outcome: Outcome
    token: Token | None = None
    offset: int = 0


class Model:
    """The entries of one namespace, by token, and its counters."""

    def __init__(self, max_items: int) -> None:
        self.max_items = max_items
        self.entries: dict[Token, Entry] = {}
        self.epoch = 0
        self.clock = 0
        self.counters = dict.fromkeys(COUNTED, 0)

    def now(self) -> int:
        self.clock += 1
        return self.clock

    # Looking

    def readable(self, entry: Entry) -> bool:
        return entry.epoch == self.epoch and entry.owner.arena_there

    def find(self, key: str) -> Token | None:
        found = [t for t, e in self.entries.items() if e.key == key and self.readable(e)]
        assert len(found) <= 1, f"two lives of {key}: {found}"
        return found[0] if found else None

    def used_bytes(self, owner: Participant) -> int:
        return sum(aligned(e.nbytes) for e in self.entries.values() if e.owner is owner)

    def fits(self, owner: Participant, nbytes: int) -> bool:
        kept = [
            e.extent
            for e in self.entries.values()
            if e.owner is owner
            and not (e.idle and (e.announced == 0 or e.may_expire or e.epoch != self.epoch))
        ]
        return first_fit(kept, owner.arena_bytes, aligned(nbytes)) is not None

    # Publishing

    def reserve(self, owner: Participant, key: str, nbytes: int, n: int, may_expire: bool) -> Expected:
        """What becomes of a reservation; evicts what it should evict. ``take`` adds the new entry."""
        there = self.find(key)
        if there is not None:
            return self.announce(owner, key, n, may_expire)
        size = aligned(nbytes)
        if size > owner.arena_bytes:
            return Expected(Outcome.TOO_LARGE)
        offset = self._place(owner, size)
        if offset is None:
            self.maintain()
            offset = self._place(owner, size)
        own_evictable = [e for e in self.entries.values() if e.owner is owner and e.evictable]
        if offset is None:
            if len(self.entries) - len(own_evictable) >= self.max_items:
                return Expected(Outcome.DIRECTORY_FULL)
            kept = [e.extent for e in self.entries.values() if e.owner is owner and not e.evictable]
            if first_fit(kept, owner.arena_bytes, size) is None:
                return Expected(Outcome.ARENA_FULL)
        for entry in sorted(own_evictable, key=lambda e: e.used):
            if offset is not None:
                break
            self._remove(entry)
            self.counters["evicted"] += 1
            offset = self._place(owner, size)
        assert offset is not None
        return Expected(Outcome.RESERVED, offset=offset)

    def _place(self, owner: Participant, size: int) -> int | None:
        if len(self.entries) >= self.max_items:
            return None
        extents = [e.extent for e in self.entries.values() if e.owner is owner]
        return first_fit(extents, owner.arena_bytes, size)

    def announce(self, participant: Participant, key: str, n: int, may_expire: bool) -> Expected:
        token = self.find(key)
        if token is None:
            return Expected(Outcome.ABSENT)
        entry = self.entries[token]
        if entry.state is State.WRITING:
            here = entry.owner is participant
            return Expected(Outcome.WRITING_HERE if here else Outcome.WRITING_ELSEWHERE, token)
        if n:
            entry.announced = added(entry.announced, n)
            entry.may_expire = entry.may_expire and may_expire
        full = n > 0 and entry.announced == _core.MAX_ANNOUNCED
        return Expected(Outcome.SATURATED if full else Outcome.ANNOUNCED, token)

    def publish(self, token: Token, n: int) -> None:
        entry = self.entries[token]
        entry.state = State.READY
        entry.announced = added(entry.announced, n)
        entry.used = self.now()
        self.counters["published"] += 1
        self.counters["bytes_published"] += entry.nbytes
        self._release_rule(entry)

    def abort(self, token: Token) -> None:
        del self.entries[token]

    # Reading

    def hold(self, token: Token, participant: Participant) -> None:
        entry = self.entries[token]
        entry.holds[participant] = entry.holds.get(participant, 0) + 1
        entry.used = self.now()

    def unhold(self, token: Token, participant: Participant) -> None:
        entry = self.entries[token]
        entry.holds[participant] -= 1
        if entry.holds[participant] == 0:
            del entry.holds[participant]
            self._release_rule(entry)

    def settle(self, token: Token, n: int) -> bool:
        entry = self.entries.get(token)
        if entry is None:
            self.counters["late_releases"] += 1
            return False
        if entry.announced != _core.MAX_ANNOUNCED:
            entry.announced = max(0, entry.announced - n)
        self._release_rule(entry)
        return True

    def _release_rule(self, entry: Entry) -> None:
        if entry.evictable and entry.deallocate:
            self._remove(entry)
            self.counters["freed_by_last_reader"] += 1

    def _remove(self, entry: Entry) -> None:
        del self.entries[next(t for t, e in self.entries.items() if e is entry)]

    # Life

    def maintain(self) -> None:
        for entry in list(self.entries.values()):
            if entry.idle and entry.announced and entry.may_expire:
                entry.announced = 0
                self.counters["expired"] += 1
                if entry.deallocate:
                    self._remove(entry)
                    continue
            self._discard(entry)

    def _discard(self, entry: Entry) -> None:
        if entry.idle and not self.readable(entry):
            self._remove(entry)
            self.counters["evicted"] += 1

    def close(self, participant: Participant) -> None:
        if participant.arena_bytes:
            participant.arena_there = False
            for entry in list(self.entries.values()):
                self._discard(entry)
        for entry in list(self.entries.values()):
            if entry.owner is participant and entry.state is State.WRITING:
                self._remove(entry)


def added(announced: int, n: int) -> int:
    return min(_core.MAX_ANNOUNCED, announced + n)


def first_fit(extents: list[tuple[int, int]], arena_bytes: int, size: int) -> int | None:
    free_from = 0
    for begin, end in sorted(extents):
        if begin - free_from >= size:
            return free_from
        free_from = max(free_from, end)
    return free_from if arena_bytes - free_from >= size else None

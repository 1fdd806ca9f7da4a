"""The store does what a dictionary would do, whatever order things happen in.

Several handles of one process, each a participant of its own, take random steps. After every step
each number that the directory shows is compared with the model's, and each live view with the bytes
that were put.
"""

from __future__ import annotations

import itertools
import uuid
from dataclasses import dataclass

import pytest
import torch
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

import ec_ipc.attachment
from ec_ipc import Store, _core, dtypes, maintenance, names, segment
from ec_ipc._core import Outcome, State
from ec_ipc.errors import ArenaFull

from .model import COUNTED, Entry, Expected, Model, Participant, Token

MIN_STEPS = 20_000
EXAMPLES, STEPS_EACH = 140, 200
MAX_ITEMS = 6
MAX_HANDLES = 4
LONG_S, OVER_AT_ONCE_S = 3600.0, 1e-9
UNIT = _core.ALIGNMENT

which = st.integers(0, 7)  # taken modulo the number of things there are
keys = st.sampled_from("abcdefgh")
# Bytes of an embedding: some fill the arena, some exactly, one never fits.
sizes = st.sampled_from([4, UNIT - 4, UNIT, UNIT + 4, 2 * UNIT, 4 * UNIT, 8 * UNIT, 8 * UNIT + 4])
reads = st.sampled_from([1, 1, 1, 2, 3, 20_000])
lifetimes = st.sampled_from([LONG_S, LONG_S, OVER_AT_ONCE_S])


@dataclass(eq=False)
class Handle:
    store: Store
    participant: Participant


@dataclass(eq=False)
class View:
    """A live view, and what it must show."""

    handle: Handle
    model: Model  # of the segment that it was read from
    token: Token
    tensor: torch.Tensor
    expected: torch.Tensor


@dataclass(eq=False)
class Pending:
    """A reservation that is not yet published."""

    handle: Handle
    token: Token
    offset: int


def pair(token: ec_ipc.attachment.Token) -> Token:
    """What the segment itself goes by: there is one segment here."""
    return token.entry, token.generation


class StoreMachine(RuleBasedStateMachine):
    steps = 0

    @initialize()
    def begin(self) -> None:
        self.namespace = f"test-{uuid.uuid4().hex[:12]}"
        self.model = Model(MAX_ITEMS)
        self.handles: list[Handle] = []
        self.views: list[View] = []
        self.pending: list[Pending] = []
        self.tokens: list[Token] = []  # of every life there was
        self.number = 0

    def handle(self, number: int) -> Handle:
        return self.handles[number % len(self.handles)]

    def producer(self, number: int) -> Handle | None:
        producers = [h for h in self.handles if h.participant.arena_bytes]
        return producers[number % len(producers)] if producers else None

    def fresh(self, nbytes: int) -> torch.Tensor:
        """Bytes that no other tensor of this run has."""
        self.number += 1
        return torch.arange(nbytes // 4, dtype=torch.int32) + self.number * 100_000

    # Handles come and go

    @precondition(lambda self: len(self.handles) < MAX_HANDLES)
    @rule(units=st.sampled_from([0, 4, 8, 8]), deallocate=st.booleans())
    def open(self, units: int, deallocate: bool) -> None:
        StoreMachine.steps += 1
        store = Store.open(
            self.namespace,
            arena="host" if units else None,
            arena_bytes=max(units, 1) * UNIT,
            deallocate=deallocate,
            max_items=MAX_ITEMS,
        )
        self.handles.append(Handle(store, Participant(units * UNIT, deallocate)))
        self.model.maintain()

    @precondition(lambda self: self.handles)
    @rule(number=which)
    def close(self, number: int) -> None:
        StoreMachine.steps += 1
        handle = self.handle(number)
        self.handles.remove(handle)
        self.pending = [p for p in self.pending if p.handle is not handle]
        handle.store.close()
        self.model.close(handle.participant)
        if not self.handles and all(view.handle is handle for view in self.views_of_now()):
            self.nothing_is_left()  # also where views of the last to leave live on
            self.begin_anew()

    def views_of_now(self) -> list[View]:
        """The views of the segment that the name leads to."""
        return [view for view in self.views if view.model is self.model]

    def begin_anew(self) -> None:
        """The next to join makes another segment."""
        self.model = Model(MAX_ITEMS)
        self.tokens.clear()

    # Publishing

    @precondition(lambda self: self.handles)
    @rule(number=which, key=keys, nbytes=sizes, n=reads, ttl=lifetimes)
    def put(self, number: int, key: str, nbytes: int, n: int, ttl: float) -> None:
        StoreMachine.steps += 1
        if (handle := self.producer(number)) is None:
            return
        handle.store.read_timeout_s = ttl
        tensor = self.fresh(nbytes)
        expected = self.model.reserve(handle.participant, key, nbytes, n, ttl == OVER_AT_ONCE_S)
        if expected.outcome in (Outcome.RESERVED, Outcome.ANNOUNCED, Outcome.SATURATED):
            token = pair(handle.store.put(key, tensor, n))
            if expected.outcome is Outcome.RESERVED:
                self.take(handle, token, expected, key, tensor, n, ttl)
                self.model.publish(token, 0)
            else:
                assert token == expected.token
        else:
            with pytest.raises(ArenaFull):
                handle.store.put(key, tensor, n)

    @precondition(lambda self: self.handles)
    @rule(number=which, key=keys, nbytes=sizes, n=st.sampled_from([0, 1, 2]), ttl=lifetimes)
    def reserve(self, number: int, key: str, nbytes: int, n: int, ttl: float) -> None:
        """As ``publish``, stopped between its two steps."""
        StoreMachine.steps += 1
        if (handle := self.producer(number)) is None:
            return
        tensor = self.fresh(nbytes)
        expected = self.model.reserve(handle.participant, key, nbytes, n, ttl == OVER_AT_ONCE_S)
        placement = handle.store.segment.reserve(
            handle.store.digest(key),
            nbytes,
            dtypes.encode(tensor),
            tuple(tensor.shape),
            n,
            ttl,
            handle.store.deallocate,
            segment.LOCK_TIMEOUT_S,
        )
        assert placement.outcome == expected.outcome
        if expected.outcome is Outcome.RESERVED:
            token = placement.entry, placement.generation
            assert placement.offset == expected.offset
            self.take(handle, token, expected, key, tensor, n, ttl)
            self.pending.append(Pending(handle, token, expected.offset))

    def take(
        self,
        handle: Handle,
        token: Token,
        expected: Expected,
        key: str,
        tensor: torch.Tensor,
        n: int,
        ttl: float,
    ) -> None:
        assert token not in self.model.entries
        self.tokens.append(token)
        self.model.entries[token] = Entry(
            key,
            tensor,
            handle.participant,
            expected.offset,
            min(n, _core.MAX_ANNOUNCED),
            handle.participant.deallocate,
            self.model.epoch,
            ttl == OVER_AT_ONCE_S,
            self.model.now(),
        )

    @precondition(lambda self: self.pending)
    @rule(number=which, n=st.sampled_from([0, 0, 1, 2]))
    def publish(self, number: int, n: int) -> None:
        StoreMachine.steps += 1
        pending = self.pending.pop(number % len(self.pending))
        arena = pending.handle.store._at.arena
        assert arena is not None
        arena.write(pending.offset, self.model.entries[pending.token].tensor)
        assert pending.handle.store.segment.publish(*pending.token, n)
        self.model.publish(pending.token, n)

    @precondition(lambda self: self.pending)
    @rule(number=which)
    def abort(self, number: int) -> None:
        StoreMachine.steps += 1
        pending = self.pending.pop(number % len(self.pending))
        assert pending.handle.store.segment.abort(*pending.token)
        self.model.abort(pending.token)

    @precondition(lambda self: self.handles)
    @rule(number=which, key=keys, n=st.sampled_from([0, 1, 2]), ttl=lifetimes)
    def announce(self, number: int, key: str, n: int, ttl: float) -> None:
        StoreMachine.steps += 1
        handle = self.handle(number)
        handle.store.read_timeout_s = ttl
        expected = self.model.announce(handle.participant, key, n, ttl == OVER_AT_ONCE_S)
        publication = handle.store.announce(key, n)
        assert publication.outcome == expected.outcome
        if expected.token is not None:
            assert publication.token is not None and pair(publication.token) == expected.token

    # Reading

    @precondition(lambda self: self.handles)
    @rule(number=which, key=keys, announced=st.booleans())
    def get(self, number: int, key: str, announced: bool) -> None:
        StoreMachine.steps += 1
        handle = self.handle(number)
        token = self.model.find(key)
        lease = handle.store.get(key, announced=announced)
        if token is None or self.model.entries[token].state is not State.READY:
            assert lease is None
            self.model.counters["misses"] += 1
            return
        assert lease is not None and pair(lease.token) == token
        entry = self.model.entries[token]
        self.model.hold(token, handle.participant)
        if announced:
            self.model.settle(token, 1)
        self.model.counters["reads"] += 1
        self.views.append(View(handle, self.model, token, lease.tensor, entry.tensor.clone()))

    @precondition(lambda self: self.handles and self.tokens)
    @rule(number=which, token_number=st.integers(0, 1000))
    def pin_and_release(self, number: int, token_number: int) -> None:
        """A token names its life of the entry and no other."""
        StoreMachine.steps += 1
        handle = self.handle(number)
        token = self.tokens[token_number % len(self.tokens)]
        entry = self.model.entries.get(token)
        there = entry is not None and entry.state is State.READY and self.model.readable(entry)
        pin = handle.store.segment.pin_token(*token)
        assert (pin is not None) == there
        if pin is not None:
            pin.release()
            self.model.hold(token, handle.participant)
            self.model.unhold(token, handle.participant)

    @precondition(lambda self: self.views)
    @rule(number=which)
    def release(self, number: int) -> None:
        StoreMachine.steps += 1
        view = self.views.pop(number % len(self.views))
        token, participant, model = view.token, view.handle.participant, view.model
        del view
        model.unhold(token, participant)
        if not self.handles and model is self.model and not self.views_of_now():
            # Stores that were closed before their views leave by a timer that does not run here: the next
            # to join would find their segment.
            segment.remove(self.namespace)
            self.begin_anew()

    @precondition(lambda self: self.views)
    @rule(number=which)
    def keep_a_slice(self, number: int) -> None:
        """Whatever shares the storage keeps the hold."""
        StoreMachine.steps += 1
        view = self.views[number % len(self.views)]
        view.tensor, view.expected = view.tensor[-1:], view.expected[-1:]

    @precondition(lambda self: self.handles)
    @rule(number=which, key=keys, n=reads)
    def settle(self, number: int, key: str, n: int) -> None:
        StoreMachine.steps += 1
        token = self.model.find(key)
        expected = token is not None and self.model.settle(token, n)
        assert self.handle(number).store.settle(key, n) == expected

    @precondition(lambda self: self.handles and self.tokens)
    @rule(number=which, token_number=st.integers(0, 1000), n=reads)
    def settle_a_token(self, number: int, token_number: int, n: int) -> None:
        """Also of lives that ended long ago: then it changes nothing."""
        StoreMachine.steps += 1
        token = self.tokens[token_number % len(self.tokens)]
        expected = self.model.settle(token, n)
        store = self.handle(number).store
        assert store.segment.settle(*token[:2], n) == expected

    # Life

    @precondition(lambda self: self.handles)
    @rule(number=which)
    def maintain(self, number: int) -> None:
        StoreMachine.steps += 1
        self.handle(number).store.maintain()
        self.model.maintain()

    @precondition(lambda self: self.handles)
    @rule(number=which, twice=st.booleans())
    def reset(self, number: int, twice: bool) -> None:
        StoreMachine.steps += 1
        for _ in range(1 + twice):
            self.handle(number).store.reset()
            self.model.epoch += 1

    @precondition(lambda self: self.handles)
    @rule(number=which, owner=which, nbytes=sizes)
    def fits(self, number: int, owner: int, nbytes: int) -> None:
        StoreMachine.steps += 1
        if (producer := self.producer(owner)) is None:
            return
        asked = self.handle(number).store.segment.fits(producer.store.segment.slot, nbytes)
        assert asked == self.model.fits(producer.participant, nbytes)

    # What must always hold

    @invariant()
    def the_directory_says_what_the_model_says(self) -> None:
        if not getattr(self, "handles", None):
            return
        directory = self.handles[0].store.segment
        shown = {
            (f.entry, f.generation): (f.state, f.announced, f.nbytes, f.shape) for f in directory.entries()
        }
        assert shown == {
            token: (e.state, e.announced, e.nbytes, tuple(e.tensor.shape))
            for token, e in self.model.entries.items()
        }
        writing = sum(e.state is State.WRITING for e in self.model.entries.values())
        holds = sum(len(e.holds) for e in self.model.entries.values())
        assert directory.total_holds() == holds + writing
        counters = directory.counters()
        assert {name: counters[name] for name in COUNTED} == self.model.counters
        for handle in self.handles:
            slot, participant = handle.store.segment.slot, handle.participant
            if participant.arena_bytes:
                assert directory.arena_used(slot) == self.model.used_bytes(participant)
        for key in "abcdefgh":
            found = self.handles[-1].store.find(key)
            assert (None if found is None else (found.entry, found.generation)) == self.model.find(key)

    @invariant()
    def extents_never_overlap(self) -> None:
        if not getattr(self, "model", None):
            return
        for owner in {e.owner for e in self.model.entries.values()}:
            extents = sorted(e.extent for e in self.model.entries.values() if e.owner is owner)
            assert all(a[1] <= b[0] for a, b in itertools.pairwise(extents))

    @invariant()
    def every_view_shows_what_was_put(self) -> None:
        for view in getattr(self, "views", ()):
            assert torch.equal(view.tensor, view.expected)

    def nothing_is_left(self) -> None:
        left = list(names.SHARED_MEMORY_DIRECTORY.glob(f"ec_ipc.*.{self.namespace}*"))
        for path in left:
            path.unlink()
        assert not left

    def teardown(self) -> None:
        if not hasattr(self, "handles"):
            return
        self.pending.clear()
        while self.views:
            view = self.views.pop()
            del view
        for handle in self.handles:
            handle.store.close()
        if not self.handles:
            segment.remove(self.namespace)  # it ended with a view that outlived every store
        self.nothing_is_left()


def test_random_steps_agree_with_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maintenance, "PERIOD_S", 3600.0)  # only the steps do maintenance
    StoreMachine.steps = 0
    run_state_machine_as_test(
        StoreMachine,
        settings=settings(
            max_examples=EXAMPLES,
            stateful_step_count=STEPS_EACH,
            deadline=None,
            phases=[Phase.reuse, Phase.generate, Phase.shrink],
            suppress_health_check=list(HealthCheck),
        ),
    )
    print(f"{StoreMachine.steps} steps")
    assert StoreMachine.steps >= MIN_STEPS

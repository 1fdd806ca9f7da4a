"""The life of entries: every row of the transition table, and what each row refuses."""

import itertools
import time
from collections.abc import Iterator

import pytest
from core_support import KILOBYTE, MEGABYTE, PATIENCE, TTL, SegmentFile, key, put, reserve
from hypothesis import given, settings
from hypothesis import strategies as st

from ec_ipc import _core
from ec_ipc._core import Outcome, State


@pytest.fixture
def file() -> Iterator[SegmentFile]:
    segment_file = SegmentFile()
    yield segment_file
    segment_file.close()


def found(segment: _core.Segment, number: int) -> _core.Found:
    entry = segment.find(key(number))
    assert entry is not None
    return entry


def test_reserve_publish_read_and_free(file: SegmentFile) -> None:
    e, pd = file.producer(), file.reader()
    placed = e.reserve(key(1), 1000, 5, (10, 50), 1, TTL, True, PATIENCE)
    assert (placed.outcome, placed.offset) == (Outcome.RESERVED, 0)
    writing = found(pd, 1)
    assert (writing.state, writing.writer_slot, writing.announced) == (State.WRITING, e.slot, 1)
    assert pd.pin(key(1)) is None
    assert e.publish(placed.entry, placed.generation)
    assert e.arena_used(e.slot) == 1024
    ready = found(pd, 1)
    assert (ready.state, ready.writer_slot, ready.nbytes, ready.shape) == (State.READY, -1, 1000, (10, 50))
    pin = pd.pin(key(1))
    assert pin is not None
    assert (pin.entry, pin.generation) == (placed.entry, placed.generation)
    assert (pin.arena_slot, pin.arena_incarnation) == (e.slot, e.incarnation)
    assert (pin.offset, pin.nbytes, pin.dtype, pin.shape) == (0, 1000, 5, (10, 50))
    assert pd.settle(pin.entry, pin.generation)
    assert found(pd, 1).announced == 0
    pin.release()
    assert pd.find(key(1)) is None
    assert e.arena_used(e.slot) == 0
    counters = e.counters()
    assert (counters["published"], counters["bytes_published"]) == (1, 1000)
    assert counters["freed_by_last_reader"] == 1


def test_publish_adds_what_was_announced_meanwhile(file: SegmentFile) -> None:
    e = file.producer()
    placed = reserve(e, 1, announce=1)
    again = reserve(e, 1)
    assert (again.outcome, again.entry, again.generation) == (
        Outcome.WRITING_HERE,
        placed.entry,
        placed.generation,
    )
    assert e.publish(placed.entry, placed.generation, 2)
    assert found(e, 1).announced == 3


def test_publish_frees_what_nobody_announced(file: SegmentFile) -> None:
    e = file.producer()
    put(e, 1, announce=0)
    assert e.find(key(1)) is None
    put(e, 2, announce=0, deallocate=False)
    assert found(e, 2).announced == 0


def test_publish_and_abort_need_the_writer_and_its_generation(file: SegmentFile) -> None:
    e, other = file.producer(), file.producer()
    placed = reserve(e, 1)
    assert not other.publish(placed.entry, placed.generation)
    assert not other.abort(placed.entry, placed.generation)
    assert not e.publish(placed.entry, placed.generation + 1)
    assert e.publish(placed.entry, placed.generation)
    assert not e.publish(placed.entry, placed.generation)
    assert not e.abort(placed.entry, placed.generation)
    assert found(e, 1).state == State.READY


def test_abort_frees(file: SegmentFile) -> None:
    e = file.producer()
    placed = reserve(e, 1, announce=3)
    assert e.abort(placed.entry, placed.generation)
    assert e.find(key(1)) is None
    assert not e.publish(placed.entry, placed.generation)


def test_an_item_that_another_engine_writes_is_not_announced(file: SegmentFile) -> None:
    e, other = file.producer(), file.producer()
    reserve(e, 1)
    assert reserve(other, 1).outcome == Outcome.WRITING_ELSEWHERE
    assert other.announce(key(1), 1, TTL, PATIENCE).outcome == Outcome.WRITING_ELSEWHERE
    assert e.announce(key(1), 1, TTL, PATIENCE).outcome == Outcome.WRITING_HERE
    assert e.announce(key(2), 1, TTL, PATIENCE).outcome == Outcome.ABSENT
    assert found(e, 1).announced == 1


def test_the_second_producer_of_a_key_only_announces(file: SegmentFile) -> None:
    e, other = file.producer(), file.producer()
    placed = put(e, 1, announce=1)
    second = reserve(other, 1, announce=2)
    assert (second.outcome, second.entry, second.generation) == (
        Outcome.ANNOUNCED,
        placed.entry,
        placed.generation,
    )
    assert found(e, 1).announced == 3
    assert reserve(other, 1, announce=0).outcome == Outcome.ANNOUNCED
    assert found(e, 1).announced == 3


def test_settle_never_goes_below_zero(file: SegmentFile) -> None:
    e = file.producer()
    placed = put(e, 1, announce=2, deallocate=False)
    assert e.settle(placed.entry, placed.generation, 5)
    assert e.settle(placed.entry, placed.generation, 1)
    assert found(e, 1).announced == 0


def test_settling_the_last_announcement_frees(file: SegmentFile) -> None:
    e = file.producer()
    placed = put(e, 1, announce=2)
    assert e.settle(placed.entry, placed.generation)
    assert e.find(key(1)) is not None
    assert e.settle_key(key(1))
    assert e.find(key(1)) is None
    assert not e.settle_key(key(1))


def test_a_settle_that_comes_before_publish_counts(file: SegmentFile) -> None:
    e = file.producer()
    placed = reserve(e, 1, announce=1)
    assert e.settle(placed.entry, placed.generation)
    assert e.publish(placed.entry, placed.generation)
    assert e.find(key(1)) is None


def test_a_full_counter_sticks_until_its_deadline(file: SegmentFile) -> None:
    e = file.producer()
    placed = put(e, 1, announce=_core.MAX_ANNOUNCED - 1, ttl=0.0)
    assert e.announce(key(1), 1, 0.0, PATIENCE).outcome == Outcome.SATURATED
    assert e.announce(key(1), 100, 0.0, PATIENCE).outcome == Outcome.SATURATED
    assert e.settle(placed.entry, placed.generation, 2**60)
    assert found(e, 1).announced == _core.MAX_ANNOUNCED
    assert e.maintain(PATIENCE).expired == 1
    assert e.find(key(1)) is None


def test_expiry_waits_for_holds_and_for_the_latest_deadline(file: SegmentFile) -> None:
    e = file.producer()
    put(e, 1, ttl=0.0)
    put(e, 2, ttl=TTL)
    put(e, 3, ttl=0.0)
    put(e, 4, ttl=0.0)
    put(e, 5, ttl=0.0, deallocate=False)
    pin = e.pin(key(3))
    assert e.announce(key(4), 1, TTL, PATIENCE).outcome == Outcome.ANNOUNCED
    assert e.maintain(PATIENCE).expired == 2
    assert [e.find(key(n)) is not None for n in range(1, 6)] == [False, True, True, True, True]
    assert found(e, 5).announced == 0
    del pin
    assert e.maintain(PATIENCE).expired == 1
    assert e.find(key(3)) is None


def test_an_announcement_protects_until_its_deadline(file: SegmentFile) -> None:
    e = file.producer()
    put(e, 1, ttl=0.2)
    assert e.maintain(PATIENCE).expired == 0
    time.sleep(0.25)
    assert e.maintain(PATIENCE).expired == 1


def test_a_late_release_changes_nothing_and_is_counted(file: SegmentFile) -> None:
    e = file.producer()
    old = put(e, 1)
    assert e.settle(old.entry, old.generation)
    assert not e.settle(old.entry, old.generation)
    new = put(e, 1)
    while new.entry != old.entry:
        assert e.settle(new.entry, new.generation)
        new = put(e, 1)
    assert new.generation == old.generation + 1
    before = e.counters()["late_releases"]
    assert not e.settle(old.entry, old.generation)
    assert e.pin_token(old.entry, old.generation) is None
    assert not e.publish(old.entry, old.generation)
    assert found(e, 1).announced == 1
    assert e.counters()["late_releases"] == before + 1


def test_generations_wrap_around(file: SegmentFile) -> None:
    e = file.producer()
    seen: list[int] = []
    first = reserve(e, 1).entry
    assert e.abort(first, 1)
    while len(seen) < 4100:
        placed = reserve(e, 1)
        assert e.abort(placed.entry, placed.generation)
        if placed.entry == first:
            seen.append(placed.generation)
    assert seen[:2] == [2, 3]
    wrapped = seen.index(0)
    assert seen[wrapped - 1 : wrapped + 2] == [4095, 0, 1]


def test_the_longest_free_entry_is_reserved_first(file: SegmentFile) -> None:
    e = file.producer()
    order = []
    for _ in range(64):
        placed = reserve(e, 1)
        assert e.abort(placed.entry, placed.generation)
        order.append(placed.entry)
    assert len(set(order[:32])) == 32
    assert order[32:] == order[:32]


@pytest.mark.parametrize("token", [(-1, 0), (0, -1), (2**40, 0), (128, 0), (0, 4096), (2**62, 2**62)])
def test_tokens_that_name_nothing_are_refused(file: SegmentFile, token: tuple[int, int]) -> None:
    e = file.producer()
    put(e, 1)
    assert e.pin_token(*token) is None
    assert not e.settle(*token)
    assert not e.publish(*token)
    assert not e.abort(*token)


def test_eviction_takes_the_least_recently_used(file: SegmentFile) -> None:
    e, other = file.producer(4 * KILOBYTE), file.producer()
    put(other, 100, announce=0, deallocate=False)
    for number in range(4):
        put(e, number, KILOBYTE, announce=0, deallocate=False)
    assert e.pin(key(0)) is not None
    assert other.pin(key(2)) is not None
    put(e, 4, 2 * KILOBYTE, announce=0, deallocate=False)
    # 1 and 3 are not side by side, so 0 had to go as well; 2 was used last.
    assert [e.find(key(n)) is not None for n in (0, 1, 2, 3, 4, 100)] == [
        False,
        False,
        True,
        False,
        True,
        True,
    ]
    assert e.counters()["evicted"] == 3


def test_what_is_needed_is_never_evicted(file: SegmentFile) -> None:
    e = file.producer(3 * KILOBYTE)
    put(e, 1, KILOBYTE, announce=0, deallocate=False)
    put(e, 2, KILOBYTE, announce=1, deallocate=False)
    writing = reserve(e, 3, KILOBYTE)
    pin = e.pin(key(1))
    assert pin is not None
    assert not e.fits(e.slot, 1)
    assert reserve(e, 4, 1).outcome == Outcome.ARENA_FULL
    assert len(e.entries()) == 3
    pin.release()
    assert e.fits(e.slot, KILOBYTE)
    assert not e.fits(e.slot, KILOBYTE + 1)
    assert reserve(e, 4, KILOBYTE).outcome == Outcome.RESERVED
    assert e.abort(writing.entry, writing.generation)


def test_reserve_reclaims_what_is_overdue_before_it_gives_up(file: SegmentFile) -> None:
    e = file.producer(KILOBYTE)
    put(e, 1, KILOBYTE, ttl=0.0)
    assert e.fits(e.slot, KILOBYTE)
    assert reserve(e, 2, KILOBYTE).outcome == Outcome.RESERVED
    assert e.find(key(1)) is None
    assert e.counters()["expired"] == 1


def test_an_item_larger_than_the_arena_evicts_nothing(file: SegmentFile) -> None:
    e = file.producer(4 * KILOBYTE)
    put(e, 1, announce=0, deallocate=False)
    assert reserve(e, 2, 4 * KILOBYTE + 1).outcome == Outcome.TOO_LARGE
    put(e, 3, announce=1)
    assert reserve(e, 2, 4 * KILOBYTE).outcome == Outcome.ARENA_FULL
    assert e.find(key(1)) is not None
    assert not e.fits(e.slot, 4 * KILOBYTE + 1)


def test_max_items_is_the_limit_and_eviction_makes_room(file: SegmentFile) -> None:
    e = file.producer()
    for number in range(64):
        put(e, number, 16)
    assert reserve(e, 64, 16).outcome == Outcome.DIRECTORY_FULL
    assert all(e.find(key(number)) for number in range(64))
    other = file.producer()
    assert reserve(other, 64, 16).outcome == Outcome.DIRECTORY_FULL
    assert e.settle_key(key(0))
    put(other, 64, 16, announce=0, deallocate=False)
    assert reserve(e, 65, 16).outcome == Outcome.DIRECTORY_FULL, "the evictable one is in another arena"
    assert reserve(other, 65, 16).outcome == Outcome.RESERVED
    assert e.find(key(64)) is None


def test_no_key_is_missed_while_four_thousand_live() -> None:
    file = SegmentFile(4096)
    e, pd = file.producer(4096 * 256), file.reader()
    for number in range(4096):
        put(e, number, 64)
    for number in range(4096):
        assert found(pd, number).state == State.READY
    assert pd.find(key(5000)) is None
    assert len(pd.entries()) == 4096
    file.close()


def test_a_new_epoch_voids_what_is_older(file: SegmentFile) -> None:
    e = file.producer()
    old = put(e, 1)
    e.bump_epoch()
    assert e.find(key(1)) is None
    assert e.pin(key(1)) is None
    assert e.pin_token(old.entry, old.generation) is None
    assert e.announce(key(1), 1, TTL, PATIENCE).outcome == Outcome.ABSENT
    put(e, 1)
    assert found(e, 1).entry != old.entry
    assert len(e.entries()) == 2
    assert e.maintain(PATIENCE).evicted == 1
    assert len(e.entries()) == 1


def test_the_entries_of_a_forgotten_arena_are_gone(file: SegmentFile) -> None:
    e, pd = file.producer(), file.reader()
    put(e, 1)
    put(e, 2)
    pin = pd.pin(key(2))
    assert pin is not None
    assert not pd.forget_arena(e.slot, e.incarnation, PATIENCE), "its owner is alive"
    assert not e.forget_arena(e.slot, e.incarnation + 1, PATIENCE)
    assert e.forget_arena(e.slot, e.incarnation, PATIENCE)
    assert pd.pin(key(1)) is None
    assert pd.pin(key(2)) is None
    assert not e.fits(e.slot, 1)
    del pin
    pd.maintain(PATIENCE)
    assert pd.entries() == []


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.integers(0, 11),
            st.integers(1, 3000),
            st.sampled_from(["put", "keep", "write", "pin", "drop", "settle", "maintain"]),
        ),
        max_size=60,
    )
)
def test_extents_never_overlap(steps: list[tuple[int, int, str]]) -> None:
    file = SegmentFile(16)
    arena = 8 * KILOBYTE
    e, pd = file.producer(arena), file.reader()
    writing: dict[int, _core.Placement] = {}
    pins: dict[tuple[int, int], list[_core.Pin]] = {}
    placed: dict[tuple[int, int], tuple[int, int]] = {}
    for number, nbytes, what in steps:
        if what in ("put", "keep", "write"):
            outcome = reserve(e, number, nbytes, announce=int(what == "put"), deallocate=what == "put")
            if outcome.outcome == Outcome.RESERVED:
                placed[outcome.entry, outcome.generation] = (outcome.offset, outcome.offset + nbytes)
                if what == "write":
                    writing[number] = outcome
                else:
                    assert e.publish(outcome.entry, outcome.generation)
        elif what == "pin":
            pin = pd.pin(key(number))
            if pin is not None:
                pins.setdefault((pin.entry, pin.generation), []).append(pin)
            del pin
        elif what == "drop" and pins:
            pins.popitem()
        elif what == "settle":
            pd.settle_key(key(number))
            if number in writing:
                token = writing.pop(number)
                e.abort(token.entry, token.generation)
        elif what == "maintain":
            pd.maintain(PATIENCE)
        live = {(entry.entry, entry.generation) for entry in e.entries()}
        assert set(pins) <= live, "a pinned entry was freed"
        spans = sorted(placed[token] for token in live)
        assert all(begin % _core.ALIGNMENT == 0 and end <= arena for begin, end in spans)
        assert all(one[1] <= other[0] for one, other in itertools.pairwise(spans))
    pins.clear()
    assert pd.holds == 0
    file.close()


def test_a_megabyte_arena_is_used_to_its_last_byte(file: SegmentFile) -> None:
    e = file.producer(MEGABYTE)
    put(e, 1, MEGABYTE)
    assert e.arena_used(e.slot) == MEGABYTE
    assert reserve(e, 2, 1).outcome == Outcome.ARENA_FULL


@pytest.mark.parametrize("passes", ["epoch", "arena"])
def test_what_somebody_holds_can_be_shared_although_nobody_finds_it_any_more(
    file: SegmentFile, passes: str
) -> None:
    e, scheduler, worker = file.producer(), file.reader(), file.reader()
    placed = put(e, 1)
    token = placed.entry, placed.generation
    assert worker.pin_shared(*token) is None, "nobody holds it"
    held = scheduler.pin(key(1))
    assert held is not None and held.current
    if passes == "epoch":
        e.bump_epoch()
    else:
        assert e.leave(PATIENCE)
    assert not held.current
    assert worker.pin_token(*token) is None and worker.pin(key(1)) is None
    shared = worker.pin_shared(*token)
    assert shared is not None and shared.offset == held.offset
    held.release()
    worker.maintain(PATIENCE)
    assert worker.total_holds() == 1, "its bytes stay"
    shared.release()
    worker.maintain(PATIENCE)
    assert worker.pin_shared(*token) is None and not list(worker.entries())

"""Other processes: killed, stopped and forked."""

import os
from collections.abc import Iterator

import pytest
from core_support import KILOBYTE, PATIENCE, TTL, OtherProcess, SegmentFile, key, put, reserve

from ec_ipc import _core
from ec_ipc._core import Outcome, State

READER = """
segment.join("reader", 1, PATIENCE)
pins = [segment.pin(key(1)), segment.pin(key(1))]
here_and_wait(segment.slot)
"""
WRITER = """
segment.join("producer", 2, PATIENCE)
segment.set_arena(0, 4096, b"", b"", 0, PATIENCE)
reserve(segment, 1)
here_and_wait(segment.slot, segment.incarnation)
"""
PRODUCER = """
segment.join("producer", 2, PATIENCE)
segment.set_arena(0, 4096, b"", b"", 0, PATIENCE)
put(segment, 1, deallocate=False)
here_and_wait(segment.slot, segment.incarnation)
"""


@pytest.fixture
def file() -> Iterator[SegmentFile]:
    segment_file = SegmentFile()
    yield segment_file
    segment_file.close()


def test_a_killed_readers_hold_is_reclaimed(file: SegmentFile) -> None:
    e = file.producer()
    placed = put(e, 1)
    with OtherProcess(file, READER) as reader:
        assert e.settle(placed.entry, placed.generation)
        assert e.maintain(PATIENCE).reclaimed == 0
        assert e.total_holds() == 1
        reader.kill()
        assert [p.alive for p in e.participants()] == [True, False]
        assert e.maintain(PATIENCE).reclaimed == 1
    assert e.find(key(1)) is None
    assert e.total_holds() == 0
    assert [p.slot for p in e.participants()] == [e.slot]
    assert e.counters()["reclaimed"] == 1


def test_a_stopped_process_is_alive(file: SegmentFile) -> None:
    e = file.producer()
    put(e, 1)
    with OtherProcess(file, READER) as reader:
        reader.stop()
        assert e.maintain(PATIENCE).reclaimed == 0
        assert e.total_holds() == 1
        assert e.anyone_else()


def test_what_a_stopped_producer_published_is_read_and_freed(file: SegmentFile) -> None:
    pd = file.reader()
    with OtherProcess(file, PRODUCER.replace("deallocate=False", "deallocate=True")) as producer:
        producer.stop()
        pin = pd.pin(key(1))
        assert pin is not None
        assert pd.settle(pin.entry, pin.generation)
        del pin
        assert pd.find(key(1)) is None


def test_a_killed_writers_entry_is_freed(file: SegmentFile) -> None:
    pd = file.reader()
    with OtherProcess(file, WRITER) as writer:
        found = pd.find(key(1))
        assert found is not None
        assert (found.state, found.writer_slot) == (State.WRITING, int(writer.words[0]))
        writer.kill()
        assert pd.maintain(PATIENCE).reclaimed == 1
    assert pd.find(key(1)) is None
    assert pd.entries() == []


def test_a_killed_writers_key_is_taken_over_at_once(file: SegmentFile) -> None:
    e = file.producer()
    with OtherProcess(file, WRITER) as writer:
        assert reserve(e, 1).outcome == Outcome.WRITING_ELSEWHERE
        writer.kill()
        assert reserve(e, 1).outcome == Outcome.RESERVED


def test_a_dead_owners_arena_is_read_until_it_is_forgotten(file: SegmentFile) -> None:
    e = file.producer()
    pd = file.reader()
    with OtherProcess(file, PRODUCER) as producer:
        slot, incarnation = map(int, producer.words)
        producer.kill()
        assert [(a.slot, a.incarnation) for a in pd.dead_arenas()] == [(slot, incarnation)]
        pin = pd.pin(key(1))
        assert pin is not None
        assert e.announce(key(1), 1, TTL, PATIENCE).outcome == Outcome.ABSENT
        pd.maintain(PATIENCE)
        assert pd.arena(slot) is not None, "its memory still has a name"
        assert file.reader().slot != slot
        assert pd.forget_arena(slot, incarnation, PATIENCE)
        assert pd.dead_arenas() == []
        assert pd.pin(key(1)) is None
        pin.release()
        assert pd.maintain(PATIENCE).evicted == 1
        assert pd.entries() == []


def test_entries_of_a_dead_owner_without_holds_go_at_once(file: SegmentFile) -> None:
    pd = file.reader()
    with OtherProcess(file, PRODUCER) as producer:
        producer.kill()
        assert pd.maintain(PATIENCE).evicted == 1
    assert pd.find(key(1)) is None


def test_a_slot_left_dirty_is_cleaned_before_it_is_used(file: SegmentFile) -> None:
    e = file.producer()
    placed = put(e, 1)
    with OtherProcess(file, READER) as reader:
        slot = int(reader.words[0])
        reader.kill()
    assert e.total_holds() == 1
    newcomer = file.reader()
    assert newcomer.slot == slot
    assert newcomer.total_holds() == 0
    assert newcomer.settle(placed.entry, placed.generation)
    assert newcomer.find(key(1)) is None


def test_a_failed_reserve_reclaims_the_dead(file: SegmentFile) -> None:
    e = file.producer(KILOBYTE)
    placed = put(e, 1)
    with OtherProcess(file, READER) as reader:
        assert e.settle(placed.entry, placed.generation)
        assert reserve(e, 2).outcome == Outcome.ARENA_FULL
        reader.kill()
        assert reserve(e, 2).outcome == Outcome.RESERVED


def test_a_process_that_ends_normally_is_as_dead(file: SegmentFile) -> None:
    e = file.producer()
    put(e, 1)
    with OtherProcess(file, READER) as reader:
        assert reader.go_on() == 0
    e.maintain(PATIENCE)
    assert e.total_holds() == 0
    assert not e.anyone_else()


def test_the_writer_byte_of_a_stopped_process_is_waited_for_boundedly(file: SegmentFile) -> None:
    e = file.producer()
    code = """
import fcntl, struct
WRITER_BYTE = (1 << 62) + 1
lock = struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, WRITER_BYTE, 1, 0)
fcntl.fcntl(segment.fileno(), 37, lock)  # F_OFD_SETLK
here_and_wait("locked")
"""
    with OtherProcess(file, code) as other:
        other.stop()
        with pytest.raises(_core.LockTimeout, match="writer"):
            e.maintain(0.05)
        with pytest.raises(_core.LockTimeout):
            e.announce(key(1), 1, TTL, 0.0)
        assert e.find(key(1)) is None
        other.kill()
        e.maintain(PATIENCE)


def test_a_forked_child_may_do_nothing_and_releases_nothing(file: SegmentFile) -> None:
    e = file.producer()
    put(e, 1)
    pin = e.pin(key(1))
    child = os.fork()
    if child == 0:
        refused = 0
        calls = [
            lambda: e.find(key(1)),
            lambda: e.pin(key(1)),
            lambda: e.settle_key(key(1)),
            lambda: e.maintain(0.0),
            lambda: e.leave(0.0),
            lambda: e.counters(),
            lambda: e.fileno(),
            lambda: e.holds,
            lambda: e.epoch,
        ]
        for call in calls:
            try:
                call()
            except _core.ForkedHandle:
                refused += 1
        del pin
        os._exit(0 if refused == len(calls) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert e.holds == 1
    assert file.handle().anyone_else()
    assert e.total_holds() == 1


def test_a_forked_child_that_lives_on_does_not_keep_its_parent_alive(file: SegmentFile) -> None:
    e = file.producer()
    placed = put(e, 1)
    code = """
import time
segment.join("reader", 1, PATIENCE)
pin = segment.pin(key(1))
read_end, write_end = os.pipe()
child = os.fork()
if child == 0:
    os.close(0)
    os.close(1)
    os.write(write_end, b"x")
    time.sleep(60)
    os._exit(0)
os.read(read_end, 1)
here_and_wait(child)
"""
    with OtherProcess(file, code) as reader:
        orphan = int(reader.words[0])
        reader.kill()
        try:
            assert e.settle(placed.entry, placed.generation)
            assert e.maintain(PATIENCE).reclaimed == 1
        finally:
            os.kill(orphan, 9)

"""The header, participant slots and locks of a directory segment."""

import os
import struct
from collections.abc import Iterator

import pytest
from core_support import PATIENCE, SegmentFile, key, put

from ec_ipc import _core


@pytest.fixture
def file() -> Iterator[SegmentFile]:
    segment_file = SegmentFile()
    yield segment_file
    segment_file.close()


def test_a_segment_says_what_it_was_made_with(file: SegmentFile) -> None:
    segment = file.handle()
    assert segment.max_items == 64
    assert segment.nbytes == _core.segment_bytes(64) == os.fstat(file.fd).st_size
    assert segment.fingerprint == b"f" * 32
    assert segment.description == "a test"
    assert segment.layout_version == _core.LAYOUT_VERSION
    assert (segment.slot, segment.incarnation, segment.holds) == (-1, 0, 0)


def test_a_new_or_half_made_segment_is_not_ready() -> None:
    fd = os.memfd_create("half_made")
    assert not _core.segment_is_ready(fd)
    os.ftruncate(fd, _core.segment_bytes(64))
    assert not _core.segment_is_ready(fd)
    with pytest.raises(_core.SegmentError):
        _core.Segment(os.dup(fd))
    _core.initialise_segment(fd, 64, b"f" * 32, "")
    assert _core.segment_is_ready(fd)
    with pytest.raises(_core.SegmentError, match="already"):
        _core.initialise_segment(fd, 64, b"f" * 32, "")
    os.close(fd)


def test_a_truncated_segment_is_refused_with_both_sizes(file: SegmentFile) -> None:
    size = _core.segment_bytes(64)
    os.ftruncate(file.fd, size - 64)
    with pytest.raises(_core.SegmentError, match=rf"{size - 64} bytes.*{size}"):
        file.handle()
    os.ftruncate(file.fd, 100)
    with pytest.raises(_core.SegmentError, match="100 bytes"):
        file.handle()
    assert not _core.segment_is_ready(file.fd)


@pytest.mark.parametrize("word", range(12))
def test_every_damaged_number_in_the_header_is_refused(file: SegmentFile, word: int) -> None:
    (before,) = struct.unpack("<Q", os.pread(file.fd, 8, 8 * word))
    for damage in (0, before ^ 1, before ^ 1 << 40, 2**64 - 1):
        os.pwrite(file.fd, struct.pack("<Q", damage), 8 * word)
        with pytest.raises(_core.SegmentError):
            file.handle()
    os.pwrite(file.fd, struct.pack("<Q", before), 8 * word)
    file.handle()


def test_another_layout_version_is_named_in_the_error(file: SegmentFile) -> None:
    os.pwrite(file.fd, struct.pack("<Q", 77), 8)
    with pytest.raises(_core.SegmentError, match=r"layout version 77.*ec-ipc reset"):
        file.handle()


def test_the_descriptor_is_closed_also_when_the_segment_is_refused(file: SegmentFile) -> None:
    os.ftruncate(file.fd, 8)
    fd = file.open()
    with pytest.raises(_core.SegmentError):
        _core.Segment(fd)
    with pytest.raises(OSError):
        os.fstat(fd)


def test_arguments_that_make_no_sense_are_value_errors(file: SegmentFile) -> None:
    for max_items in (0, 2**40):
        with pytest.raises(ValueError):
            _core.segment_bytes(max_items)
    with pytest.raises(ValueError):
        _core.initialise_segment(file.fd, 64, b"short", "")
    with pytest.raises(ValueError):
        _core.initialise_segment(file.fd, 64, b"f" * 32, "x" * 1024)
    segment = file.producer()
    with pytest.raises(ValueError):
        segment.find(b"short")
    with pytest.raises(ValueError):
        segment.reserve(key(0), 0, 0, (), 1, 1.0, True, PATIENCE)
    with pytest.raises(ValueError):
        segment.reserve(key(0), 8, 0, (1,) * 9, 1, 1.0, True, PATIENCE)
    with pytest.raises(ValueError):
        segment.reserve(key(0), 8, 0, (2**40, 2**40), 1, 1.0, True, PATIENCE)
    with pytest.raises(ValueError):
        segment.reserve(key(0), 8, 0, (8,), 1, float("nan"), True, PATIENCE)
    with pytest.raises(ValueError):
        segment.count("no such counter")
    with pytest.raises(ValueError):
        segment.arena(36)
    with pytest.raises(ValueError):
        file.handle().join("a role of more than sixteen bytes", 0, PATIENCE)


def test_errors_share_one_base() -> None:
    for error in (_core.SegmentError, _core.LockTimeout, _core.ForkedHandle, _core.NoFreeSlot):
        assert issubclass(error, _core.ECIPCError)
    assert issubclass(_core.ECIPCError, RuntimeError)


def test_the_creator_byte_excludes_other_open_files(file: SegmentFile) -> None:
    one, other = file.open(), file.open()
    _core.lock_creator(one, 0.0)
    with pytest.raises(_core.LockTimeout, match="creator"):
        _core.lock_creator(other, 0.01)
    _core.unlock_creator(one)
    _core.lock_creator(other, 0.0)
    os.close(other)
    _core.lock_creator(one, 0.0)
    os.close(one)


def test_what_needs_a_participant_says_so(file: SegmentFile) -> None:
    visitor = file.handle()
    for call in (
        lambda: visitor.pin(key(0)),
        lambda: visitor.pin_token(0, 0),
        lambda: visitor.mark_mapped(0, 1),
        lambda: visitor.set_arena(0, 100, b"", b"", 0, PATIENCE),
        lambda: visitor.reserve(key(0), 8, 0, (8,), 1, 1.0, True, PATIENCE),
    ):
        with pytest.raises(_core.SegmentError, match=r"join\(\)"):
            call()
    with pytest.raises(_core.SegmentError, match="no arena"):
        file.reader().reserve(key(0), 8, 0, (8,), 1, 1.0, True, PATIENCE)


def test_a_visitor_sees_all_and_may_maintain(file: SegmentFile) -> None:
    producer = file.producer()
    put(producer, 1, ttl=0.0)
    visitor = file.handle()
    assert visitor.find(key(1)) is not None
    assert len(visitor.entries()) == 1
    assert visitor.maintain(PATIENCE).expired == 1
    assert visitor.counters()["expired"] == producer.counters()["expired"] == 1


def test_participants_are_listed_with_what_they_said(file: SegmentFile) -> None:
    first = file.reader("pd.scheduler", 7)
    second = file.reader("pd.worker", 7)
    listed = file.handle().participants()
    assert [(p.slot, p.role, p.engine, p.pid, p.alive) for p in listed] == [
        (0, "pd.scheduler", 7, os.getpid(), True),
        (1, "pd.worker", 7, os.getpid(), True),
    ]
    assert [p.incarnation for p in listed] == [first.incarnation, second.incarnation]
    assert second.incarnation == first.incarnation + 1
    assert first.anyone_else()
    assert second.leave(PATIENCE)
    assert not first.anyone_else()


def test_incarnations_are_never_used_twice(file: SegmentFile) -> None:
    seen = set()
    for _ in range(5):
        segment = file.reader()
        assert segment.slot == 0
        seen.add(segment.incarnation)
        assert segment.leave(PATIENCE)
    assert len(seen) == 5


def test_the_thirty_seventh_participant_is_refused(file: SegmentFile) -> None:
    everyone = [file.reader() for _ in range(_core.MAX_PARTICIPANTS)]
    assert [segment.slot for segment in everyone] == list(range(36))
    with pytest.raises(_core.NoFreeSlot, match="36"):
        file.reader()


def test_arena_records_come_back_as_they_were_set(file: SegmentFile) -> None:
    owner = file.reader()
    device, handle = bytes(range(16)), bytes(range(64))
    owner.set_arena(1, 12345, device, handle, 2**64 - 1, PATIENCE)
    record = file.handle().arena(owner.slot)
    assert record is not None
    assert (record.slot, record.incarnation, record.kind) == (owner.slot, owner.incarnation, 1)
    assert (record.nbytes, record.device, record.handle) == (12345, device, handle)
    assert record.canary == 2**64 - 1
    assert len(owner.arenas()) == 1
    assert owner.dead_arenas() == []
    assert owner.forget_arena(record.slot, record.incarnation, PATIENCE)
    assert owner.arenas() == []


def test_pressure_and_epoch_are_shared(file: SegmentFile) -> None:
    one, other = file.handle(), file.handle()
    one.pressure = 3
    assert other.pressure == 3
    assert one.bump_epoch() == 1
    assert other.epoch == 1


def test_counters_add_up_over_participants_and_survive_them(file: SegmentFile) -> None:
    one, other = file.reader(), file.reader()
    one.count("reads", 3)
    other.count("reads")
    other.leave(PATIENCE)
    del other
    assert one.counters()["reads"] == 4
    file.reader().count("reads")
    counters = one.counters()
    assert counters["reads"] == 5
    assert list(counters) == [
        *("published", "republished", "reads", "bytes_published", "freed_by_last_reader", "evicted"),
        *("expired", "reclaimed", "localised", "publish_skipped", "late_releases", "misses"),
    ]

"""What the core says for ``ec-ipc top`` and the metrics: holds and counters by participant."""

from collections.abc import Iterator

import pytest
from core_support import SegmentFile, key, put

from ec_ipc import _core


@pytest.fixture
def file() -> Iterator[SegmentFile]:
    file = SegmentFile()
    yield file
    file.close()


def test_holds_are_counted_by_participant(file: SegmentFile) -> None:
    e, one, two = file.producer(), file.reader(), file.reader()
    put(e, 1)
    put(e, 2)
    pins = [one.pin(key(1)), two.pin(key(1)), two.pin(key(2))]
    assert e.holds_by_slot() == {one.slot: 1, two.slot: 2}
    assert sum(e.holds_by_slot().values()) == e.total_holds()
    del pins
    assert e.holds_by_slot() == {}


def test_counters_of_slots_are_those_of_their_participants_in_the_order_of_the_sum(file: SegmentFile) -> None:
    e, pd = file.producer(), file.reader()
    put(e, 1, nbytes=1000)
    pd.count("misses", 3)
    names = list(e.counters())
    assert dict(zip(names, e.counters_of([e.slot]), strict=True))["bytes_published"] == 1000
    assert dict(zip(names, pd.counters_of([pd.slot]), strict=True)) == {
        **dict.fromkeys(names, 0),
        "misses": 3,
    }
    assert e.counters_of([e.slot, pd.slot]) == tuple(e.counters().values())
    assert not any(e.counters_of([]))
    with pytest.raises(ValueError, match="36"):
        e.counters_of([e.slot, _core.MAX_PARTICIPANTS])

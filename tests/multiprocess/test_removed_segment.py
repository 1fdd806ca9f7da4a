"""A segment that is removed under its participants: noticed, and its successor joined."""

from collections.abc import Iterator

import pytest
import torch

from ec_ipc import Store, names, shared_memory

ARENA_BYTES = 1 << 20


@pytest.fixture
def writer(namespace: str) -> Iterator[Store]:
    with Store.open(namespace, arena="host", arena_bytes=ARENA_BYTES) as store:
        yield store


@pytest.fixture
def reader(writer: Store) -> Iterator[Store]:
    with Store.open(writer.namespace) as store:
        store.map_arenas()
        yield store


def remove(store: Store) -> None:
    """What somebody does who cleans /dev/shm by hand."""
    for name in [*names.arena_names(store.name), store.name]:
        assert shared_memory.unlink(name)


def used(store: Store) -> int:
    return sum(store.segment.arena_used(a.slot) for a in store.segment.arenas())


@pytest.mark.parametrize("first", ["writer", "reader"])
def test_both_sides_meet_again_whoever_notices_first(writer: Store, reader: Store, first: str) -> None:
    before = writer.segment
    remove(writer)
    order = [writer, reader] if first == "writer" else [reader, writer]
    for store in [*order, *order]:
        store.maintain()
    assert writer.segment is not before
    assert sorted(p.role for p in writer.segment.participants()) == ["store", "store"]
    source = torch.randn(10, 10)
    writer.put("k", source)
    lease = reader.get("k")
    assert lease is not None and torch.equal(lease.tensor, source)
    lease.release()
    assert used(writer) == 0


def test_a_view_from_before_stays_valid_and_means_nothing_after(writer: Store, reader: Store) -> None:
    source = torch.randn(10, 10)
    token = writer.put("k", source, announce=2)
    lease = reader.get("k")
    assert lease is not None
    remove(writer)
    for store in (writer, reader, writer, reader):
        store.maintain()
    assert torch.equal(lease.tensor, source)
    assert reader.get("k") is None
    fresh = writer.put("k", torch.zeros(10, 10))
    assert fresh[:2] == token[:2], "the test has no point unless the tokens look alike"
    assert not reader.settle_token(token), "a token of the old segment settles nothing in the new one"
    lease.release()
    other = reader.get("k")
    assert other is not None and not other.tensor.any()
    other.release()
    assert used(writer) == 0


def test_what_is_pinned_before_is_not_looked_for_in_the_successor(writer: Store, reader: Store) -> None:
    writer.put("k", torch.ones(10), announce=1)
    pin = reader.segment.pin(reader.digest("k"))
    assert pin is not None
    remove(writer)
    for store in (writer, reader, writer, reader):
        store.maintain()
    writer.put("k", torch.zeros(10), announce=1)
    assert pin.arena_incarnation not in {a.incarnation for a in reader.segment.arenas()}
    pin.release()

"""What every arena must do, through the store that uses it."""

import gc
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from arena_kinds import Kind

from ec_ipc import Lease, Store
from ec_ipc.errors import ArenaFull, ConfigurationError, UnsupportedTensor

ARENA_BYTES = 1 << 20


@pytest.fixture
def writer(open_writer: Any) -> Any:
    """A store with an arena: here, or in another process."""
    return open_writer(arena_bytes=ARENA_BYTES)


@pytest.fixture
def reader(writer: Any) -> Iterator[Store]:
    with Store.open(writer.namespace) as store:
        yield store


@pytest.fixture(autouse=True)
def device(kind: Kind) -> Iterator[str]:
    """Where embeddings are made."""
    with torch.device(kind.device):
        yield kind.device


def used(store: Store) -> int:
    """Bytes in use, once the GPU is done with what has died."""
    assert store.drain()
    return sum(store.segment.arena_used(a.slot) for a in store.segment.arenas())


def get(reader: Store, key: str, **options: Any) -> Lease:
    lease = reader.get(key, **options)
    assert lease is not None, f"{key!r} is not there"
    return lease


def embedding(rows: int = 16, width: int = 64, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(rows, width).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("shape", [(7,), (16, 64), (3, 5, 7), (2, 3, 4, 5), (1, 2, 1, 2, 1, 2, 1, 2)])
def test_a_reader_sees_the_dtype_shape_and_bytes_that_were_put(
    writer: Any, reader: Store, dtype: torch.dtype, shape: tuple[int, ...]
) -> None:
    source = torch.randn(shape).to(dtype)
    writer.put("k", source)
    lease = get(reader, "k")
    assert lease.tensor.dtype == dtype
    assert lease.tensor.shape == source.shape
    assert torch.equal(lease.tensor, source)


def test_non_contiguous_input_arrives_in_order(writer: Any, reader: Store) -> None:
    source = torch.randn(64, 32).t()[::2, 1::3]
    assert not source.is_contiguous()
    writer.put("k", source)
    lease = get(reader, "k")
    assert torch.equal(lease.tensor, source)


def test_what_is_put_is_a_copy_that_later_writes_do_not_reach(writer: Any, reader: Store) -> None:
    batch = torch.randn(4, 8)
    expected = batch[1].clone()
    writer.put("k", batch[1])
    batch.zero_()
    lease = get(reader, "k")
    assert torch.equal(lease.tensor, expected)


def test_a_read_copies_nothing(writer: Any, reader: Store) -> None:
    writer.put("k", embedding(), announce=2)
    first, second = get(reader, "k"), get(reader, "k")
    assert first.tensor.data_ptr() == second.tensor.data_ptr()


def test_the_last_reader_frees(writer: Any, reader: Store) -> None:
    writer.put("k", embedding(), announce=2)
    first, second = get(reader, "k"), get(reader, "k")
    first.release()
    assert used(reader) > 0
    second.release()
    assert used(reader) == 0
    assert reader.segment.counters()["freed_by_last_reader"] == 1
    assert reader.get("k") is None


def test_a_view_outlives_its_lease_and_holds_the_memory(writer: Any, reader: Store) -> None:
    source = embedding()
    writer.put("k", source)
    lease = get(reader, "k")
    row = lease.tensor[3]
    lease.release()
    with pytest.raises(ValueError, match="has been released"):
        _ = lease.tensor
    gc.collect()
    assert used(reader) > 0
    assert torch.equal(row, source[3])
    del row
    assert used(reader) == 0


def test_a_settled_read_frees_without_reading(writer: Any, reader: Store) -> None:
    writer.put("k", embedding(), announce=1)
    assert reader.settle("k")
    assert used(reader) == 0
    assert not reader.settle("k")


def test_a_look_without_an_announcement_does_not_count_as_the_read(writer: Any, reader: Store) -> None:
    writer.put("k", embedding(), announce=1)
    lease = get(reader, "k", announced=False)
    lease.release()
    assert used(reader) > 0
    lease = get(reader, "k")
    lease.release()
    assert used(reader) == 0


def test_putting_a_published_key_again_announces_and_copies_nothing(writer: Any, reader: Store) -> None:
    token = writer.put("k", embedding(), announce=1)
    assert writer.put("k", embedding(), announce=1) == token
    assert reader.segment.counters()["published"] == 1
    for _ in range(2):
        lease = get(reader, "k")
        lease.release()
    assert used(reader) == 0


def test_an_absent_key_is_none_and_counted(writer: Any, reader: Store) -> None:
    assert reader.get("nothing") is None
    assert reader.segment.counters()["misses"] == 1


def test_a_full_arena_refuses_and_frees_again(writer: Any, reader: Store) -> None:
    quarter = torch.zeros(ARENA_BYTES // 4, dtype=torch.uint8)
    for i in range(4):
        writer.put(f"k{i}", quarter)
    with pytest.raises(ArenaFull, match="nothing may be evicted"):
        writer.put("one more", quarter)
    get(reader, "k2").release()
    assert reader.drain()
    writer.put("one more", quarter)


def test_a_tensor_larger_than_the_arena_is_refused_at_once(writer: Any) -> None:
    with pytest.raises(ArenaFull, match=f"the arena {ARENA_BYTES}"):
        writer.put("k", torch.zeros(ARENA_BYTES + 1, dtype=torch.uint8))


def test_without_deallocate_the_least_recently_used_is_evicted(open_writer: Any) -> None:
    quarter = torch.zeros(ARENA_BYTES // 4, dtype=torch.uint8)
    writer = open_writer(arena_bytes=ARENA_BYTES, deallocate=False)
    with Store.open(writer.namespace) as reader:
        for i in range(4):
            writer.put(f"k{i}", quarter, announce=0)
        get(reader, "k0").release()
        assert reader.drain()
        writer.put("one more", quarter, announce=0)
        assert reader.get("k1") is None
        get(reader, "k0").release()
        assert reader.segment.counters()["evicted"] == 1


@pytest.mark.parametrize(
    "tensor", [torch.empty(0), torch.zeros(2, dtype=torch.complex64), torch.zeros([1] * 9)]
)
def test_what_no_arena_can_hold_is_refused(writer: Any, reader: Store, tensor: torch.Tensor) -> None:
    with pytest.raises(UnsupportedTensor):
        writer.put("k", tensor)
    assert used(reader) == 0


def test_a_put_that_nobody_is_to_read_is_refused(writer: Any) -> None:
    with pytest.raises(ValueError, match="would be freed at once"):
        writer.put("k", embedding(), announce=0)


def test_a_reader_cannot_put(reader: Store) -> None:
    with pytest.raises(ConfigurationError, match="reads only"):
        reader.put("k", embedding())


def test_views_stay_valid_after_the_writer_has_left(writer: Any, reader: Store) -> None:
    source = embedding()
    writer.put("k", source, announce=2)
    lease = get(reader, "k")
    writer.close()
    assert torch.equal(lease.tensor, source)
    assert reader.get("k") is None


def test_any_string_is_a_key(writer: Any, reader: Store) -> None:
    keys = ["", "a" * 10_000, "ünï¢ode", "\0", "../../etc/passwd", "\ud800"]
    for key in keys:
        writer.put(key, torch.tensor([float(len(key))]))
    for key in keys:
        lease = reader.get(key)
        assert lease is not None and lease.tensor.item() == len(key)


def test_a_reset_makes_everything_from_before_unreadable(writer: Any, reader: Store) -> None:
    writer.put("k", embedding())
    writer.reset()
    assert reader.get("k") is None
    fresh = embedding()
    writer.put("k", fresh)
    lease = get(reader, "k")
    assert torch.equal(lease.tensor, fresh)


def test_pressure_is_a_signal_whatever_the_word_says(reader: Store) -> None:
    reader.segment.pressure = 2**64 - 1
    reader.raise_pressure()
    assert reader.segment.pressure == 0

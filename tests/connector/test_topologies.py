"""Several engines, several ranks, and the role that does both."""

# ruff: noqa: F811
from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch

from ec_ipc import dtypes, segment
from ec_ipc.cli import status
from ec_ipc.connector import config as configuration
from ec_ipc.connector import scheduler as scheduler_half

from .lockstep import WIDTH, Item, LockstepEngine, engine_config, make_request
from .test_lifetime import Start, encode, held  # noqa: F401

ITEM_BYTES = 16 * WIDTH * 4


@pytest.fixture
def counters(namespace: str) -> Callable[[], dict[str, int]]:
    return lambda: dict(status.collect(namespace)["namespaces"][0]["counters"])


def test_two_encoders_and_two_decoders_share_one_namespace(
    start: Start,
    held: Any,
    counters: Any,
) -> None:
    encoders = [start("ec_producer"), start("ec_producer")]
    decoders = [start("ec_consumer"), start("ec_consumer")]
    for i, e in enumerate(encoders):
        for name in ("cat", "dog"):
            e.add(make_request(f"{name} {i}", [Item(name), Item(f"only {name} {i}")]))
    while any(e.scheduler.has_unfinished_requests() for e in encoders):
        for e in encoders:
            e.step()
    for e in encoders:
        e.run()
    for i, (e, pd) in enumerate(zip(encoders, reversed(decoders), strict=True)):
        for name in ("cat", "dog"):
            items = [Item(name, pixels=False), Item(f"only {name} {i}", pixels=False)]
            pd.add(make_request(f"{name} {i}", items, params=e.answers[f"{name} {i}"], max_tokens=3))
    for pd in decoders:
        pd.run()
        assert not pd.errors and pd.encodes == []
    assert held() == (0, 0, 0)
    assert sorted(encoders[0].encodes + encoders[1].encodes).count("cat") == 1
    assert counters()["published"] == 6


def test_the_second_encoder_waits_while_the_first_is_writing(start: Start, held: Any) -> None:
    first, second = start("ec_producer"), start("ec_producer")
    store = first.worker._worker_half._store
    tensor = torch.zeros(16, WIDTH)
    placement = store.segment.reserve(  # the first is between its two steps
        store.digest("cat"),
        ITEM_BYTES,
        dtypes.encode(tensor),
        (16, WIDTH),
        1,
        60,
        True,
        segment.LOCK_TIMEOUT_S,
    )
    second.add(make_request("r", [Item("cat")]))
    for _ in range(5):
        assert second.step().total_num_scheduled_tokens == 0
    store.segment.publish(placement.entry, placement.generation)
    second.run()
    assert second.encodes == [] and second.answers["r"] is not None
    assert held()[2] == 2


def test_an_item_split_over_several_steps_of_e_is_announced_once(start: Start, held: Any) -> None:
    first, pd = start("ec_producer"), start("ec_consumer")
    second = start("ec_producer", args={"max_num_batched_tokens": 8, "max_num_seqs": 4})
    encode(first, "a", Item("cat"))
    params = encode(second, "b", Item("cat"))
    assert second.encodes == [] and held()[2] == 2
    for name in "ab":
        pd.add(make_request(name, [Item("cat")], params=params))
    pd.run()
    assert held() == (0, 0, 0)


def tensor_parallel(start: Start, **extra: Any) -> Any:
    from .tensor_parallel import TensorParallelEngine

    return start("ec_consumer", kind=TensorParallelEngine, **extra)


@pytest.mark.parametrize("runner", ["v1"], indirect=True)
def test_every_rank_reads_and_the_last_one_frees(start: Start, held: Any) -> None:
    e, pd = start("ec_producer"), tensor_parallel(start, depth=2)
    pd.start_second()
    names = "abcd"
    for name in names:
        params = encode(e, name, Item("cat"), Item(name))
        pd.add(make_request(name, [Item("cat"), Item(name)], params=params, max_tokens=3))
    for _ in range(3):
        pd.step()
        assert held()[0] > 0 or not pd.behind, "a rank has yet to load what was freed"
    pd.run()
    assert pd.encodes == [] and set(pd.answers) == set(names) and held() == (0, 0, 0)


@pytest.mark.parametrize("runner", ["v1"], indirect=True)
def test_an_arena_that_a_rank_has_not_mapped_is_waited_for_then_left(start: Start, held: Any) -> None:
    e = start("ec_producer")
    params = encode(e, "r", Item("cat"))
    pd = tensor_parallel(start, wait_timeout_s=60)
    pd.add(make_request("r", [Item("cat", pixels=False)], params=params))
    for _ in range(5):
        assert pd.step().total_num_scheduled_tokens == 0
    pd.start_second()
    pd.run()
    assert not pd.errors and held() == (0, 0, 0)


@pytest.mark.parametrize("runner", ["v1"], indirect=True)
def test_the_wait_for_a_rank_is_bounded(start: Start, held: Any) -> None:
    e = start("ec_producer")
    pd = tensor_parallel(start, wait_timeout_s=0.05)
    params = encode(e, "r", Item("cat"), Item("dog"))
    pd.add(make_request("bare", [Item("cat", pixels=False)], params=params))
    pd.add(make_request("whole", [Item("dog")], params=params))
    while pd.scheduler.has_unfinished_requests():
        pd.step()
        pd.drain()
        time.sleep(0.01)
        if pd.encodes:
            pd.start_second()
    pd.run()
    assert pd.errors == {"bare"} and pd.encodes == ["dog"]
    assert held() == (0, 0, 0)


def test_ec_both_evicts_the_least_recently_used(start: Start, counters: Any) -> None:
    first = start("ec_both", arena_bytes=2 * ITEM_BYTES, read_mode="copy")
    second = start("ec_both", arena_bytes=2 * ITEM_BYTES, read_mode="copy")
    for round, engine in enumerate((first, second)):
        for name in "abcd":
            engine.add(make_request(f"{name} {round}", [Item(name)]))
            engine.run()
    assert first.encodes == list("abcd")
    assert "a" in second.encodes and "d" in second.loads
    assert counters()["evicted"] >= 2 and counters()["publish_skipped"] == 0


def test_ec_both_reads_in_place_and_localises_when_short(start: Start, counters: Any) -> None:
    engine = start("ec_both", arena_bytes=2 * ITEM_BYTES, args={"enable_prefix_caching": False})
    other = start("ec_both", arena_bytes=ITEM_BYTES)
    for name in "abcdefgh":
        engine.add(make_request(name, [Item(name)]))
        engine.run()
        other.add(make_request(name, [Item(name)]))
        other.run()
    assert other.loads, "nothing was read; the test has no point"
    assert not engine.errors and not other.errors


def children(name: str, n: int, **fields: Any) -> list[Any]:
    """As vLLM's front end makes them of ``n`` choices: each has the parent's parameters."""
    return [make_request(f"{i}_{name}", [Item("cat"), Item("dog")], **fields) for i in range(n)]


def test_children_announce_and_settle_each(start: Start, held: Any) -> None:
    e, pd = start("ec_producer"), start("ec_consumer")
    for child in children("r", 3):
        e.add(child)
    e.run()
    assert held()[2] == 6
    for child in children("r", 3, params=e.answers["0_r"], max_tokens=4):
        pd.add(child)
    for _ in range(2):
        pd.step()
    pd.abort("1_r")
    pd.run()
    assert pd.encodes == [] and held() == (0, 0, 0)


def test_a_weight_update_voids_what_was_encoded_before(start: Start, held: Any) -> None:
    for which in (0, 1):
        engines = e, pd = start("ec_producer"), start("ec_consumer")
        name = f"image {which}"
        params = encode(e, f"r{which}", Item(name))
        engines[which].scheduler.reset_encoder_cache()
        engines[which].encoder_cache.clear()
        pd.add(make_request(f"r{which}", [Item(name)], params=params))
        pd.run()
        assert pd.encodes == [name] and pd.loads == []
        encode(e, f"again {which}", Item(name))
        assert e.encodes == [name, name]
        pd.add(make_request(f"again {which}", [Item(name)], params=e.answers[f"again {which}"]))
        pd.run()
        assert pd.loads == [name]
    e.worker._worker_half._store.maintain()
    assert held() == (0, 0, 0)


@pytest.mark.parametrize("role", ["ec_producer", "ec_consumer", "ec_both"])
def test_text_and_empty_steps_are_normal_in_every_role(start: Start, held: Any, role: str) -> None:
    engine = start(role)
    for _ in range(3):
        engine.step()
    engine.add(make_request("text", [], max_tokens=5))
    engine.add(make_request("gone", [], max_tokens=5))
    engine.step()
    engine.abort("gone")
    engine.run()
    for _ in range(3):
        engine.step()
    engine.drain()
    assert "text" in engine.answers and held() == (0, 0, 0)


@pytest.mark.parametrize("runner", ["v1"], indirect=True)
@pytest.mark.parametrize("role", ["ec_producer", "ec_consumer", "ec_both"])
def test_every_hook_of_the_other_half_says_so(start: Start, role: str) -> None:
    """vLLM never calls them; whoever does learns it at once."""
    engine = start(role)
    with pytest.raises(AssertionError, match="worker's connector"):
        engine.worker.has_cache_item("a")
    with pytest.raises(AssertionError, match="scheduler's connector"):
        engine.scheduler.ec_connector.build_connector_worker_meta()


@pytest.mark.parametrize("runner", ["v1"], indirect=True)
def test_an_idle_engine_costs_less_than_one_percent_of_a_core(start: Start) -> None:
    for role in ("ec_producer", "ec_consumer"):
        start(role, max_items=4096)
    clocks = [
        time.pthread_getcpuclockid(thread.ident)
        for thread in threading.enumerate()
        if thread.name == "ec_ipc-maintenance" and thread.ident is not None
    ]
    assert len(clocks) == 4
    used = -sum(map(time.clock_gettime, clocks))
    begin = time.monotonic()
    time.sleep(3)
    used += sum(map(time.clock_gettime, clocks))
    share = used / (time.monotonic() - begin)
    print(f"{share:.3%} of a core for {len(clocks)} threads")
    assert share / 2 < 0.01, "of each engine's two threads"


def test_scheduler_halves_are_made_for_each_role(model: str, namespace: str) -> None:
    for role in ("ec_producer", "ec_consumer", "ec_both"):
        vllm_config = engine_config(model, role, namespace)
        transfer = vllm_config.ec_transfer_config
        assert transfer is not None
        parsed = configuration.parse(role, transfer.ec_connector_extra_config, 1 << 20)
        scheduler_half.create(vllm_config, parsed).shutdown()


def test_the_engines_of_the_tests_can_fail(start: Start) -> None:
    """A gather that finds other bytes, or nothing, must end the test."""
    e, pd = start("ec_producer"), start("ec_consumer")
    params = encode(e, "r", Item("cat"))
    pd.add(make_request("r", [Item("cat")], params=params))
    with e.worker._worker_half._store.get("cat", announced=False) as lease:
        lease.tensor.zero_()
    with pytest.raises(AssertionError):
        pd.run()
    pd.in_flight.clear()
    assert isinstance(pd, LockstepEngine)

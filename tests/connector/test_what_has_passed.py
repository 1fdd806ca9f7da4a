"""What a request holds can pass while it waits: its owner ends, the weights change, the segment is removed.

Nobody may answer from other bytes than the item's, whatever the moment.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch

from ec_ipc import Store, names

from .lockstep import WIDTH, Item, LockstepEngine, make_request
from .test_lifetime import Start, encode, held  # noqa: F401 - a fixture

NO_PREFIX_CACHE = {"enable_prefix_caching": False}
BYTES = 16 * WIDTH * 4


def leave(e: LockstepEngine, pd: LockstepEngine) -> None:
    e.shutdown()


def reset_e(e: LockstepEngine, pd: LockstepEngine) -> None:
    e.scheduler.reset_encoder_cache()


def reset_pd(e: LockstepEngine, pd: LockstepEngine) -> None:
    pd.scheduler.reset_encoder_cache()
    pd.encoder_cache.clear()


def stores(*engines: LockstepEngine) -> list[Store]:
    return [
        store
        for engine in engines
        for store in (engine.worker._worker_half._store, engine.scheduler.ec_connector._scheduler._store)
    ]


def remove_segment(e: LockstepEngine, pd: LockstepEngine) -> None:
    """As somebody would who tidies up /dev/shm under running engines; everybody's timer notices."""
    name = names.segment_name(stores(e)[0].namespace)
    os.unlink(f"/dev/shm{name}")
    for _ in range(2):
        for store in stores(e, pd):
            store.maintain()


@pytest.mark.parametrize("passes", [leave, reset_e, reset_pd, remove_segment])
@pytest.mark.parametrize("max_tokens", [1, 3])
def test_while_a_request_waits_for_blocks(start: Start, passes: Callable[..., None], max_tokens: int) -> None:
    e = start("ec_producer")
    pd = start("ec_consumer", blocks=8, args=NO_PREFIX_CACHE)
    first, second = encode(e, "a", Item("one", rows=48)), encode(e, "b", Item("cat", rows=48))
    pd.add(make_request("a", [Item("one", rows=48)], params=first, max_tokens=30))
    pd.step()
    pd.step()
    pd.add(make_request("b", [Item("cat", rows=48)], params=second, max_tokens=max_tokens))
    for _ in range(3):
        pd.step()
    passes(e, pd)
    pd.run(300)  # a wrong byte fails in the gather
    assert "b" in pd.answers and not pd.errors
    assert "cat" in pd.encodes, "it has its pixels"


@pytest.mark.parametrize("passes", [leave, reset_e, reset_pd, remove_segment])
def test_between_a_steps_scheduling_and_its_loads(start: Start, passes: Callable[..., None]) -> None:
    """The scheduler's hold keeps the bytes, so the step reads them, and both its requests are right."""
    e, pd = start("ec_producer"), start("ec_consumer", args=NO_PREFIX_CACHE)
    params = encode(e, "a", Item("cat"))
    pd.add(make_request("a", [Item("cat")], params=params, max_tokens=4))
    pd.add(make_request("b", [Item("cat")], params=params, max_tokens=4, text=9))
    output = pd.scheduler.schedule()
    passes(e, pd)
    pd.in_flight.append((output, pd._execute(output)))
    pd.drain()
    pd.run()
    assert pd.loads == ["cat"] and set(pd.answers) == {"a", "b"} and not pd.errors


@pytest.mark.parametrize("runner", ["v1"], indirect=True)
def test_insurance_of_a_removed_segment_is_worth_nothing(start: Start) -> None:
    """The same entry and generation in its successor are another item's."""
    e = start("ec_producer", max_items=1)
    pd = start("ec_consumer", max_items=1, blocks=8, args=NO_PREFIX_CACHE)
    pd.add(
        make_request(
            "a", [Item("victim", pixels=False)], params=encode(e, "a", Item("victim")), max_tokens=90
        )
    )
    for _ in range(3):
        pd.step()
    insurance = pd.scheduler.ec_connector._scheduler._requests["a"].insurance["victim"]
    meant = insurance.entry, insurance.generation
    remove_segment(e, pd)
    for number in range(200):
        encode(e, f"other {number}", Item(f"other {number}"))
        found = stores(e)[0].find(f"other {number}")
        if found is not None and (found.entry, found.generation) == meant:
            break
        stores(e)[0].settle(f"other {number}")
    else:
        raise AssertionError("no other item came to the victim's place")
    del insurance
    pd.scheduler._preempt_request(pd.scheduler.running.pop(), time.monotonic())
    pd.run()
    assert pd.errors == {"a"}


@pytest.mark.parametrize("runner", ["v1"], indirect=True)
def test_metrics_after_the_segment_was_removed(start: Start) -> None:
    e, pd = start("ec_producer"), start("ec_consumer")
    grown: list[dict[str, int]] = []
    collector = e.scheduler.ec_connector._scheduler.metrics
    collect = collector.collect

    def watched() -> dict[str, Any] | None:
        data = collect()
        grown.extend([data["counters"]] if data else [])
        return data

    collector.collect = watched
    for number in range(3):
        encode(e, f"{number}", Item(f"{number}"))
    remove_segment(e, pd)
    for number in range(3, 5):
        encode(e, f"{number}", Item(f"{number}"))
    assert sum(each.get("published", 0) for each in grown) == 5
    assert all(value > 0 for each in grown for value in each.values())


@pytest.mark.parametrize("runner", ["v1"], indirect=True)
@pytest.mark.parametrize("where", ["timer", "step"])
def test_no_memory_for_a_copy(start: Start, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    """Views stay until there is memory again; neither the timer nor the engine ends."""
    e = start("ec_producer", arena_bytes=3 * BYTES, deallocate_cache=False)
    pd = start("ec_consumer", deallocate_cache=False)
    worker = stores(pd)[0]
    for name in "ab":
        pd.add(make_request(name, [Item(name)], params=encode(e, name, Item(name))))
        pd.run()
    assert worker.segment.total_holds() == 2

    def no_memory(*_: Any, **__: Any) -> None:
        raise torch.OutOfMemoryError("out of memory")

    def give_way() -> None:
        stores(e)[0].raise_pressure()
        if where == "timer":
            worker.maintain()
        else:
            pd.add(make_request(f"text {len(pd.answers)}", [], max_tokens=2))
            pd.run()

    with monkeypatch.context() as patch:
        patch.setattr(torch.Tensor, "clone", no_memory)
        give_way()
    assert worker.segment.total_holds() == 2
    give_way()
    assert worker.segment.total_holds() == 0
    assert worker.segment.counters()["localised"] == 2

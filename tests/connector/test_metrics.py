"""What an engine reports through vLLM's metrics: its own numbers, once each."""

import functools
import math
import os
import socket
import struct
from collections.abc import Callable
from typing import Any

import prometheus_client
import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.parser import text_string_to_metric_families
from vllm.v1.core.sched.scheduler import Scheduler

from ec_ipc import notes
from ec_ipc.attachment import Token
from ec_ipc.connector import identity, prometheus
from ec_ipc.connector.connector import ECIPCConnector
from ec_ipc.connector.metrics import COUNTERS, GAUGES, HISTOGRAMS, PREFIX, TALLIES, Tally, add_growth
from ec_ipc.connector.prometheus import ECIPCStats
from ec_ipc.connector.side_channel import (
    MAX_TIMES,
    Saved,
    SideChannelReceiver,
    SideChannelSender,
    _address,
)

from .lockstep import Item, LockstepEngine, make_request

Start = Callable[..., LockstepEngine]


@pytest.fixture
def reported(monkeypatch: pytest.MonkeyPatch) -> dict[int, list[dict[str, Any]]]:
    """What reaches vLLM's front end, by scheduler."""
    found: dict[int, list[dict[str, Any]]] = {}
    make = Scheduler.make_stats

    def make_stats(self: Scheduler, *args: Any, **kwargs: Any) -> Any:
        stats = kwargs["ec_connector_stats"]
        if stats is not None:
            found.setdefault(id(self), []).append(stats.data)
        return make(self, *args, **kwargs)

    monkeypatch.setattr(Scheduler, "make_stats", make_stats)
    return found


def total(steps: list[dict[str, Any]]) -> ECIPCStats:
    stats = ECIPCStats()
    for data in steps:
        stats = stats.aggregate(ECIPCStats(data=data))
    return stats


def hand_over(e: LockstepEngine, pd: LockstepEngine, number: int, *items: Item) -> None:
    e.add(make_request(f"e{number}", list(items)))
    e.run()
    pd.add(make_request(f"pd{number}", list(items), params=e.answers[f"e{number}"]))
    pd.run()


def test_each_engine_reports_what_it_did(start: Start, reported: dict[int, list[dict[str, Any]]]) -> None:
    e, pd = start("ec_producer"), start("ec_consumer")
    hand_over(e, pd, 1, Item("a"), Item("b"))
    pd.add(make_request("alone", [Item("c")]))
    pd.run()
    of_e, of_pd = total(reported[id(e.scheduler)]), total(reported[id(pd.scheduler)])
    nbytes = 2 * 16 * 8 * 4
    assert of_e.data["counters"] == {"published": 2, "bytes_published": nbytes}
    assert of_pd.data["counters"] == {"reads": 2, "hits": 2, "misses": 1, "freed_by_last_reader": 2}
    assert len(of_e.data["publish_seconds"]) == 2 and of_e.data["load_seconds"] == []
    assert len(of_pd.data["load_seconds"]) == 2 and of_pd.data["publish_seconds"] == []
    assert of_pd.reduce().items() >= {"arena_bytes": 1 << 20, "arena_used_bytes": 0}.items()


def test_an_item_that_need_not_be_encoded_again_is_a_hit_of_e(
    start: Start, reported: dict[int, list[dict[str, Any]]]
) -> None:
    first, second = start("ec_producer"), start("ec_producer")
    first.add(make_request("1", [Item("a")]))
    first.run()
    second.add(make_request("2", [Item("a")]))
    second.run()
    assert total(reported[id(second.scheduler)]).data["counters"] == {"hits": 1}


def test_a_step_in_which_nothing_happened_reports_nothing(
    start: Start, reported: dict[int, list[dict[str, Any]]]
) -> None:
    pd = start("ec_consumer")
    pd.add(make_request("text", [], max_tokens=5))
    pd.run()
    assert reported == {}


def test_counters_of_a_former_owner_of_the_slot_are_not_reported_again(
    start: Start, reported: dict[int, list[dict[str, Any]]]
) -> None:
    keeper = start("ec_consumer")
    old = start("ec_producer")
    old.add(make_request("1", [Item("a")]))
    old.run()
    old.shutdown()
    reported.clear()
    new = start("ec_producer")
    new.add(make_request("2", [Item("b")]))
    new.run()
    assert total(reported[id(new.scheduler)]).data["counters"]["published"] == 1
    assert keeper.scheduler is not new.scheduler


def test_a_counter_that_was_damaged_takes_nothing_back() -> None:
    """vLLM's metrics may not shrink."""
    grown: dict[str, int] = {}
    add_growth(grown, ("reads", "misses"), [5, 3], [2**64 - 1, 1])
    assert grown == {"misses": 2}


def test_the_log_line_has_what_happened_and_how_long_it_took(namespace: str) -> None:
    step = {"namespace": namespace}
    one = ECIPCStats(data={**step, "counters": {"reads": 1}, "publish_seconds": [], "load_seconds": [0.001]})
    two = ECIPCStats(
        data={**step, "counters": {"reads": 2, "misses": 1}, "publish_seconds": [], "load_seconds": [0.003]}
    )
    reduced = ECIPCStats().aggregate(one).aggregate(two).reduce()
    assert reduced == {
        "reads": 3,
        "misses": 1,
        "load_mean_ms": 2.0,
        "load_max_ms": 3.0,
        "arena_bytes": 0,
        "arena_used_bytes": 0,
    }
    assert one.data["counters"] == {"reads": 1}, "aggregating changes what it is given"
    stats = ECIPCStats(data={"counters": {}})
    stats.reset()
    assert stats.is_empty() and stats.reduce() == {}


def exposition(registry: CollectorRegistry) -> dict[str, float]:
    text = prometheus_client.generate_latest(registry).decode()
    return {
        sample.name: sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if not sample.name.endswith(("_bucket", "_created"))
    }


def test_the_metrics_in_prometheus(
    start: Start, namespace: str, reported: dict[int, list[dict[str, Any]]]
) -> None:
    e, pd = start("ec_producer"), start("ec_consumer")
    registry = CollectorRegistry()
    types = {kind: functools.partial(kind, registry=registry) for kind in (Counter, Gauge, Histogram)}
    metrics = ECIPCConnector.build_prom_metrics(e.config, types, ["model_name", "engine"], {0: ["m", "0"]})
    before = exposition(registry)
    for name in {**COUNTERS, **TALLIES}:
        assert before[f"{PREFIX}{name}_total"] == 0, "counters are there from the start"
    for name in HISTOGRAMS:
        assert before[f"{PREFIX}{name}_count"] == 0
    e.add(make_request("1", [Item("a")]))
    e.run()
    for data in reported[id(e.scheduler)]:
        metrics.observe(data, 0)
    after = exposition(registry)
    assert after[f"{PREFIX}published_total"] == 1 and after[f"{PREFIX}publish_seconds_count"] == 1
    assert after[f"{PREFIX}arena_bytes"] == 1 << 20 and after[f"{PREFIX}arena_used_bytes"] == 512
    pd.add(make_request("2", [Item("a")], params=e.answers["1"]))
    pd.run()
    assert exposition(registry)[f"{PREFIX}arena_used_bytes"] == 0, "an idle engine's gauge goes on"
    assert set(GAUGES) == {"arena_bytes", "arena_used_bytes"}


def test_gauges_that_several_processes_share_are_set_when_a_step_reports(
    start: Start, reported: dict[int, list[dict[str, Any]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", "set")
    monkeypatch.setattr(prometheus, "SHARED_GAUGES_S", 0.0)
    e = start("ec_producer")
    registry = CollectorRegistry()
    types = {kind: functools.partial(kind, registry=registry) for kind in (Counter, Gauge, Histogram)}
    metrics = ECIPCConnector.build_prom_metrics(e.config, types, ["model_name", "engine"], {0: ["m", "0"]})
    for number in (1, 2):
        e.add(make_request(str(number), [Item(f"item {number}")]))
        e.run()
        metrics.observe(reported[id(e.scheduler)][-1], 0)
        assert exposition(registry)[f"{PREFIX}arena_used_bytes"] == 512 * number


def test_times_come_from_processes_of_this_user_only_and_only_sensible_ones() -> None:
    engine = int.from_bytes(os.urandom(7), "big")
    receiver, sender = SideChannelReceiver(engine), SideChannelSender(engine)
    sender.publish += [0.5, 0.25]
    sender.flush()
    raw = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    for message in (
        b"",
        b"X" + bytes(8),
        b"P123",
        b"P" + struct.pack("2d", math.nan, -1.0),
        b"Z",
        b"S[1",
        b"S[[1]]",
    ):
        raw.sendto(message, _address(engine))
    assert receiver.take_times() == [0.5, 0.25]
    assert receiver.take_times() == []
    saved = [Saved(3, "caf\udcff", None), *(Saved(4, f"{i}", Token(i, 2, 7)) for i in range(300))]
    sender.saved += saved
    sender.flush()
    assert receiver.take_saved() == saved and receiver.take_saved() == []
    sender.flush()  # nothing to send
    second = SideChannelReceiver(engine)  # the address is taken
    assert second.take_times() == []
    receiver.close()
    sender.publish.append(1.0)
    sender.flush()  # nobody listens, and nothing is raised
    assert sender.publish == [] and receiver.take_times() == []
    raw.close()


def test_times_that_nobody_asks_for_do_not_pile_up() -> None:
    engine = int.from_bytes(os.urandom(7), "big")
    receiver, sender = SideChannelReceiver(engine), SideChannelSender(engine)
    for _ in range(3):
        sender.publish += [1.0] * MAX_TIMES
        sender.flush()
        receiver.take_saved()
    tally = Tally()
    tally.load_seconds += [1.0] * 3 * MAX_TIMES
    assert len(receiver.take_times()) == len(tally.load_seconds) == MAX_TIMES
    receiver.close()


def test_a_miss_without_a_producer_is_said_once_and_counted(
    start: Start, namespace: str, reported: dict[int, list[dict[str, Any]]], said: list[str]
) -> None:
    pd = start("ec_consumer")
    for number in range(3):
        pd.add(make_request(str(number), [Item(f"i{number}")]))
        pd.run()
    start("ec_producer")
    pd.add(make_request("last", [Item("last")]))
    pd.run()
    (line,) = [line for line in said if "no producer in namespace" in line]
    assert namespace in line
    assert total(reported[id(pd.scheduler)]).data["counters"] == {"misses": 4, "no_producer": 3}


def test_each_side_says_in_one_line_where_it_is_and_when_the_hand_over_works(
    start: Start, namespace: str, said: list[str]
) -> None:
    e, pd = start("ec_producer"), start("ec_consumer")
    for number in range(2):
        hand_over(e, pd, number, Item(f"item{number}"))
    for role in ("e.worker", "e.scheduler", "pd.worker", "pd.scheduler"):
        (line,) = [line for line in said if line.startswith(f"ec_ipc: {role} is slot")]
        for fact in (namespace, "segment /ec_ipc.", "fingerprint", "dtype", "model", "host of 1048576 bytes"):
            assert fact in line, (role, fact)
    assert sum("the hand-over works" in line for line in said) == 1
    assert sum("the first embedding is published" in line for line in said) == 1


def test_an_engine_leaves_a_note_as_long_as_it_is_there(start: Start, namespace: str) -> None:
    e = start("ec_producer")
    mine = [note for note in notes.read(os.getpid()) if note["namespace"] == namespace]
    assert sorted(note["role"] for note in mine) == ["e.scheduler", "e.worker"]
    assert all(note["both_caches_off"] is False and note["vllm"] for note in mine)
    assert identity.worker_role("ec_producer") == "e.worker" and e is not None

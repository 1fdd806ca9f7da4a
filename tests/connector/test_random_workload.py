"""Random requests, aborts and preemptions over several engines: right bytes, and nothing is left.

The gathers of the lockstep engines compare every tensor. Each case first shows that what it is about
did happen.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from vllm.v1.request import RequestStatus

from ec_ipc.cli import status
from ec_ipc.connector.consumer_scheduler import ConsumerScheduler

from .lockstep import WIDTH, Item, LockstepEngine, make_request
from .tensor_parallel import TensorParallelEngine

Start = Callable[..., LockstepEngine]
ITEM_BYTES = 16 * WIDTH * 4
PICTURES = [f"picture {i}" for i in range(8)]
REQUESTS, STEPS = 30, 4000


@dataclass
class Workload:
    """Requests go to a random E, then to a random PD; some are aborted on the way."""

    random: random.Random
    encoders: list[LockstepEngine]
    decoders: list[LockstepEngine]
    aborts: float
    pixels: Callable[[dict[str, Any] | None, list[str]], bool]
    at_e: dict[str, tuple[LockstepEngine, list[str]]] = field(default_factory=dict)
    at_pd: dict[str, LockstepEngine] = field(default_factory=dict)
    seen: Counter[str] = field(default_factory=Counter)
    sent: int = 0

    def run(self) -> None:
        for _ in range(STEPS):
            if self.sent < REQUESTS and len(self.at_e) < 4 and self.random.random() < 0.5:
                self._send()
            engine = self.random.choice([*self.encoders, *self.decoders])
            engine.step()
            if self.random.random() < self.aborts:
                self._abort()
            self._hand_on()
            if self.sent == REQUESTS and not self.at_e and not self.at_pd:
                break
        else:
            raise AssertionError(f"still busy: {list(self.at_e)} at E, {list(self.at_pd)} at PD")
        for engine in (*self.encoders, *self.decoders):
            engine.run()

    def _send(self) -> None:
        name = f"r{self.sent}"
        self.sent += 1
        pictures = [self.random.choice(PICTURES) for _ in range(self.random.choice([1, 1, 2, 3]))]
        e = self.random.choice(self.encoders)
        e.add(make_request(name, [Item(each) for each in pictures]))
        self.at_e[name] = e, pictures

    def _hand_on(self) -> None:
        for name, (e, pictures) in list(self.at_e.items()):
            if name in e.answers:
                del self.at_e[name]
                params = e.answers[name]
                has_pixels = self.pixels(params, pictures)
                pd = self.random.choice(self.decoders)
                items = [Item(each, pixels=has_pixels) for each in pictures]
                fields = {"max_tokens": self.random.choice([1, 5, 30]), "priority": self.random.randrange(3)}
                pd.add(make_request(name, items, params=params or {}, text=9, **fields))
                self.at_pd[name] = pd
        for name, pd in list(self.at_pd.items()):
            if name in pd.answers:
                del self.at_pd[name]

    def _abort(self) -> None:
        unfinished = {name: at for name, at in self.at_e.items() if name not in at[0].answers}
        where = self.random.choice([self.at_e, self.at_pd]) if unfinished else self.at_pd
        if not where:
            return
        name = self.random.choice(list(unfinished if where is self.at_e else where))
        if where is self.at_e:
            self.at_e.pop(name)[0].abort(name)
            self.seen["aborted at E"] += 1
        else:
            self.at_pd.pop(name).abort(name)
            self.seen["aborted at PD"] += 1


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often vLLM did what a case is about."""
    counted: Counter[str] = Counter()
    build = ConsumerScheduler.build_connector_meta

    def counting(self: ConsumerScheduler, output: Any) -> Any:
        dropped = set(output.free_encoder_mm_hashes) & self._next_step.pins.keys()
        counted["preempted between allocation and load"] += len(dropped)
        preempted = sum(s.request.status == RequestStatus.PREEMPTED for s in self._requests.values())
        counted["preempted"] += preempted
        return build(self, output)

    monkeypatch.setattr(ConsumerScheduler, "build_connector_meta", counting)
    return counted


def state(namespace: str) -> tuple[int, int, int, dict[str, int]]:
    found = status.collect(namespace)["namespaces"][0]
    used = sum(a["used_bytes"] for a in found["arenas"])
    return used, found["holds"], found["announced"], found["counters"]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("policy", ["fcfs", "priority"])
def test_nothing_is_left_and_nothing_fails(
    start: Start, namespace: str, seen: Counter[str], seed: int, policy: str
) -> None:
    args = {
        "scheduling_policy": policy,
        "enable_prefix_caching": seed % 2 == 0,
        "max_num_batched_tokens": 24,
        "max_num_seqs": 6,
    }
    short = {"max_num_batched_tokens": 48, "max_num_seqs": 4}
    encoders = [start("ec_producer", args=short) for _ in range(2)]
    decoders = [start("ec_consumer", blocks=13, args=args) for _ in range(2)]
    bare = random.Random(seed)
    work = Workload(random.Random(seed), encoders, decoders, 0.1, lambda *_: bare.random() < 0.5)
    work.run()
    assert not any(pd.errors for pd in decoders)
    used, holds, announced, counters = state(namespace)
    assert (used, holds, announced) == (0, 0, 0)
    assert counters["expired"] == counters["publish_skipped"] == 0
    # A request with pixels that is preempted after its read encodes what is gone by then.
    assert counters["misses"] <= sum(len(pd.encodes) for pd in decoders) <= seen["preempted"]
    assert seen["preempted"] and work.seen["aborted at E"] and work.seen["aborted at PD"], (seen, work.seen)


@pytest.mark.parametrize("seed", range(2))
def test_with_an_arena_of_three_items_all_goes_on(
    start: Start, namespace: str, seen: Counter[str], seed: int
) -> None:
    """Requests whose items E did not publish keep their pixels, as the proxy does it; others may lose their
    insurance to E's need for space, and then fail alone."""
    args = {"max_num_batched_tokens": 24, "max_num_seqs": 6}
    tight = {"arena_bytes": 3 * ITEM_BYTES, "wait_timeout_s": 0.05, "widths": {"image": WIDTH}}
    encoders = [start("ec_producer", **tight) for _ in range(2)]
    decoders = [start("ec_consumer", blocks=13, args=args, wait_timeout_s=0.05) for _ in range(2)]

    def pixels(params: dict[str, Any] | None, pictures: list[str]) -> bool:
        return seed % 2 == 0 or not set(pictures) <= (params or {}).keys()

    work = Workload(random.Random(seed), encoders, decoders, 0.1, pixels)
    work.run()
    if seed % 2 == 0:
        assert not any(pd.errors for pd in decoders)
    used, holds, announced, _ = state(namespace)
    assert (used, holds, announced) == (0, 0, 0)


@pytest.mark.parametrize("seed", range(1))
@pytest.mark.parametrize("read_mode", ["zero_copy", "copy"])
def test_as_a_cache_only_cached_bytes_are_left(
    start: Start, namespace: str, seed: int, read_mode: str
) -> None:
    keep = {"deallocate_cache": False}
    encoders = [
        start("ec_producer", arena_bytes=6 * ITEM_BYTES, widths={"image": WIDTH}, wait_timeout_s=5, **keep)
    ]
    args = {"max_num_batched_tokens": 24, "max_num_seqs": 6}
    decoders = [start("ec_consumer", blocks=13, args=args, read_mode=read_mode, **keep) for _ in range(2)]
    work = Workload(random.Random(seed), encoders, decoders, 0.1, lambda *_: True)
    work.run()
    used, holds, announced, counters = state(namespace)
    ready = status.collect(namespace)["namespaces"][0]["entries"]["ready"]
    assert used == ready * ITEM_BYTES and announced == 0 and counters["evicted"] > 0
    if read_mode == "copy":
        assert holds == 0


@pytest.mark.parametrize("runner", ["v1"], indirect=True)
@pytest.mark.parametrize("seed", range(4))
def test_with_two_ranks_of_which_one_is_late(
    start: Start, namespace: str, seen: Counter[str], seed: int
) -> None:
    args = {"max_num_batched_tokens": 24, "max_num_seqs": 6, "async_scheduling": True}
    encoders = [start("ec_producer")]
    decoders = [start("ec_consumer", kind=TensorParallelEngine, blocks=13, depth=2, args=args)]
    decoders[0].start_second()  # type: ignore[attr-defined]
    bare = random.Random(seed)
    work = Workload(random.Random(seed), encoders, decoders, 0.1, lambda *_: bare.random() < 0.5)
    work.run()
    assert not decoders[0].errors
    assert state(namespace)[:3] == (0, 0, 0) and seen["preempted"]

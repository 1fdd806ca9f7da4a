"""Many clients over a small arena, for a long time, through real engines.

    python tests/soak [--requests 2000] [--clients 16] [--images 200] [--arena-items 20] [--aborts 0.05]

Starts an ordinary engine, which answers every different request first; then E, PD and the proxy serve
the clients. Ends with status 1 when a token differs, a request fails, an engine's process has ended,
or shared memory is still in use afterwards. The last line has the figures.
"""

from __future__ import annotations

import argparse
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

REPO = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(REPO), str(REPO / "tests" / "e2e")]

from scenarios import leave, side_by_side  # noqa: E402

from examples.demo.chat import Picture, chat, picture  # noqa: E402
from examples.demo.deployment import (  # noqa: E402
    SINGLE,
    Deployment,
    StillInUse,
    Topology,
    deploy,
    in_use,
    is_idle,
    segments,
)
from examples.demo.engines import unique_namespace  # noqa: E402
from examples.demo.tiny_models import SPECS, make_model  # noqa: E402

MODEL = "llava"
ITEM_BYTES = SPECS[MODEL].image_tokens * SPECS[MODEL].hidden_size * 4
READ_TIMEOUT_S, WAIT_TIMEOUT_S = 15.0, 5.0
LATEST_ABORT_S = 0.6
REPORT_S = 15.0
AT_ONCE_TO_REFERENCE = 4

Question = tuple[int, ...]  # the numbers of its pictures


@dataclass
class Soak:
    """The clients' work, and what came of it."""

    questions: Sequence[Question]  # one for each request
    aborted: Sequence[bool]
    pictures: dict[int, Picture]
    expected: dict[Question, tuple[int, ...]]
    deployment: Deployment
    seen: Counter[str] = field(default_factory=Counter)
    errors: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)
    next: int = 0
    peak: int = 0

    def client(self, seed: int) -> None:
        delays = random.Random(seed)
        while (number := self._take()) is not None:
            question = self.questions[number]
            request = [self.pictures[i] for i in question]
            if self.aborted[number]:
                leave(self.deployment.proxy.url, request, after=delays.uniform(0, LATEST_ABORT_S))
                self._count("aborted")
                continue
            answer = self.deployment.ask(request, timeout=300)
            if not answer.ok:
                self._count("failed", f"request {number}: HTTP {answer.status}: {str(answer.body)[:200]}")
            elif answer.tokens != self.expected[question]:
                self._count("wrong", f"request {number}: {answer.tokens}, not {self.expected[question]}")
            else:
                self._count("right")

    def _take(self) -> int | None:
        with self.lock:
            if self.next == len(self.questions):
                return None
            self.next += 1
            return self.next - 1

    def _count(self, what: str, error: str | None = None) -> None:
        with self.lock:
            self.seen[what] += 1
            if error is not None:
                self.errors.append(error)

    def watch(self, done: threading.Event) -> None:
        begin = said = time.monotonic()
        while not done.wait(0.02):
            self.peak = max(self.peak, in_use(self.deployment.quick_status())["used_bytes"])
            if time.monotonic() - said > REPORT_S:
                said = time.monotonic()
                state = ", ".join(f"{count} {what}" for what, count in sorted(self.seen.items()))
                print(f"{said - begin:4.0f} s  {self.next} of {len(self.questions)}: {state}", flush=True)


def reference(url: str, questions: set[Question], pictures: dict[int, Picture]) -> dict[Question, tuple]:
    def one(question: Question) -> tuple[int, ...]:
        answer = chat(url, [pictures[i] for i in question])
        assert answer.ok, answer.body
        return answer.tokens

    ordered = sorted(questions)
    with ThreadPoolExecutor(AT_ONCE_TO_REFERENCE) as pool:
        return dict(zip(ordered, pool.map(one, ordered), strict=True))


def make_questions(options: argparse.Namespace, chance: random.Random) -> list[Question]:
    """Half of the questions are asked often; some have several pictures, some one picture twice."""
    kinds = [(i,) for i in range(options.images)]
    for _ in range(options.images // 2):
        kinds.append(tuple(chance.choices(range(options.images), k=chance.choice([2, 2, 3]))))
        kinds.append((chance.randrange(options.images),) * 2)
    favourites = chance.sample(kinds, len(kinds) // 10)
    asked = [chance.choice(favourites if chance.random() < 0.5 else kinds) for _ in range(options.requests)]
    asked[: len(kinds)] = kinds[: len(asked)]  # each kind once
    chance.shuffle(asked)
    return asked


def run(options: argparse.Namespace) -> bool:
    chance = random.Random(options.seed)
    questions = make_questions(options, chance)
    aborted = [chance.random() < options.aborts for _ in questions]
    pictures = {i: picture(1000 + i) for i in range(options.images)}
    distinct = len({i for question in questions for i in question})
    assert distinct > options.arena_items, "all pictures fit into the arena: the soak has no point"
    assert any(aborted) or not options.aborts
    arena_bytes = options.arena_items * ITEM_BYTES
    topology = Topology(
        single=True,
        extra={
            "arena_bytes": arena_bytes,
            "read_timeout_s": READ_TIMEOUT_S,
            "wait_timeout_s": WAIT_TIMEOUT_S,
        },
    )
    namespace = unique_namespace("soak")
    print(f"starting engines; {len(questions)} requests about {distinct} pictures", flush=True)
    with deploy(make_model(MODEL), topology, namespace=namespace, log_dir=options.logs) as deployment:
        begin = time.monotonic()
        expected = reference(deployment.servers[SINGLE].url, set(questions), pictures)
        deployment.servers[SINGLE].stop()
        seconds = time.monotonic() - begin
        print(f"{len(expected)} reference answers after {seconds:.0f} s", flush=True)
        served = [server for name, server in deployment.servers.items() if name != SINGLE]
        pids = {server.name: set(server.pids()) for server in served}
        soak = Soak(questions, aborted, pictures, expected, deployment)
        done = threading.Event()
        watcher = threading.Thread(target=soak.watch, args=(done,))
        watcher.start()
        begin = time.monotonic()
        side_by_side([lambda seed=seed: soak.client(seed) for seed in range(options.clients)])
        seconds = time.monotonic() - begin
        done.set()
        watcher.join()
        problems = soak.errors
        try:
            deployment.wait_until(is_idle, READ_TIMEOUT_S + 5)
        except StillInUse as error:
            problems.append(f"leak: {error}")
        restarted = [s.name for s in served if not s.alive() or not pids[s.name] <= set(s.pids())]
        problems += [f"a process of {name} has ended" for name in restarted]
        counters = deployment.counters()
    problems += [f"left behind: {path}" for path in segments(namespace)]
    if soak.peak > arena_bytes or counters["published"] * ITEM_BYTES <= arena_bytes:
        problems.append(f"the arena was not under pressure: {soak.peak} bytes at the peak, {counters}")
    for problem in problems[:20]:
        print(f"PROBLEM  {problem}")
    shown = ("published", "reads", "misses", "expired", "evicted", "publish_skipped", "late_releases")
    print(
        f"{'FAILED' if problems else 'ok'}: {len(questions)} requests from {options.clients} clients in "
        f"{seconds:.0f} s ({len(questions) / seconds:.1f}/s): {soak.seen['right']} right, "
        f"{soak.seen['wrong']} wrong, {soak.seen['failed']} failed, {soak.seen['aborted']} aborted; "
        f"{', '.join(f'{counters[name]} {name}' for name in shown)}; peak {soak.peak} of {arena_bytes} "
        f"bytes; {len(problems)} problems"
    )
    return not problems


def main() -> int:
    parser = argparse.ArgumentParser(description="Many clients over a small arena, through real engines.")
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--images", type=int, default=200)
    parser.add_argument("--arena-items", type=int, default=20)
    parser.add_argument("--aborts", type=float, default=0.05, help="share of clients that hang up")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--logs", type=Path, default=REPO / ".cache" / "logs" / "soak")
    return 0 if run(parser.parse_args()) else 1


if __name__ == "__main__":
    sys.exit(main())

"""How long after a kill -9 memory can be used again, and how long until a reader says that E is gone.

    python -m benchmarks.bench_reclaim [--full]

The holder and E are real processes that get SIGKILL. "Wanted": somebody needs the memory and asks for
it all the time. "Idle": nobody asks, and only the timers of the others notice.
"""

from __future__ import annotations

import multiprocessing as mp
import os
import random
import signal
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import torch

from ec_ipc import Store
from ec_ipc.errors import ArenaFull
from ec_ipc.maintenance import PERIOD_S

from .measure import Report, arguments, interleave, summary

ITEM = torch.ones(4, 1 << 20)  # 16 MiB
ARENA_BYTES = 24 << 20  # room for one
GIVE_UP_S = 20.0


class Victim:
    """A process that joins when told to, holds something, and is killed. Forked before this process
    has opened a store, for forking is quick and a store has a thread."""

    def __init__(self, hold: Callable[[str], Any], name: str) -> None:
        context = mp.get_context("fork")
        self._control, theirs = context.Pipe()
        self._process = context.Process(target=self._live, args=(hold, name, theirs), daemon=True)
        self._process.start()

    @staticmethod
    def _live(hold: Callable[[str], Any], name: str, control: Connection) -> None:
        control.recv()
        held = hold(name)
        control.send(True)
        signal.pause()
        del held

    def kill(self) -> float:
        """Let it join and hold, and kill it at a moment in step with nobody's timer. Says when."""
        self._control.send(True)
        assert self._control.recv()
        time.sleep(random.uniform(0, PERIOD_S))
        begin = time.perf_counter()
        assert self._process.pid is not None
        os.kill(self._process.pid, signal.SIGKILL)
        self._process.join()
        return begin


def _holder(name: str) -> Any:
    store = Store.open(name)
    return store, store.get("item")


def _encoder(name: str) -> Any:
    store = Store.open(name, arena="host", arena_bytes=ARENA_BYTES)
    return store, store.put("item", ITEM)


def until(condition: Callable[[], bool], begin: float) -> float:
    """Milliseconds from ``begin`` until it holds."""
    while not condition():
        if time.perf_counter() - begin > GIVE_UP_S:
            raise TimeoutError("not within the time that a reclaim may take")
        time.sleep(0.001)
    return (time.perf_counter() - begin) * 1e3


def _name() -> str:
    return f"bench-{os.getpid()}-{time.monotonic_ns()}"


def holder_wanted() -> float:
    victim = Victim(_holder, name := _name())
    with Store.open(name, arena="host", arena_bytes=ARENA_BYTES) as store:
        store.put("item", ITEM)
        begin = victim.kill()

        def fits() -> bool:
            try:
                store.put("next", ITEM)
            except ArenaFull:
                return False
            return True

        return until(fits, begin)


def holder_idle() -> float:
    victim = Victim(_holder, name := _name())
    with Store.open(name, arena="host", arena_bytes=ARENA_BYTES) as store:
        store.put("item", ITEM)
        begin = victim.kill()
        return until(lambda: not store.segment.entries(), begin)


def encoder_gone() -> float:
    victim = Victim(_encoder, name := _name())
    with Store.open(name) as store:
        begin = victim.kill()
        return until(lambda: store.get("item", announced=False) is None, begin)


CASES: dict[str, Callable[[], Any]] = {
    "a holder dies, its memory is wanted": holder_wanted,
    "a holder dies, everybody is idle": holder_idle,
    "E dies, until a reader says so": encoder_gone,
}


def main() -> None:
    options = arguments(__doc__)
    report = Report("bench_reclaim", "full" if options.full else "short")
    samples = interleave(20 if options.full else 6, CASES)
    cases = {name: summary(taken) for name, taken in samples.items()}
    for name, numbers in cases.items():
        print(f"{name:40} median {numbers['median']:.0f} ms, at most {numbers['max']:.0f} ms")
    print(report.write(options.out, period_s=PERIOD_S, milliseconds=cases))


if __name__ == "__main__":
    main()

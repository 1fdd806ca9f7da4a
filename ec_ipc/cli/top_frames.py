"""``ec-ipc top``: two looks at the directories, and what happened between them."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from ec_ipc.cli import status
from ec_ipc.cli.tables import size
from ec_ipc.errors import ECIPCError

BAR_WIDTH = 30

# What a second brought, from the growth of a counter.
RATES = (
    ("published", "published"),
    ("reads", "reads"),
    ("misses", "misses"),
    ("freed_by_last_reader", "freed"),
    ("evicted", "evicted"),
    ("expired", "expired"),
)


@dataclass(frozen=True)
class Look:
    """One namespace at one moment."""

    report: dict[str, Any]
    holds: dict[int, int]
    at: float


def look(namespace: str | None, unreadable: status.Complaint) -> dict[str, Look]:
    """Every namespace as it is now."""
    return {
        name: Look(status.describe(name, directory), directory.holds_by_slot(), time.monotonic())
        for name, directory in status.attached(namespace, unreadable)
    }


def run(
    console: Console, namespace: str | None, interval: float, once: bool, unreadable: status.Complaint
) -> None:
    """Show frames until interrupted, or one."""
    frames = _frames(namespace, interval, unreadable)
    if once:
        console.print(next(frames))
    elif console.is_terminal:
        with Live(console=console, screen=True, auto_refresh=False) as live:
            for frame in frames:
                live.update(frame, refresh=True)
    else:
        for frame in frames:
            console.print(frame)


def _frames(namespace: str | None, interval: float, unreadable: status.Complaint) -> Iterator[Group]:
    left_out: set[str] = set()

    def complain(name: str, error: ECIPCError) -> None:
        left_out.add(name)
        unreadable(name, error)

    before = look(namespace, complain)
    while True:
        time.sleep(interval)
        left_out.clear()
        now = look(namespace, complain)
        yield frame(before, now) if now else Group(Text(status.nothing(namespace, bool(left_out))))
        before = now


def frame(before: dict[str, Look], now: dict[str, Look]) -> Group:
    """All namespaces."""
    return Group(*(_namespace(before.get(name), seen) for name, seen in now.items()))


def _namespace(before: Look | None, seen: Look) -> Group:
    report = seen.report
    entries = report["entries"]
    title = Text(f"namespace {report['name']}", style="bold")
    title.append(f"  fingerprint {report['fingerprint'][:16]}", style="dim")
    numbers = Text(
        f"entries {entries['ready']} ready, {entries['writing']} writing, of {entries['capacity']}; "
        f"holds {report['holds']}, announced {report['announced']}"
    )
    return Group(
        title,
        _arenas(report),
        _participants(seen),
        numbers,
        _rates(before, seen),
        _ratio(before, seen),
        Text(),
    )


def _arenas(report: dict[str, Any]) -> Table | Text:
    if not report["arenas"]:
        return Text("no arena: no producer is here", style="yellow")
    table = Table(box=None, pad_edge=False, show_header=False)
    for arena in report["arenas"]:
        used, total = arena["used_bytes"], arena["bytes"]
        table.add_row(
            f"arena of {arena['owner']}",
            f"{arena['kind']} {arena['device']}",
            ProgressBar(total=total, completed=used, width=BAR_WIDTH),
            f"{size(used)} of {size(total)}, {100 * used / total:.0f} %",
        )
    return table


def _participants(seen: Look) -> Table:
    table = Table(box=None, pad_edge=False)
    for column in ("slot", "role", "pid", "", "holds"):
        table.add_column(column, justify="left" if column in ("role", "") else "right")
    for participant in seen.report["participants"]:
        alive = Text("alive", style="green") if participant["alive"] else Text("dead", style="red")
        slot = participant["slot"]
        holds = str(seen.holds.get(slot, 0))
        table.add_row(str(slot), participant["role"], str(participant["pid"]), alive, holds)
    return table


def growth(before: Look | None, seen: Look) -> dict[str, int]:
    """By how much each counter grew; a namespace that is new, or was made anew, grew from nothing."""
    counters: dict[str, int] = seen.report["counters"]
    old: dict[str, int] = {} if before is None else before.report["counters"]
    if any(counters[name] < value for name, value in old.items()):
        old = {}
    return {name: value - old.get(name, 0) for name, value in counters.items()}


def _rates(before: Look | None, seen: Look) -> Text:
    if before is None:
        return Text("rates: the namespace is new")
    seconds = max(seen.at - before.at, 1e-9)
    grown = growth(before, seen)
    words = [f"{label} {grown[counter] / seconds:.1f}/s" for counter, label in RATES]
    written = f"{size(grown['bytes_published'] / seconds)}/s written"
    return Text(", ".join([*words[:3], written]) + "\n" + ", ".join(words[3:]))


def _ratio(before: Look | None, seen: Look) -> Text:
    counters = seen.report["counters"]
    recent = growth(before, seen) if before is not None else counters
    return Text(
        f"hit ratio {hit_ratio(recent)} now, {hit_ratio(counters)} since the start "
        f"({counters['reads']} reads, {counters['misses']} misses)"
    )


def hit_ratio(counters: dict[str, int]) -> str:
    """Reads out of reads and misses; a dash without any."""
    asked = counters["reads"] + counters["misses"]
    return f"{100 * counters['reads'] / asked:.0f} %" if asked else "-"

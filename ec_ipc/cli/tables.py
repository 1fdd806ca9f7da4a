"""How ``status`` and ``doctor`` look on a terminal. Without one, rich leaves the colours out."""

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ec_ipc.cli.doctor.finding import Finding, Level

STYLES = {Level.OK: "green", Level.INFO: "cyan", Level.WARNING: "yellow", Level.PROBLEM: "bold red"}


def status(found: dict[str, Any]) -> Table:
    """One namespace of ``status``."""
    table = Table(title=f"namespace {found['name']}", show_header=False, title_justify="left")
    table.add_row("fingerprint", f"{found['fingerprint'][:16]}..., layout {found['layout']}")
    for participant in found["participants"]:
        alive = "alive" if participant["alive"] else "dead"
        table.add_row(
            f"participant {participant['slot']}", f"{participant['role']}, pid {participant['pid']}, {alive}"
        )
    for arena in found["arenas"]:
        used = f"{size(arena['used_bytes'])} of {size(arena['bytes'])} used"
        table.add_row(f"arena of {arena['owner']}", f"{arena['kind']} on {arena['device']}, {used}")
    entries = found["entries"]
    table.add_row(
        "entries", f"{entries['ready']} ready, {entries['writing']} writing, of {entries['capacity']}"
    )
    table.add_row("holds", str(found["holds"]))
    table.add_row("announced", str(found["announced"]))
    for counter, value in found["counters"].items():
        table.add_row(counter, size(value) if counter.startswith("bytes_") else str(value))
    return table


def findings(console: Console, found: Sequence[Finding]) -> None:
    """One line a finding, its remedy below; a summary at the end."""
    for finding in found:
        line = Text(f"{finding.level.value:<8} ", style=STYLES[finding.level])
        line.append(f"{finding.check}: ", style="bold")
        line.append(finding.text, style="default")
        console.print(line, highlight=False, soft_wrap=True)
        if finding.remedy:
            console.print(Text(f"{'':9}remedy: {finding.remedy}"), highlight=False, soft_wrap=True)
    problems = sum(finding.level is Level.PROBLEM for finding in found)
    warnings = sum(finding.level is Level.WARNING for finding in found)
    console.print(
        Text(f"{problems} problem{'s' * (problems != 1)}, {warnings} warning{'s' * (warnings != 1)}")
    )


def size(count: float) -> str:
    """Bytes for people."""
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" or count >= 100 else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"

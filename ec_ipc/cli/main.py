"""``ec-ipc``: look at what engines on this node share, and clean up what dead ones left."""

import json
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from ec_ipc import names, segment
from ec_ipc.cli import status as status_report
from ec_ipc.errors import ECIPCError

app = typer.Typer(no_args_is_help=True, add_completion=True, help=__doc__)

Namespace = Annotated[str | None, typer.Option(help="Only this namespace.")]


def _fail(error: ECIPCError) -> typer.Exit:
    Console(stderr=True).print(f"ec-ipc: {error}", style="red", highlight=False)
    return typer.Exit(1)


@app.command()
def status(
    namespace: Namespace = None,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON on standard output.")] = False,
) -> None:
    """Say who shares what: participants, arenas, entries, holds and counters."""
    try:
        report = status_report.collect(namespace)
    except ECIPCError as error:
        raise _fail(error) from error
    if as_json:
        print(json.dumps(report))
        return
    console = Console()
    if not report["namespaces"]:
        console.print("no namespace of this user exists now")
    for found in report["namespaces"]:
        console.print(_table(found))


def _table(found: dict) -> Table:  # type: ignore[type-arg]
    table = Table(title=f"namespace {found['name']}", show_header=False, title_justify="left")
    for participant in found["participants"]:
        alive = "alive" if participant["alive"] else "dead"
        table.add_row(
            f"participant {participant['slot']}", f"{participant['role']}, pid {participant['pid']}, {alive}"
        )
    for arena in found["arenas"]:
        table.add_row(
            f"arena of {arena['owner']}",
            f"{arena['kind']} on {arena['device']}, {arena['used_bytes']} of {arena['bytes']} bytes used",
        )
    entries = found["entries"]
    table.add_row(
        "entries", f"{entries['ready']} ready, {entries['writing']} writing, of {entries['capacity']}"
    )
    table.add_row("holds", str(found["holds"]))
    table.add_row("announced", str(found["announced"]))
    for counter, value in found["counters"].items():
        table.add_row(counter, str(value))
    return table


@app.command()
def reap(namespace: Namespace = None) -> None:
    """Take back what dead processes held, and remove namespaces in which nobody lives."""
    console = Console()
    for name in [namespace] if namespace is not None else list(names.namespaces()):
        try:
            console.print(f"{name}: {segment.reap(name)}", highlight=False)
        except ECIPCError as error:
            raise _fail(error) from error


@app.command()
def reset(namespace: Annotated[str, typer.Option(help="The namespace to remove.")]) -> None:
    """Remove a namespace whose engines are stopped. Refused while a participant lives."""
    try:
        Console().print(f"{namespace}: {segment.remove(namespace)}", highlight=False)
    except ECIPCError as error:
        raise _fail(error) from error

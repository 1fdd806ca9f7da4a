"""The ``ec-ipc`` command line: what each command takes, prints and ends with."""

import json
from typing import Annotated

import typer
from rich.console import Console

from ec_ipc import __version__, names, segment
from ec_ipc.cli import doctor as examination
from ec_ipc.cli import status as status_report
from ec_ipc.cli import tables, top_frames
from ec_ipc.errors import ECIPCError

EXIT_CODES = (
    "Exit codes: 0 all is well; 1 it could not be done, or doctor found a problem; "
    "2 the command line is wrong."
)

HELP = "Look at what engines on this node share, find what is wrong, clean up what is dead."

app = typer.Typer(no_args_is_help=True, add_completion=True)

Namespace = Annotated[str | None, typer.Option(help="Only this namespace.")]
AsJson = Annotated[bool, typer.Option("--json", help="As JSON on standard output.")]


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"ec-ipc {__version__}")
        raise typer.Exit


@app.callback(help=HELP, epilog=EXIT_CODES)
def command_line(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """What stands before a command."""


def _say(error: str) -> None:
    Console(stderr=True).print(f"ec-ipc: {error}", style="red", highlight=False, markup=False, soft_wrap=True)


def _fail(error: ECIPCError) -> typer.Exit:
    _say(str(error))
    return typer.Exit(1)


class _Complaints:
    """Says once on standard error which namespaces are left out, and why."""

    def __init__(self) -> None:
        self.said: dict[str, str] = {}

    def __call__(self, namespace: str, error: ECIPCError) -> None:
        if self.said.get(namespace) != str(error):
            self.said[namespace] = str(error)
            _say(f"namespace {namespace} is left out: {error}")


@app.command(epilog=EXIT_CODES)
def status(namespace: Namespace = None, as_json: AsJson = False) -> None:
    """Say who shares what: participants, arenas, entries, holds and counters.

    A namespace that cannot be read is named on standard error and left out. The exit code is 0 also
    when there is none, and 1 when the one that was asked for cannot be read.
    """
    complaints = _Complaints()
    try:
        report = status_report.collect(namespace, complaints)
    except ECIPCError as error:
        raise _fail(error) from error
    if as_json:
        print(json.dumps(report))
    else:
        console = Console()
        if not report["namespaces"]:
            sentence = status_report.nothing(namespace, bool(complaints.said))
            console.print(sentence, highlight=False, markup=False, soft_wrap=True)
        for found in report["namespaces"]:
            console.print(tables.status(found))
    if namespace is not None and complaints.said:
        raise typer.Exit(1)


@app.command(epilog=EXIT_CODES)
def top(
    namespace: Namespace = None,
    once: Annotated[bool, typer.Option("--once", help="Print one frame and end.")] = False,
    interval: Annotated[float, typer.Option(min=0.1, max=3600, help="Seconds that rates cover.")] = 1.0,
) -> None:
    """Show live what is shared: arenas, entries, holds by participant, rates and hit ratio.

    Ends with Ctrl-C. Where standard output is no terminal, frames are printed one after the other.
    """
    try:
        top_frames.run(Console(), namespace, interval, once, _Complaints())
    except ECIPCError as error:
        raise _fail(error) from error
    except KeyboardInterrupt:
        pass


@app.command(epilog=EXIT_CODES)
def doctor(
    namespace: Namespace = None,
    arena_bytes: Annotated[
        int, typer.Option(min=1, help="The arena that you mean to use; vLLM's ec_buffer_size by default.")
    ] = examination.DEFAULT_ARENA_BYTES,
    as_json: AsJson = False,
    strict: Annotated[bool, typer.Option("--strict", help="Warnings count as problems.")] = False,
) -> None:
    """Find what keeps engines from meeting or sharing, each with its remedy.

    Needs neither a GPU nor vLLM nor root. Ends with 1 when something would break.
    """
    try:
        findings = examination.examine(namespace, arena_bytes)
    except ECIPCError as error:
        raise _fail(error) from error
    if as_json:
        print(json.dumps({"findings": [finding.as_json() for finding in findings]}))
    else:
        tables.findings(Console(), findings)
    if any(finding.level in examination.failing(strict) for finding in findings):
        raise typer.Exit(1)


@app.command(epilog=EXIT_CODES)
def reap(namespace: Namespace = None) -> None:
    """Take back what dead processes held, and remove namespaces in which nobody lives.

    Goes on after one that cannot be reaped, and ends with 1.
    """
    console = Console()
    failed = False
    for name in [namespace] if namespace is not None else list(names.namespaces()):
        try:
            console.print(f"{name}: {segment.reap(name)}", highlight=False, markup=False, soft_wrap=True)
        except ECIPCError as error:
            _say(f"{name}: {error}")
            failed = True
    if failed:
        raise typer.Exit(1)


@app.command(epilog=EXIT_CODES)
def reset(namespace: Annotated[str, typer.Option(help="The namespace to remove.")]) -> None:
    """Remove a namespace whose engines are stopped, whatever its layout.

    Refused while a participant lives.
    """
    try:
        Console().print(f"{namespace}: {segment.remove(namespace)}", highlight=False, soft_wrap=True)
    except ECIPCError as error:
        raise _fail(error) from error

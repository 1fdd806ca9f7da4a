"""Shows two engines sharing embeddings, and checks their answers against one engine.

    python -m examples.demo.demo [--model qwen3vl|llava] [IMAGE ...]

Starts an ordinary engine, E, PD and a proxy with a tiny random model, sends the same
pictures to both, and prints for each request whether the tokens are equal, what E encoded
and what was shared. Ends with status 1 if an answer differs or memory is still in use.
"""

from __future__ import annotations

import argparse
import signal
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Literal

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from .chat import Answer, Picture, chat, picture, picture_file
from .deployment import (
    PROXY,
    SINGLE,
    Deployment,
    StillInUse,
    Topology,
    deploy,
    in_use,
    is_idle,
    segments,
)
from .engines import Server, ServerFailed, unique_namespace
from .tiny_models import SPECS, make_model

ARENA_BYTES = 8 << 20
SPINNING_S = 1.2  # a vLLM worker spins for a second after a request, which would slow the others
HEARTBEAT_S = 10.0
MAX_MODEL_LEN = 2048


@dataclass
class Wave:
    """Requests that are sent at the same time; one row of the table."""

    label: str
    requests: list[list[Picture]]
    expected: list[Answer] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)
    delta: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def pictures(self) -> int:
        return sum(len(request) for request in self.requests)

    def equal(self) -> bool:
        return bool(self.expected) and [a.tokens for a in self.answers] == [a.tokens for a in self.expected]

    def error(self) -> str | None:
        """Why a request failed, if one did."""
        for answer in [*self.expected, *self.answers]:
            if not answer.ok or not answer.tokens:
                return f"HTTP {answer.status}: {str(answer.body)[:300]}"
        return None


def pictures_to_send(paths: Sequence[str]) -> list[Wave]:
    """The user's files, or generated ones; each of them alone, then some together."""
    if paths:
        single = [picture_file(path) for path in paths]
    else:
        single = [
            picture(1, (96, 96), "PNG"),
            picture(2, (320, 200), "JPEG"),
            picture(3, (64, 256), "PNG"),
        ]
    first, last = single[0], single[-1]
    waves = [Wave(item.label, [[item]]) for item in single]
    waves.append(Wave("the first again", [[first]]))
    if len(single) > 1:
        waves.append(Wave("first and last", [[first, last]]))
    waves.append(Wave("the last twice in one", [[last, last]]))
    waves.append(Wave("all of these at once", [request for wave in waves for request in wave.requests]))
    return waves


class PeakMemory(threading.Thread):
    """Looks at the bytes in use all the time."""

    def __init__(self, deployment: Deployment) -> None:
        super().__init__(daemon=True)
        self.deployment = deployment
        self.peak = 0
        self.done = threading.Event()

    def run(self) -> None:
        while not self.done.wait(0.005):
            self.peak = max(self.peak, in_use(self.deployment.quick_status())["used_bytes"])

    def __enter__(self) -> PeakMemory:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.done.set()
        self.join()


class BootReport:
    """Says how the engines come up, in place on a terminal and now and then elsewhere."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.begin = time.monotonic()
        self.said = self.begin
        self.status = console.status("starting three engines") if console.is_terminal else None

    def __call__(self, servers: Sequence[Server]) -> None:
        now = time.monotonic()
        up = [server.name for server in servers if server.boot_s or server.healthy()]
        seconds = f"{now - self.begin:3.0f} s"
        text = f"{seconds}, starting three engines (about a minute); up: {', '.join(up) or 'none yet'}"
        if self.status is not None:
            self.status.start()
            self.status.update(text)
        elif now - self.said > HEARTBEAT_S:
            self.said = now
            self.console.print(text, highlight=False)

    def stop(self) -> None:
        if self.status is not None:
            self.status.stop()


def send(url: str, wave: Wave) -> list[Answer]:
    with ThreadPoolExecutor(len(wave.requests)) as pool:
        return list(pool.map(lambda request: chat(url, request), wave.requests))


def run_wave(deployment: Deployment, wave: Wave) -> None:
    with deployment.counters_delta() as wave.delta:
        begin = time.monotonic()
        wave.answers = send(deployment.proxy.url, wave)
        wave.seconds = time.monotonic() - begin
        deployment.wait_until(is_idle, 5)


def size(count: int) -> str:
    return f"{count / 1024:.0f} KiB" if count < 1 << 20 else f"{count / (1 << 20):.1f} MiB"


def row(number: int, wave: Wave) -> list[str]:
    encoded = wave.delta.get("published", 0) - wave.delta.get("republished", 0)
    copied = wave.delta.get("localised", 0)
    return [
        str(number),
        wave.label,
        "[green]yes[/]" if wave.equal() else "[bold red]NO[/]",
        str(encoded),
        str(max(0, wave.pictures - encoded)),
        size(wave.delta.get("bytes_published", 0)),
        "0" if copied == 0 else f"[red]{copied} items[/]",
        f"{wave.seconds:.2f} s",
    ]


COLUMNS: tuple[tuple[str, Literal["left", "center", "right"], int], ...] = (
    ("", "right", 1),
    ("request", "left", 10),
    ("equal", "center", 5),
    ("encoded", "right", 7),
    ("reused", "right", 6),
    ("shared", "right", 8),
    ("copied", "right", 6),
    ("time", "right", 6),
)
LEGEND = (
    "equal: E and PD answered with the tokens of one engine. encoded: pictures that E encoded for the "
    "request. reused: those that needed no encoding: they were still in shared memory, or, freed there by "
    "their last reader, in E's own cache, from which E puts them there again. shared: what "
    "E put into shared memory. copied: embeddings that PD copied out of it instead of reading them in place."
)


def make_table(model: str) -> Table:
    title = f"E and PD compared with one engine ({model})"
    table = Table(title=title, title_justify="left", box=SIMPLE, padding=(0, 1, 0, 0), pad_edge=False)
    for name, justify, width in COLUMNS:
        table.add_column(name, justify=justify, no_wrap=True, min_width=width)
    return table


def report(console: Console, model: str, waves: Sequence[Wave], memory: Sequence[int]) -> bool:
    """Print what happened. True if everything is as it should be."""
    table = make_table(model)
    for number, wave in enumerate(waves, 1):
        table.add_row(*row(number, wave))
    console.print(table)
    console.print(LEGEND, style="dim", highlight=False)
    before, peak, after = memory
    console.print(
        f"shared memory in use: {size(before)} before, {size(peak)} at the peak, {size(after)} after",
        highlight=False,
    )
    errors = [text for text in (wave.error() for wave in waves) if text]
    for text in errors:
        console.print(text, style="red", highlight=False, markup=False)
    good = not errors and all(wave.equal() for wave in waves) and after == 0
    console.print(
        "[green]Every answer equals the single engine's, and no shared memory is in use."
        if good
        else "[bold red]Something is wrong: see above."
    )
    return good


def run(console: Console, model: str, waves: list[Wave], logs: Path | None) -> bool:
    namespace = unique_namespace("demo")
    console.print(f"making the model ({model}, random weights)")
    folder = make_model(model)
    boot = BootReport(console)
    topology = Topology(single=True, extra={"arena_bytes": ARENA_BYTES}, max_model_len=MAX_MODEL_LEN)
    with ExitStack() as stack:
        stack.callback(boot.stop)
        deployment = stack.enter_context(
            deploy(folder, topology, namespace=namespace, log_dir=logs, tick=boot)
        )
        boot.stop()
        took = time.monotonic() - boot.begin
        console.print(f"single engine, E, PD and proxy are up after {took:.0f} s", highlight=False)
        single = deployment.servers[SINGLE]
        for wave in waves:
            wave.expected = [chat(single.url, request) for request in wave.requests]
        single.stop()
        time.sleep(SPINNING_S)
        before = in_use(deployment.quick_status())["used_bytes"]
        with PeakMemory(deployment) as memory:
            for number, wave in enumerate(waves, 1):
                console.print(f"request {number} of {len(waves)}: {wave.label}", highlight=False)
                try:
                    run_wave(deployment, wave)
                except StillInUse as error:
                    console.print(str(error), style="red", highlight=False)
        after = in_use(deployment.status())["used_bytes"]
        good = report(console, model, waves, (before, memory.peak, after))
        for server in deployment.servers.values():
            if server.name not in (SINGLE, PROXY):
                server.check()
        console.print("stopping the engines")
    left = segments(namespace)
    for path in left:
        console.print(f"left behind: {path}", style="red")
    return good and not left


def raise_interrupt(number: int, frame: FrameType | None) -> None:
    """The first signal ends the demo; later ones must not disturb the cleaning up."""
    for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(each, signal.SIG_IGN)
    raise KeyboardInterrupt


def main() -> int:
    parser = argparse.ArgumentParser(description="Two engines share embeddings, compared with one engine.")
    parser.add_argument("images", nargs="*", metavar="IMAGE", help="picture files to send")
    parser.add_argument("--model", choices=[name for name in SPECS if "large" not in name], default="qwen3vl")
    parser.add_argument("--logs", type=Path, help="keep the servers' logs in this folder")
    options = parser.parse_args()
    console = Console()
    try:
        waves = pictures_to_send(options.images)
    except (OSError, ValueError) as error:
        parser.error(f"not a picture: {error}")
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, raise_interrupt)
    try:
        return 0 if run(console, options.model, waves, options.logs) else 1
    except KeyboardInterrupt:
        console.print("stopped; nothing is left running")
        return 130
    except ServerFailed as error:
        console.print(str(error), style="red", highlight=False, markup=False)
        return 1


if __name__ == "__main__":
    sys.exit(main())

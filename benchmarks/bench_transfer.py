"""Hand one embedding to another process: ec_ipc next to what else does it, in one run.

    python -m benchmarks.bench_transfer [--full] [--sizes 65536,16777216]

Two real processes, with one torch thread each and then with one for each core. All rows run in every round,
in an order of its own; the hand-over is wall time from the beginning of the publication to the reader's
having touched the last byte. The CPU time of both processes is what is left of it when the machine has
other work as well.
"""

from __future__ import annotations

import multiprocessing as mp
import os
import time
import traceback
from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import Any

import torch
import torch.multiprocessing as torch_mp

from .measure import Report, arguments, interleave, microseconds, ratio, size_name, summary
from .transfer_rows import ROWS, BareCopy, EcIpc, Places

KIB, MIB = 1 << 10, 1 << 20
SIZES = (64 * KIB, MIB, 4 * MIB, 16 * MIB, 64 * MIB, 256 * MIB)
WIDTH = 4096
IDLE_S = 0.005  # before each hand-over: torch's threads spin for a while after the row before
PHASES = ("publish", "look-up", "read", "touch", "hand-over", "CPU")


def rounds_for(nbytes: int, full: bool) -> int:
    few = 40 if nbytes <= 4 * MIB else 20 if nbytes <= 16 * MIB else 12 if nbytes <= 64 * MIB else 7
    return few * (5 if full else 1)


def reader(places: Places, control: Connection, threads: int) -> None:
    """The other process: does what it is told, and says when it was done with each part."""
    torch.set_num_threads(threads)
    rows = [row(places, writes=False) for row in ROWS]
    control.send("ready")
    while (order := control.recv()) is not None:
        try:
            index, payload = order
            row = rows[index]
            cpu = time.process_time_ns()
            begin = time.perf_counter_ns()
            place = row.locate(payload)
            located = time.perf_counter_ns()
            tensor = row.read(place)
            read = time.perf_counter_ns()
            tensor.sum()
            touched = time.perf_counter_ns()
            cpu = time.process_time_ns() - cpu
            edges = float(tensor.view(-1)[0]), float(tensor.view(-1)[-1]), tuple(tensor.shape)
            del tensor
            control.send((begin, located, read, touched, cpu, edges))
        except Exception:
            control.send(traceback.format_exc())
    for row in rows:
        row.close()


class Writer:
    """This process: one hand-over at a time."""

    def __init__(self, places: Places, control: Connection, threads: int) -> None:
        torch.set_num_threads(threads)
        self.rows = [row(places, writes=True) for row in ROWS]
        self.control = control
        self.count = 0

    def hand_over(self, index: int, source: torch.Tensor) -> dict[str, float]:
        """Microseconds of each phase."""
        row = self.rows[index]
        self.count += 1
        source.view(-1)[0] = source.view(-1)[-1] = self.count
        tensor = row.prepare(source)
        key = f"item-{self.count}"
        time.sleep(IDLE_S)
        if row.announces_itself:
            self.control.send((index, None))  # the reader waits for the bytes
            time.sleep(0.001)
        cpu = time.process_time_ns()
        begin = time.perf_counter_ns()
        payload = row.publish(key, tensor)
        published = time.perf_counter_ns()
        publish_cpu = time.process_time_ns() - cpu
        if not row.announces_itself:
            self.control.send((index, payload))
        answer = self.control.recv()
        cpu = time.process_time_ns() - cpu  # of every thread: some rows publish in the background
        if isinstance(answer, str):
            raise RuntimeError(f"{row.name}: {answer}")
        told, located, read, touched, reader_cpu, edges = answer
        if edges != (self.count, self.count, tuple(source.shape)):
            raise AssertionError(f"{row.name} handed over {edges} instead of {self.count}")
        row.clean(key)
        spans = {
            "publish": published - begin,
            "look-up": 0 if row.announces_itself else located - told,
            # 0 for a reader that had it all before the publication's call returned
            "read": max(0, read - max(located, published if row.announces_itself else 0)),
            "touch": touched - read,
            "hand-over": touched - begin,
            "CPU": cpu + reader_cpu,
            "CPU of publish": publish_cpu,
        }
        return {name: span / 1e3 for name, span in spans.items()}

    def close(self) -> None:
        self.control.send(None)
        for row in self.rows:
            row.close()


def measure(writer: Writer, nbytes: int, rounds: int) -> dict[str, dict[str, Any]]:
    """Row -> phase -> summary, and how many times the hand-over of ec_ipc and of a bare copy it is."""
    source = torch.arange(nbytes // 4, dtype=torch.float32).remainder_(251).view(-1, min(WIDTH, nbytes // 4))
    bodies = {row.name: (lambda i=i: writer.hand_over(i, source)) for i, row in enumerate(ROWS)}
    interleave(2, bodies)  # first touches, imports, allocations
    samples = interleave(rounds, bodies)
    spans = {
        name: {phase: [s[phase] for s in taken] for phase in (*PHASES, "CPU of publish")}
        for name, taken in samples.items()
    }
    ours, limit = spans[EcIpc.name], spans[BareCopy.name]
    return {
        row.name: {
            **{phase: summary(spans[row.name][phase]) for phase in PHASES},
            "of_ec_ipc": ratio(spans[row.name]["hand-over"], ours["hand-over"]),
            "cpu_of_ec_ipc": ratio(spans[row.name]["CPU"], ours["CPU"]),
            "publish_of_bare_copy": ratio(spans[row.name]["publish"], limit["publish"]),
            "publish_cpu_of_bare_copy": ratio(spans[row.name]["CPU of publish"], limit["CPU of publish"]),
            "copied_bytes": row.copies * nbytes,
        }
        for row in ROWS
    }


def run(sizes: list[int], threads: int, full: bool) -> Iterator[tuple[int, dict[str, dict[str, Any]]]]:
    """The results of each size, as soon as they are there."""
    context = mp.get_context("spawn")
    places = Places.make(torch_mp.get_context("spawn").Queue())
    ours, theirs = context.Pipe()
    writer = process = None
    try:
        writer = Writer(places, ours, threads)
        process = context.Process(target=reader, args=(places, theirs, threads), daemon=True)
        process.start()
        ours.recv()
        for nbytes in sizes:
            rows = measure(writer, nbytes, rounds_for(nbytes, full))
            show(nbytes, threads, rows)
            yield nbytes, rows
    finally:
        if writer is not None and process is not None:
            writer.close()
            process.join(20)
        places.remove()


def show(nbytes: int, threads: int, rows: dict[str, dict[str, Any]]) -> None:
    phases = "".join(f"{phase:>11}" for phase in PHASES)
    print(f"\n{f'{size_name(nbytes)}, {threads} threads':28}{phases}   of ec_ipc (CPU)")
    for name, numbers in rows.items():
        spans = "".join(f"{microseconds(numbers[phase]['median']):>11}" for phase in PHASES)
        factors = (numbers[key]["median"] for key in ("of_ec_ipc", "cpu_of_ec_ipc"))
        print(f"{name:28}{spans}" + "{:>10.2f} ({:.2f})".format(*factors), flush=True)


def main() -> None:
    options = arguments(__doc__, sizes={"default": "", "help": "bytes, separated by commas"})
    sizes = [int(size) for size in options.sizes.split(",") if size] or list(SIZES)
    report = Report("bench_transfer", "full" if options.full else "short")
    results: dict[str, dict[str, Any]] = {}
    for threads in sorted({1, os.cpu_count() or 1}):
        for nbytes, rows in run(sizes, threads, options.full):
            results.setdefault(str(threads), {})[str(nbytes)] = rows
    print(report.write(options.out, threads=results))


if __name__ == "__main__":
    main()

"""Hand one embedding to another process: ec_ipc next to what else does it, in one run.

    python -m benchmarks.bench_transfer [--full] [--sizes 65536,16777216]

Two real processes with one torch thread each. All rows take turns in every round; the hand-over is
wall time from the beginning of the publication to the reader's having touched the last byte.
"""

from __future__ import annotations

import multiprocessing as mp
import time
import traceback
from multiprocessing.connection import Connection
from typing import Any

import torch
import torch.multiprocessing as torch_mp

from .measure import Report, arguments, interleave, microseconds, ratio, size_name, summary
from .transfer_rows import ROWS, BareCopy, EcIpc, Places

KIB, MIB = 1 << 10, 1 << 20
SIZES = (64 * KIB, MIB, 4 * MIB, 16 * MIB, 64 * MIB, 256 * MIB)
WIDTH = 4096
PHASES = ("publish", "look-up", "read", "touch", "hand-over")


def rounds_for(nbytes: int, full: bool) -> int:
    few = 40 if nbytes <= 4 * MIB else 20 if nbytes <= 16 * MIB else 12 if nbytes <= 64 * MIB else 7
    return few * (5 if full else 1)


def reader(places: Places, control: Connection) -> None:
    """The other process: does what it is told, and says when it was done with each part."""
    torch.set_num_threads(1)
    rows = [row(places, writes=False) for row in ROWS]
    control.send("ready")
    while (order := control.recv()) is not None:
        try:
            index, payload = order
            row = rows[index]
            begin = time.perf_counter_ns()
            place = row.locate(payload)
            located = time.perf_counter_ns()
            tensor = row.read(place)
            read = time.perf_counter_ns()
            tensor.sum()
            touched = time.perf_counter_ns()
            edges = float(tensor.view(-1)[0]), float(tensor.view(-1)[-1]), tuple(tensor.shape)
            del tensor
            control.send((begin, located, read, touched, edges))
        except Exception:
            control.send(traceback.format_exc())
    for row in rows:
        row.close()


class Writer:
    """This process: one hand-over at a time."""

    def __init__(self, places: Places, control: Connection) -> None:
        torch.set_num_threads(1)
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
        if row.announces_itself:
            self.control.send((index, None))  # the reader waits for the bytes
            time.sleep(0.001)
            begin = time.perf_counter_ns()
            row.publish(key, tensor)
            published = time.perf_counter_ns()
        else:
            begin = time.perf_counter_ns()
            payload = row.publish(key, tensor)
            published = time.perf_counter_ns()
            self.control.send((index, payload))
        answer = self.control.recv()
        if isinstance(answer, str):
            raise RuntimeError(f"{row.name}: {answer}")
        told, located, read, touched, edges = answer
        if edges != (self.count, self.count, tuple(source.shape)):
            raise AssertionError(f"{row.name} handed over {edges} instead of {self.count}")
        row.clean(key)
        spans = {
            "publish": published - begin,
            "look-up": 0 if row.announces_itself else located - told,
            "read": read - max(located, published if row.announces_itself else 0),
            "touch": touched - read,
            "hand-over": touched - begin,
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
    spans = {name: {phase: [s[phase] for s in taken] for phase in PHASES} for name, taken in samples.items()}
    ours, limit = spans[EcIpc.name], spans[BareCopy.name]
    return {
        row.name: {
            **{phase: summary(spans[row.name][phase]) for phase in PHASES},
            "of_ec_ipc": ratio(spans[row.name]["hand-over"], ours["hand-over"]),
            "publish_of_bare_copy": ratio(spans[row.name]["publish"], limit["publish"]),
            "copied_bytes": row.copies * nbytes,
        }
        for row in ROWS
    }


def run(sizes: list[int], full: bool) -> dict[int, dict[str, dict[str, Any]]]:
    context = mp.get_context("spawn")
    places = Places.make(torch_mp.get_context("spawn").Queue())
    ours, theirs = context.Pipe()
    writer = process = None
    try:
        writer = Writer(places, ours)
        process = context.Process(target=reader, args=(places, theirs), daemon=True)
        process.start()
        ours.recv()
        results = {}
        for nbytes in sizes:
            results[nbytes] = measure(writer, nbytes, rounds_for(nbytes, full))
            show(nbytes, results[nbytes])
        return results
    finally:
        if writer is not None and process is not None:
            writer.close()
            process.join(20)
        places.remove()


def show(nbytes: int, rows: dict[str, dict[str, Any]]) -> None:
    print(f"\n{size_name(nbytes):28}" + "".join(f"{phase:>11}" for phase in PHASES) + "   of ec_ipc")
    for name, numbers in rows.items():
        spans = "".join(f"{microseconds(numbers[phase]['median']):>11}" for phase in PHASES)
        print(f"{name:28}{spans}{numbers['of_ec_ipc']['median']:>10.2f} x", flush=True)


def main() -> None:
    options = arguments(__doc__, sizes={"default": "", "help": "bytes, separated by commas"})
    sizes = [int(size) for size in options.sizes.split(",") if size] or list(SIZES)
    report = Report("bench_transfer", "full" if options.full else "short")
    results = run(sizes, options.full)
    print(report.write(options.out, sizes={str(size): rows for size, rows in results.items()}))


if __name__ == "__main__":
    main()

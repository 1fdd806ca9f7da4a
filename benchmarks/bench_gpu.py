"""Hand one embedding on a GPU to another process on the same GPU: ec_ipc next to what else does it.

    python -m benchmarks.bench_gpu [--seconds 60] [--sizes 65536,16777216] [--out FOLDER]

Two real processes. All rows take turns in every round. A hand-over is wall time from the beginning of
the publication to the end of a kernel in the reader that has added up every word; the sum is checked.
Needs torch with CUDA and CuPy, and no vLLM. Writes bench_gpu.json and bench_gpu.md.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch.multiprocessing as torch_mp

from .measure import arguments, interleave, microseconds, ratio, size_name, summary

KIB, MIB = 1 << 10, 1 << 20
SIZES = (64 * KIB, MIB, 4 * MIB, 16 * MIB, 64 * MIB, 256 * MIB)
ARENA_BYTES = 576 * MIB
REGION_BYTES = 256 * MIB
MOST_ROUNDS, FEWEST_ROUNDS = 400, 8
PHASES = ("publish", "view", "hand-over")


@dataclass(frozen=True)
class Places:
    """What both processes know."""

    namespace: str
    region: Path  # plain shared memory
    queue: Any


class Row:
    """Both halves of a way to hand over. What ``publish`` returns travels to ``view`` on a pipe."""

    name = ""
    copies = ""  # of the bytes, on their way

    def __init__(self, places: Places) -> None:
        self.places = places

    def open_writer(self) -> None: ...
    def open_reader(self) -> None: ...
    def prepare(self, source: torch.Tensor) -> torch.Tensor:
        """Outside of what is timed."""
        return source

    def publish(self, key: str, tensor: torch.Tensor) -> Any: ...
    def wait(self, payload: Any) -> Any:
        """Until the bytes are there, where the message did not say so."""
        return payload

    def view(self, payload: Any) -> torch.Tensor:
        """The reader's tensor on the GPU; its bytes may still be on their way on the current stream."""
        raise NotImplementedError

    def clean(self) -> None:
        """After a hand-over, in the writer; outside of what is timed."""

    def close(self) -> None: ...


class EcIpc(Row):
    name = "ec_ipc, cuda arena"
    copies = "1 on the GPU"

    def open_writer(self) -> None:
        from ec_ipc import Store

        self.store = Store.open(self.places.namespace, arena="cuda", arena_bytes=ARENA_BYTES)

    def open_reader(self) -> None:
        from ec_ipc import Store

        self.store = Store.open(self.places.namespace)
        self.store.map_arenas()

    def publish(self, key: str, tensor: torch.Tensor) -> Any:
        outcome = self.store.publish(key, tensor, 1).outcome
        if outcome.name != "RESERVED":
            raise RuntimeError(f"{key} is not published: {outcome}")
        return key

    def wait(self, payload: Any) -> Any:
        while (found := self.store.find(payload)) is None or found.state.name != "READY":
            pass
        return payload

    def view(self, payload: Any) -> torch.Tensor:
        lease = self.store.get(payload)
        assert lease is not None
        return lease.tensor

    def clean(self) -> None:
        self.store.drain()

    def close(self) -> None:
        self.store.close()


class TorchIpc(Row):
    """The writer's own tensor, without a copy: it can free or reuse it only after the reader has."""

    name = "torch CUDA IPC, queue"
    copies = "0"

    def prepare(self, source: torch.Tensor) -> torch.Tensor:
        return source.clone()  # each embedding is another tensor

    def publish(self, key: str, tensor: torch.Tensor) -> Any:
        self.kept = tensor
        self.places.queue.put(tensor)

    def view(self, payload: Any) -> torch.Tensor:
        tensor: torch.Tensor = self.places.queue.get()
        return tensor

    def clean(self) -> None:
        del self.kept
        torch.cuda.ipc_collect()


class ThroughHost(Row):
    """Out of the GPU into page-locked shared memory, and in again."""

    name = "through pinned host memory"
    copies = "1 out, 1 in"

    def open_writer(self) -> None:
        with self.places.region.open("r+b") as file:
            flags = mmap.MAP_SHARED | getattr(mmap, "MAP_POPULATE", 0)
            memory = mmap.mmap(file.fileno(), REGION_BYTES, flags=flags)
        self.region = torch.frombuffer(memory, dtype=torch.uint8)
        check(torch.cuda.cudart().cudaHostRegister(self.region.data_ptr(), REGION_BYTES, 0))

    open_reader = open_writer

    def publish(self, key: str, tensor: torch.Tensor) -> Any:
        self.region[: tensor.nbytes].view(tensor.dtype).copy_(tensor, non_blocking=True)
        torch.cuda.synchronize()
        return tensor.nbytes

    def view(self, payload: Any) -> torch.Tensor:
        return self.region[:payload].view(torch.int32).to("cuda", non_blocking=True)

    def close(self) -> None:
        check(torch.cuda.cudart().cudaHostUnregister(self.region.data_ptr()))


class BareCopy(Row):
    """The limit: one copy on the GPU, and the same kernel, in one process. No other process, no name."""

    name = "bare copy on the GPU"
    copies = "1 on the GPU"

    def open_writer(self) -> None:
        self.block = torch.empty(REGION_BYTES, dtype=torch.uint8, device="cuda")

    def publish(self, key: str, tensor: torch.Tensor) -> Any:
        self.copy = self.block[: tensor.nbytes].view(tensor.dtype)
        self.copy.copy_(tensor, non_blocking=True)


ROWS = (EcIpc, TorchIpc, ThroughHost, BareCopy)


def check(error: Any) -> None:
    if int(error) != 0:
        raise RuntimeError(f"page-locking shared memory failed: {error}")


def touch(tensor: torch.Tensor) -> int:
    """Add up every word, on the GPU, and wait for it."""
    return int(tensor.sum(dtype=torch.int64))


def reader(places: Places, control: Connection) -> None:
    """The other process: does what it is told, and says when it was done with each part."""
    try:
        torch.zeros(1, device="cuda")
        rows = [row(places) for row in ROWS]
        for row in rows:
            row.open_reader()
        control.send("ready")
    except Exception:
        control.send(traceback.format_exc())
        return
    while (order := control.recv()) is not None:
        try:
            index, payload = order
            place = rows[index].wait(payload)
            begin = time.perf_counter_ns()
            tensor = rows[index].view(place)
            viewed = time.perf_counter_ns()
            total = touch(tensor)
            touched = time.perf_counter_ns()
            del tensor
            control.send((begin, viewed, touched, total))
        except Exception:
            control.send(traceback.format_exc())
    for row in rows:
        row.close()


class Writer:
    """This process: one hand-over at a time."""

    def __init__(self, places: Places, control: Connection) -> None:
        self.control = control
        self.rows = [row(places) for row in ROWS]
        for row in self.rows:
            row.open_writer()
        self.count = 0

    def hear(self) -> Any:
        answer = self.control.recv()
        if isinstance(answer, str) and answer != "ready":
            raise RuntimeError(f"the reader failed:\n{answer}")
        return answer

    def hand_over(self, index: int, source: torch.Tensor) -> dict[str, float]:
        """Microseconds of each phase."""
        row = self.rows[index]
        self.count += 1
        source.fill_(self.count)
        tensor = row.prepare(source)
        torch.cuda.synchronize()
        begin = time.perf_counter_ns()
        payload = row.publish(f"item-{self.count}", tensor)
        published = time.perf_counter_ns()
        if isinstance(row, BareCopy):
            began = viewed = published
            total = touch(row.copy)
            touched = time.perf_counter_ns()
        else:
            self.control.send((index, payload))
            began, viewed, touched, total = self.hear()
        if total != self.count * source.numel():
            raise AssertionError(
                f"{row.name} handed over a sum of {total}, not {self.count * source.numel()}"
            )
        del tensor
        row.clean()
        spans = {"publish": published - begin, "view": viewed - began, "hand-over": touched - begin}
        return {name: span / 1e3 for name, span in spans.items()}

    def close(self) -> None:
        self.control.send(None)


def measure(writer: Writer, nbytes: int, seconds: float) -> dict[str, dict[str, Any]]:
    """Row -> phase -> summary, and how many times ec_ipc's hand-over it takes."""
    source = torch.empty(nbytes // 4, dtype=torch.int32, device="cuda")
    bodies: dict[str, Callable[[], dict[str, float]]] = {
        row.name: (lambda i=i: writer.hand_over(i, source)) for i, row in enumerate(ROWS)
    }
    interleave(3, bodies)  # first launches, allocations, mappings
    samples: dict[str, list[dict[str, float]]] = {name: [] for name in bodies}
    end = time.monotonic() + seconds
    rounds = 0
    while rounds < FEWEST_ROUNDS or (rounds < MOST_ROUNDS and time.monotonic() < end):
        for name, taken in interleave(len(bodies), bodies).items():
            samples[name] += taken
        rounds += len(bodies)
    spans = {name: {phase: [s[phase] for s in taken] for phase in PHASES} for name, taken in samples.items()}
    ours = spans[EcIpc.name]["hand-over"]
    return {
        row.name: {
            **{phase: summary(spans[row.name][phase]) for phase in PHASES},
            "of_ec_ipc": ratio(spans[row.name]["hand-over"], ours),
            "copies": row.copies,
        }
        for row in ROWS
    }


def table(card: str, results: dict[int, dict[str, dict[str, Any]]]) -> str:
    """Medians; of the hand-over the quartiles and the 99th percentile too."""
    lines = [
        f"Hand-over between two processes on one {card}, {time.strftime('%Y-%m-%d')}: medians of turns.",
        "",
        "| size | way | copies | publish returns | view | hand-over | quartiles | p99 | of ec_ipc | rounds |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for nbytes, rows in results.items():
        for name, row in rows.items():
            whole = row["hand-over"]
            view = "-" if name == BareCopy.name else microseconds(row["view"]["median"])
            cells = [
                size_name(nbytes),
                name,
                row["copies"],
                microseconds(row["publish"]["median"]),
                view,
                microseconds(whole["median"]),
                f"{microseconds(whole['q1'])} to {microseconds(whole['q3'])}",
                microseconds(whole["p99"]),
                f"{row['of_ec_ipc']['median']:.2f} x",
                str(whole["n"]),
            ]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def run(sizes: list[int], seconds: float) -> dict[int, dict[str, dict[str, Any]]]:
    context = torch_mp.get_context("spawn")
    name = f"bench-gpu-{os.getpid()}"
    places = Places(name, Path(f"/dev/shm/ec_ipc-{name}-region"), context.Queue())
    ours, theirs = context.Pipe()
    process = context.Process(target=reader, args=(places, theirs), daemon=True)
    writer = None
    try:
        with places.region.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, REGION_BYTES)
        writer = Writer(places, ours)
        process.start()
        writer.hear()
        return {nbytes: measure(writer, nbytes, seconds / len(sizes)) for nbytes in sizes}
    finally:
        if process.pid is not None and writer is not None:
            with contextlib.suppress(OSError):  # it may have ended
                writer.close()
            process.join(10)
            process.kill()
        if writer is not None:
            for row in writer.rows:
                row.close()
        places.region.unlink(missing_ok=True)


def main() -> None:
    options = arguments(
        __doc__,
        sizes={"default": "", "help": "bytes, separated by commas"},
        seconds={"type": float, "default": 60.0, "help": "for all of it, about"},
    )
    sizes = [int(size) for size in options.sizes.split(",") if size] or list(SIZES)
    card = torch.cuda.get_device_name(0)
    begin = time.monotonic()
    results = run(sizes, options.seconds * (3 if options.full else 1))
    text = table(card, results)
    data = {
        "benchmark": "bench_gpu",
        "date": time.strftime("%Y-%m-%d"),
        "gpu": card,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "seconds": round(time.monotonic() - begin, 1),
        "sizes": {str(size): rows for size, rows in results.items()},
    }
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "bench_gpu.json").write_text(json.dumps(data, indent=1) + "\n")
    (options.out / "bench_gpu.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()

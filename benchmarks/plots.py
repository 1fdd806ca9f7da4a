"""The plots of RESULTS.md."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib
from matplotlib import pyplot as plt

from .measure import size_name

matplotlib.use("Agg")
Data = dict[str, Any]
MIB = 1 << 20


def draw(found: dict[str, Data], folder: Path) -> None:
    """Whatever there is data for."""
    if "bench_transfer" in found:
        for threads, sizes in found["bench_transfer"]["threads"].items():
            transfer(sizes, folder / f"transfer_{threads}.png")
    if "bench_epd" in found:
        memory(found["bench_epd"], folder / "epd_memory.png")


def transfer(data: Data, path: Path) -> None:
    """Hand-over over size, with the quartiles as a band."""
    sizes = {int(size): rows for size, rows in data.items()}
    figure, axes = plt.subplots(figsize=(8, 5))
    for name in next(iter(sizes.values())):
        spans = [rows[name]["hand-over"] for rows in sizes.values()]
        style = {"ec_ipc, zero_copy": "-", "bare copy": ":"}.get(name, "--")
        (line,) = axes.plot(list(sizes), [span["median"] for span in spans], style, marker=".", label=name)
        low, high = ([span[q] for span in spans] for q in ("q1", "q3"))
        axes.fill_between(list(sizes), low, high, alpha=0.15, color=line.get_color())
    axes.set(xscale="log", yscale="log", xlabel="size", ylabel="us, from publish to last byte touched")
    axes.set_xticks(list(sizes), [size_name(size) for size in sizes])
    axes.minorticks_off()
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    _save(figure, path)


def memory(data: Data, path: Path) -> None:
    """What embeddings take in shared memory, over time."""
    figure, axes = plt.subplots(figsize=(8, 4))
    for name, points in data["memory"].items():
        if any(point[1] for point in points):
            seconds = [point[0] for point in points]
            axes.step(seconds, [point[1] / MIB for point in points], where="post", label=f"{name}, in use")
            if any(point[1] != point[2] for point in points):
                reserved = [point[2] / MIB for point in points]
                axes.plot(seconds, reserved, ":", label=f"{name}, set apart")
    axes.set(xlabel="seconds", ylabel="MiB of shared memory")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    _save(figure, path)


def _save(figure: Any, path: Path) -> None:
    figure.tight_layout()
    figure.savefig(path, dpi=90)
    plt.close(figure)

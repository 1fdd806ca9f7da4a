"""Our numbers in vLLM's /metrics and log line. vLLM has asked for them since 0.32; older never loads this."""

import math
import os
import time
from typing import Any

from prometheus_client import Counter, Gauge, Histogram
from vllm.distributed.ec_transfer.ec_connector.metrics import ECConnectorPromMetrics, ECConnectorStats

from ec_ipc import segment
from ec_ipc.connector.metrics import BUCKETS, COUNTERS, GAUGES, HISTOGRAMS, PREFIX, TALLIES
from ec_ipc.errors import ECIPCError

SHARED_GAUGES_S = 1.0


class ECIPCStats(ECConnectorStats):
    """What ``Collector.collect`` found in one step, or in several."""

    def reset(self) -> None:
        """Forget it."""
        self.data: dict[str, Any] = {}

    def is_empty(self) -> bool:
        """Whether nothing happened."""
        return not self.data

    def aggregate(self, other: ECConnectorStats) -> "ECIPCStats":
        """This step and a later one."""
        if self.is_empty() or other.is_empty():
            return ECIPCStats(data=other.data or self.data)
        counters = dict(self.data["counters"])
        for name, value in other.data["counters"].items():
            counters[name] = counters.get(name, 0) + value
        times = {name: [*self.data[name], *other.data[name]] for name in HISTOGRAMS}
        return ECIPCStats(data={**other.data, **times, "counters": counters})

    def reduce(self) -> dict[str, int | float]:
        """For vLLM's log line: what happened in the interval, and the arenas as they are now."""
        if self.is_empty():
            return {}
        reduced: dict[str, int | float] = dict(self.data["counters"])
        for name in HISTOGRAMS:
            if times := self.data[name]:
                what = name.removesuffix("_seconds")
                reduced[f"{what}_mean_ms"] = round(1e3 * sum(times) / len(times), 3)
                reduced[f"{what}_max_ms"] = round(1e3 * max(times), 3)
        return reduced | arena_numbers(self.data["namespace"])


class ECIPCPromMetrics(ECConnectorPromMetrics):
    """The metrics of ``metrics.py``, with vLLM's labels; the gauges also have ``namespace``."""

    def __init__(
        self,
        vllm_config: Any,
        metric_types: dict[Any, Any],
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> None:
        super().__init__(vllm_config, metric_types, labelnames, per_engine_labelvalues)
        counter, gauge, histogram = metric_types[Counter], metric_types[Gauge], metric_types[Histogram]
        self._counters = {
            name: self._per_engine(counter(name=PREFIX + name, documentation=text, labelnames=labelnames))
            for name, text in {**COUNTERS, **TALLIES}.items()
        }
        self._histograms = {
            name: self._per_engine(
                histogram(name=PREFIX + name, documentation=text, buckets=BUCKETS, labelnames=labelnames)
            )
            for name, text in HISTOGRAMS.items()
        }
        self._gauges = {
            name: gauge(
                name=PREFIX + name,
                documentation=text,
                multiprocess_mode="mostrecent",
                labelnames=[*labelnames, "namespace"],
            )
            for name, text in GAUGES.items()
        }
        self._due: dict[tuple[int, str], float] = {}  # when to set the gauges again

    def _per_engine(self, metric: Any) -> dict[int, Any]:
        return {engine: metric.labels(*values) for engine, values in self.per_engine_labelvalues.items()}

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        """Add what a step brought."""
        for name, value in transfer_stats_data["counters"].items():
            self._counters[name][engine_idx].inc(value)
        for name, children in self._histograms.items():
            for seconds in transfer_stats_data[name]:
                children[engine_idx].observe(seconds)
        self._show_gauges(engine_idx, transfer_stats_data["namespace"])

    def _show_gauges(self, engine_idx: int, namespace: str) -> None:
        """An idle engine reports nothing, so a number that it brought would stay: look when asked. Where
        several processes share their metrics nobody can be asked: look at most once a second."""
        due = self._due.get((engine_idx, namespace), 0.0)
        if time.monotonic() < due:
            return
        lasts = True
        for name, value in arena_numbers(namespace).items():
            child = self._gauges[name].labels(*self.per_engine_labelvalues[engine_idx], namespace)
            child.set(value)
            if hasattr(child, "set_function") and "PROMETHEUS_MULTIPROC_DIR" not in os.environ:
                child.set_function(lambda name=name: float(arena_numbers(namespace)[name]))
            else:
                lasts = False
        self._due[engine_idx, namespace] = math.inf if lasts else time.monotonic() + SHARED_GAUGES_S


def arena_numbers(namespace: str) -> dict[str, int]:
    """The gauges, read from the directory; 0 when there is none any more."""
    try:
        directory = segment.attach(namespace)
    except (ECIPCError, OSError):
        directory = None
    arenas = [] if directory is None else directory.arenas()
    used = [] if directory is None else [directory.arena_used(arena.slot) for arena in arenas]
    return {"arena_bytes": sum(arena.nbytes for arena in arenas), "arena_used_bytes": sum(used)}

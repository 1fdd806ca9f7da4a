"""Our numbers in vLLM's /metrics and log line. vLLM has asked for them since 0.32; older never loads this."""

import os
from typing import Any

from prometheus_client import Counter, Gauge, Histogram
from vllm.distributed.ec_transfer.ec_connector.metrics import ECConnectorPromMetrics, ECConnectorStats

from ec_ipc import segment
from ec_ipc.connector.metrics import BUCKETS, COUNTERS, GAUGES, HISTOGRAMS, PREFIX, TALLIES, arena_numbers
from ec_ipc.errors import ECIPCError


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
        """For vLLM's log line: what happened in the interval, and the arenas as they were at its end."""
        if self.is_empty():
            return {}
        reduced: dict[str, int | float] = dict(self.data["counters"])
        for name in HISTOGRAMS:
            if times := self.data[name]:
                what = name.removesuffix("_seconds")
                reduced[f"{what}_mean_ms"] = round(1e3 * sum(times) / len(times), 3)
                reduced[f"{what}_max_ms"] = round(1e3 * max(times), 3)
        return reduced | {name: self.data[name] for name in GAUGES}


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
        self._live: set[tuple[int, str]] = set()

    def _per_engine(self, metric: Any) -> dict[int, Any]:
        return {engine: metric.labels(*values) for engine, values in self.per_engine_labelvalues.items()}

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        """Add what a step brought."""
        for name, value in transfer_stats_data["counters"].items():
            self._counters[name][engine_idx].inc(value)
        for name, children in self._histograms.items():
            for seconds in transfer_stats_data[name]:
                children[engine_idx].observe(seconds)
        namespace = transfer_stats_data["namespace"]
        if (engine_idx, namespace) in self._live:
            return
        for name, metric in self._gauges.items():
            child = metric.labels(*self.per_engine_labelvalues[engine_idx], namespace)
            child.set(transfer_stats_data[name])
            if hasattr(child, "set_function") and "PROMETHEUS_MULTIPROC_DIR" not in os.environ:
                # An idle engine reports nothing, so its last step's number would stay: look when asked.
                child.set_function(lambda name=name: _look(namespace, name))
                self._live.add((engine_idx, namespace))


def _look(namespace: str, name: str) -> float:
    """A gauge, read from the directory; 0 when there is none any more."""
    try:
        directory = segment.attach(namespace)
    except ECIPCError:
        return 0.0
    return 0.0 if directory is None else float(arena_numbers(directory)[name])

"""The connector's hooks at PD without an engine around them: the profile behind bench_epd's number.

    python -m benchmarks.bench_hooks [--full]

vLLM's real scheduler and requests, both halves of the connector, and no model. Once in a loop; once with
the processor's caches emptied before each half of a step, as a model on the same cores empties them.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from vllm.distributed.ec_transfer.ec_connector.base import ECConnectorRole

from examples.demo.deployment import remove_namespace
from examples.demo.engines import unique_namespace
from examples.demo.tiny_models import make_model
from tests.connector.lockstep import Item, LockstepEngine, engine_config, make_request, single_rank

from .measure import Report, arguments, summary
from .timed_connectors import FOLDER, clock, read_totals

CACHES_BYTES = 96 << 20  # more than a core's own, and enough to push most of us out of a shared one
ARENA_BYTES = 64 << 20


class Pair:
    """E and PD in this process, and requests that pass through both."""

    def __init__(self, namespace: str, hooks: Path) -> None:
        model = str(make_model("llava"))
        self.hooks = hooks
        self.e = LockstepEngine(engine_config(model, "ec_producer", namespace, arena_bytes=ARENA_BYTES))
        self.pd = LockstepEngine(engine_config(model, "ec_consumer", namespace))
        os.environ[FOLDER] = str(hooks)
        clock(self.pd.scheduler.ec_connector, ECConnectorRole.SCHEDULER)
        clock(self.pd.worker, ECConnectorRole.WORKER)
        self._between: Callable[[], Any] = lambda: None
        self._execute = self.pd._execute
        self.pd._execute = self._step  # type: ignore[method-assign]
        self._trash = torch.ones(CACHES_BYTES // 4)
        self._count = 0

    def _step(self, output: Any) -> Any:
        self._between()
        result = self._execute(output)
        self._between()
        return result

    def request(self, cold: bool) -> dict[str, float]:
        """Hand one item over; CPU microseconds of each of PD's hooks."""
        self._count += 1
        self._between = (lambda: self._trash.add_(1)) if cold else (lambda: None)
        items = [Item(f"item {self._count}")]
        self.e.add(make_request(f"e{self._count}", items))
        self.e.run()
        params = self.e.answers[f"e{self._count}"]
        self.pd.add(make_request(f"pd{self._count}", items, max_tokens=2, params=params))
        before = self._totals()
        self._between()
        self.pd.run()
        return {hook: (spent - before[hook]) / 1e3 for hook, spent in self._totals().items()}

    def _totals(self) -> dict[str, int]:
        totals: dict[str, int] = {}
        for hooks in read_totals(self.hooks).values():
            for hook, (spent, _calls) in hooks.items():
                totals[hook] = totals.get(hook, 0) + spent
        return totals

    def close(self) -> None:
        self.pd.shutdown()
        self.e.shutdown()


def main() -> None:
    options = arguments(__doc__)
    report = Report("bench_hooks", "full" if options.full else "short")
    os.environ.update(VLLM_CPU_KVCACHE_SPACE="1", HF_HUB_OFFLINE="1", VLLM_NO_USAGE_STATS="1")
    torch.set_num_threads(1)
    namespace = unique_namespace("bench")
    with tempfile.TemporaryDirectory(prefix="ec_ipc-bench-") as folder, single_rank():
        pair = Pair(namespace, Path(folder))
        bodies = {"in a loop": lambda: pair.request(False), "caches emptied": lambda: pair.request(True)}
        for body in bodies.values():
            for _ in range(10):
                body()
        taken = {}
        for name, body in bodies.items():  # not in turns: the loop is to be warm
            taken[name] = [body() for _ in range(400 if options.full else 80)]
        pair.close()
    remove_namespace(namespace)
    results = {}
    for name, requests in taken.items():
        hooks = {hook: summary([request[hook] for request in requests]) for hook in requests[0]}
        results[name] = {"all": summary([sum(request.values()) for request in requests]), **hooks}
        print(f"{name}: {results[name]['all']['median']:.0f} us of CPU time per request")
    print(report.write(options.out, per_request_us=results))


if __name__ == "__main__":
    main()

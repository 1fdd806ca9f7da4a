"""The two connectors with a clock around every hook, for bench_epd. vLLM loads them by this module's name.

Each process adds to a file of its own, which outlives a SIGKILL: vLLM ends its workers with one.
"""

from __future__ import annotations

import functools
import mmap
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from vllm.distributed.ec_transfer.ec_connector.base import ECConnectorRole
from vllm.distributed.ec_transfer.ec_connector.example_connector import ECExampleConnector

from ec_ipc.connector.connector import ECIPCConnector

FOLDER = "EC_IPC_BENCH_HOOKS"  # environment variable: where the files go
HOOKS = (
    "ensure_cache_available",
    "has_cache_item",
    "update_state_after_alloc",
    "build_connector_meta",
    "update_state_after_free",
    "take_unavailable_requests",
    "update_connector_output",
    "request_finished",
    "start_save_caches",
    "save_caches",
    "start_load_caches",
    "build_connector_worker_meta",
    "get_ec_connector_stats",
    "may_allocate",
)


class Totals:
    """CPU nanoseconds and calls of each hook, in a mapped file."""

    def __init__(self, path: Path) -> None:
        with path.open("w+b") as file:
            file.truncate(16 * len(HOOKS))
            self._numbers = memoryview(mmap.mmap(file.fileno(), 0)).cast("Q")

    def clocked(self, index: int, hook: Callable[..., Any]) -> Callable[..., Any]:
        numbers, clock = self._numbers, time.thread_time_ns

        @functools.wraps(hook)
        def run(*args: Any, **kwargs: Any) -> Any:
            begin = clock()
            try:
                return hook(*args, **kwargs)
            finally:
                numbers[2 * index] += clock() - begin
                numbers[2 * index + 1] += 1

        return run


def read_totals(folder: Path) -> dict[str, dict[str, tuple[int, int]]]:
    """Role -> hook -> nanoseconds and calls, over the processes of that role."""
    roles: dict[str, dict[str, tuple[int, int]]] = {}
    for path in folder.iterdir():
        numbers = memoryview(path.read_bytes()).cast("Q")
        hooks = roles.setdefault(path.name.partition(".")[0], {})
        for index, name in enumerate(HOOKS):
            spent, calls = hooks.get(name, (0, 0))
            hooks[name] = spent + numbers[2 * index], calls + numbers[2 * index + 1]
    return roles


def clock(connector: Any, role: ECConnectorRole) -> None:
    """Put a clock around every hook of a connector."""
    totals = Totals(Path(os.environ[FOLDER]) / f"{role.name.lower()}.{os.getpid()}")
    for index, name in enumerate(HOOKS):
        # What our encoder-cache manager asks is asked of the half, and is a hook of ours as well.
        owner = connector if hasattr(connector, name) else getattr(connector, "_scheduler", None)
        if hasattr(owner, name):
            setattr(owner, name, totals.clocked(index, getattr(owner, name)))


class TimedIPC(ECIPCConnector):
    def __init__(self, vllm_config: Any, role: ECConnectorRole) -> None:
        super().__init__(vllm_config, role)
        clock(self, role)


class TimedExample(ECExampleConnector):
    def __init__(self, vllm_config: Any, role: ECConnectorRole) -> None:
        super().__init__(vllm_config, role)
        clock(self, role)

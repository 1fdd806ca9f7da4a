"""Engines without a model, over real schedulers and connectors."""

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
os.environ.update(VLLM_CPU_KVCACHE_SPACE="1", HF_HUB_OFFLINE="1", VLLM_NO_USAGE_STATS="1")


@pytest.fixture(scope="session")
def model() -> str:
    """A tiny LLaVA; only its configuration is read here."""
    from demo.tiny_models import make_model

    return str(make_model("llava"))


@pytest.fixture(scope="session")
def parallel_groups() -> Iterator[None]:
    """vLLM's process groups, of this one process."""
    from .lockstep import single_rank

    with single_rank():
        yield


@pytest.fixture(params=["v1", "v2", "v2-async"])
def runner(request: pytest.FixtureRequest) -> str:
    """Model runner and scheduler: vLLM has two of each. GPUs default to V2 with two steps in flight."""
    return str(request.param)


@pytest.fixture
def start(model: str, namespace: str, parallel_groups: None, runner: str) -> Iterator[Callable[..., Any]]:
    """Starts an engine in a role: ``start("ec_producer", blocks=..., depth=..., **extra_config)``."""
    from .lockstep import LockstepEngine, engine_config
    from .v2 import V2Engine

    engines = []
    in_flight = 2 if runner.endswith("async") else 1
    usual = LockstepEngine if runner == "v1" else V2Engine

    def starter(
        role: str, *, blocks: int = 200, depth: int = in_flight, kind: Any = usual, **extra: Any
    ) -> LockstepEngine:
        settings = {"arena_bytes": 1 << 20, **extra}
        if depth > 1:
            settings["args"] = {"async_scheduling": True, **settings.get("args", {})}
        engine = kind(engine_config(model, role, namespace, **settings), blocks, depth)
        engines.append(engine)
        return engine

    yield starter
    for engine in engines:
        engine.shutdown()

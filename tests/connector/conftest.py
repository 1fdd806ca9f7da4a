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
    from vllm.config import VllmConfig, set_current_vllm_config
    from vllm.distributed import parallel_state
    from vllm.utils.network_utils import get_open_port

    with set_current_vllm_config(VllmConfig()):
        parallel_state.init_distributed_environment(
            1, 0, f"tcp://127.0.0.1:{get_open_port()}", 0, backend="gloo"
        )
        parallel_state.initialize_model_parallel(1, 1)
    yield
    parallel_state.destroy_model_parallel()
    parallel_state.destroy_distributed_environment()


@pytest.fixture
def start(model: str, namespace: str, parallel_groups: None) -> Iterator[Callable[..., Any]]:
    """Starts an engine in a role: ``start("ec_producer", blocks=..., depth=..., **extra_config)``."""
    from .lockstep import LockstepEngine, engine_config

    engines = []

    def starter(role: str, *, blocks: int = 200, depth: int = 1, **extra: Any) -> LockstepEngine:
        settings = {"arena_bytes": 1 << 20, **extra}
        engine = LockstepEngine(engine_config(model, role, namespace, **settings), blocks, depth)
        engines.append(engine)
        return engine

    yield starter
    for engine in engines:
        engine.shutdown()

"""Tests on a real GPU; ``make gpu-check`` runs them. They import no vLLM.

Where there is no GPU, each says that it was not run.
"""

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "multiprocess"))
sys.path.insert(0, str(Path(__file__).parent))

from gpu_work import eventually, free_bytes

SLACK_BYTES = 24 << 20  # far below any arena that is used here


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    missing = None
    if not torch.cuda.is_available():
        missing = "not run: torch finds no CUDA device"
    elif importlib.util.find_spec("cupy") is None:
        missing = "not run: CuPy is not installed"
    if missing is not None:
        for item in items:
            if Path(__file__).parent in item.path.parents:
                item.add_marker(pytest.mark.skip(reason=missing))


@pytest.fixture
def memory_comes_back() -> Iterator[None]:
    """What the test's processes took of the GPU is free again after it. This process's own context and
    caches are there before."""
    torch.ones(1, device="cuda").sum().item()
    torch.cuda.empty_cache()
    before = free_bytes()
    yield
    torch.cuda.empty_cache()
    eventually(
        lambda: free_bytes() >= before - SLACK_BYTES, lambda: f"{before - free_bytes()} bytes are gone"
    )

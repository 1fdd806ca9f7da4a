"""The CUDA arena over the stand-in, and peers that have it in place too."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "multiprocess"))

import cuda_standin
from cuda_standin.runtime import DIRECTORY, PREFIX

from ec_ipc import cuda_arena


@pytest.fixture
def cuda() -> Iterator[cuda_standin.State]:
    """The stand-in, in place in this process. What it did and is to do is in the state."""
    cuda_arena._queues.clear()  # a process has one stand-in after the other here
    state = cuda_standin.install()
    yield state
    cuda_standin.uninstall()
    for file in DIRECTORY.glob(f"{PREFIX}*"):
        file.unlink()

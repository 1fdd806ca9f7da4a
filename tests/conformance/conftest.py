"""The arenas over which the conformance suite runs, each within one process and between two.

``cuda-standin`` is the CUDA arena over ``tests/cuda_standin``. Where a GPU is present, ``cuda`` is the
real thing.
"""

from collections.abc import Iterator
from typing import Any

import cuda_standin
import pytest
from arena_kinds import Elsewhere, Kind, OtherProcess, kinds
from cuda_standin.runtime import DIRECTORY, PREFIX

from ec_ipc import Store, cuda_arena


@pytest.fixture(params=kinds(), ids=str)
def kind(request: pytest.FixtureRequest) -> Iterator[Kind]:
    """The kind of arena. A stand-in is in place as long as the test runs."""
    chosen: Kind = request.param
    if chosen.standin:
        cuda_arena._queues.clear()  # a process has one stand-in after the other here
        cuda_standin.install()
    yield chosen
    if chosen.standin:
        cuda_standin.uninstall()
        for file in DIRECTORY.glob(f"{PREFIX}*"):
            file.unlink()


@pytest.fixture(scope="session")
def other_processes() -> Iterator[dict[bool, OtherProcess]]:
    """By whether the stand-in is in place there; started when first needed."""
    started: dict[bool, OtherProcess] = {}
    yield started
    for process in started.values():
        process.end()


@pytest.fixture
def open_writer(namespace: str, kind: Kind, other_processes: dict[bool, OtherProcess]) -> Iterator[Any]:
    """Opens a store with an arena, here or in another process: ``open_writer(arena_bytes=...)``."""
    opened: list[Any] = []

    def opener(**options: Any) -> Any:
        if kind.apart:
            if kind.standin not in other_processes:
                other_processes[kind.standin] = OtherProcess(kind.standin)
            opened.append(Elsewhere(other_processes[kind.standin], namespace, arena=kind.arena, **options))
        else:
            opened.append(Store.open(namespace, arena=kind.arena, **options))
        return opened[-1]

    yield opener
    for writer in opened:
        writer.close()

"""Participants that stand in for engines. See cli_support.py."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cli_support import Participants

from ec_ipc import names


@pytest.fixture
def participants() -> Iterator[Participants]:
    """``participants(namespace, role, facts, note)`` joins as an engine would."""
    started = Participants()
    yield started
    started.leave()


@pytest.fixture
def cleared() -> Iterator[Callable[[str], Path]]:
    """``cleared(namespace)`` is the path of its segment, which is removed at the end."""
    paths: list[Path] = []

    def path_of(namespace: str) -> Path:
        paths.append(names.SHARED_MEMORY_DIRECTORY / names.segment_name(namespace).removeprefix("/"))
        return paths[-1]

    yield path_of
    for path in paths:
        path.unlink(missing_ok=True)

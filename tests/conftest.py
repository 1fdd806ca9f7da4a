"""What all tests share: namespaces of their own, and a check that nothing stays behind."""

import logging
import uuid
from collections.abc import Iterator

import pytest

from ec_ipc import names


@pytest.fixture
def namespace() -> Iterator[str]:
    """A namespace that nobody else uses. Whatever the test leaves of it is a fault."""
    name = f"test-{uuid.uuid4().hex[:12]}"
    yield name
    left = sorted(path.name for path in names.SHARED_MEMORY_DIRECTORY.glob(f"ec_ipc.*.{name}*"))
    for file in left:
        (names.SHARED_MEMORY_DIRECTORY / file).unlink()
    assert not left, f"left in {names.SHARED_MEMORY_DIRECTORY}: {left}"


class Lines(logging.Handler):
    """Keeps what is logged."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


@pytest.fixture
def said() -> Iterator[list[str]]:
    """The messages of our loggers, each once, wherever else the loggers are led to."""
    ours = logging.getLogger("ec_ipc")
    handler, level = Lines(), ours.level
    ours.addHandler(handler)
    ours.setLevel(logging.INFO)
    yield handler.lines
    ours.removeHandler(handler)
    ours.setLevel(level)

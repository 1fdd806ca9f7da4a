"""Names of shared-memory objects: ``/ec_ipc.<uid>.<namespace>``, and ``:<incarnation>`` for an arena."""

import os
import re
from collections.abc import Iterator
from pathlib import Path

from ec_ipc.errors import ConfigurationError

SHARED_MEMORY_DIRECTORY = Path("/dev/shm")

_NAMESPACE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


def check_namespace(namespace: str) -> str:
    """The namespace itself, or ConfigurationError when it cannot name a segment."""
    if not _NAMESPACE.fullmatch(namespace):
        raise ConfigurationError(
            f"namespace {namespace!r} cannot name a segment: use 1 to 128 letters, digits, '.', '_' or "
            "'-', beginning with a letter or a digit"
        )
    return namespace


def segment_name(namespace: str, uid: int | None = None) -> str:
    """The POSIX name of a namespace's directory segment, of this user unless told."""
    return f"/ec_ipc.{os.geteuid() if uid is None else uid}.{check_namespace(namespace)}"


def arena_name(segment: str, incarnation: int) -> str:
    """The POSIX name of a host arena. ``:`` cannot stand in a namespace, so no segment has this name."""
    return f"{segment}:{incarnation}"


def namespaces(uid: int | None = None) -> Iterator[str]:
    """The namespaces of one user that have shared memory now, in order of name. One whose segment was
    removed may still have arenas."""
    prefix = f"ec_ipc.{os.geteuid() if uid is None else uid}."
    files = SHARED_MEMORY_DIRECTORY.glob(prefix + "*")
    yield from sorted({path.name.removeprefix(prefix).partition(":")[0] for path in files})


def incarnation_of(arena: str) -> int:
    """The incarnation in an arena's name; 0, which nobody has, when there is none."""
    digits = arena.rpartition(":")[2]
    return int(digits) if digits.isascii() and digits.isdigit() else 0


def arena_names(segment: str) -> list[str]:
    """The host arenas that belong to a segment by name, whether its directory can be read or not."""
    prefix = segment.removeprefix("/") + ":"
    return [f"/{path.name}" for path in SHARED_MEMORY_DIRECTORY.glob(prefix + "*")]

"""What ``ec-ipc status`` says: every namespace of this user, read without joining it."""

from collections.abc import Callable, Iterator
from typing import Any

from ec_ipc import _core, names, segment
from ec_ipc._core import State
from ec_ipc.errors import ECIPCError

Complaint = Callable[[str, ECIPCError], None]


def attached(
    namespace: str | None = None, unreadable: Complaint | None = None
) -> Iterator[tuple[str, _core.Segment]]:
    """Each namespace of this user, or that one, with its directory.

    Args:
        namespace: None for all.
        unreadable: told of each segment that cannot be read, which is then left out.

    Raises:
        SegmentError: without ``unreadable``, a segment cannot be read; the message says why.
    """
    for name in [namespace] if namespace is not None else list(names.namespaces()):
        try:
            directory = segment.attach(name)
        except ECIPCError as error:
            if unreadable is None:
                raise
            unreadable(name, error)
            continue
        if directory is not None:
            yield name, directory


def nothing(namespace: str | None, left_out: bool) -> str:
    """Why no namespace is shown; ``left_out``: at least one could not be read."""
    if namespace is not None:
        return f"namespace {namespace} cannot be read" if left_out else f"no namespace {namespace} exists now"
    return "no namespace of this user can be read" if left_out else "no namespace of this user exists now"


def collect(namespace: str | None = None, unreadable: Complaint | None = None) -> dict[str, Any]:
    """The documented schema, as plain data. For its arguments and errors see ``attached``."""
    return {"namespaces": [describe(name, found) for name, found in attached(namespace, unreadable)]}


def describe(name: str, directory: _core.Segment) -> dict[str, Any]:
    """One namespace."""
    entries = directory.entries()
    return {
        "name": name,
        "fingerprint": directory.fingerprint.hex(),
        "layout": directory.layout_version,
        "participants": [
            {"slot": p.slot, "pid": p.pid, "role": p.role, "alive": p.alive} for p in directory.participants()
        ],
        "arenas": [
            {
                "owner": a.slot,
                "kind": segment.KIND_NAMES.get(a.kind, f"unknown ({a.kind})"),
                "device": a.device.hex() if any(a.device) else "cpu",
                "bytes": a.nbytes,
                "used_bytes": directory.arena_used(a.slot),
            }
            for a in directory.arenas()
        ],
        "entries": {
            "capacity": directory.max_items,
            "writing": sum(e.state == State.WRITING for e in entries),
            "ready": sum(e.state == State.READY for e in entries),
        },
        "holds": directory.total_holds(),
        "announced": sum(e.announced for e in entries),
        "counters": directory.counters(),
    }

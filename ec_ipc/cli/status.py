"""What ``ec-ipc status`` says: every namespace of this user, read without joining it."""

from typing import Any

from ec_ipc import _core, names, segment
from ec_ipc._core import State


def collect(namespace: str | None = None) -> dict[str, Any]:
    """The documented schema, as plain data.

    Raises:
        SegmentError: a segment cannot be read; the message says which and why.
    """
    found = [namespace] if namespace is not None else list(names.namespaces())
    described = []
    for name in found:
        directory = segment.attach(name)
        if directory is not None:
            described.append(describe(name, directory))
    return {"namespaces": described}


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

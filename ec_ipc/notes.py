"""The note that an engine leaves about itself for ``ec-ipc doctor``: what the directory has no field for.

It is a memory file of the process, found under ``/proc/<pid>/fd`` by its name, readable by the same user
only, and gone with the process.
"""

import contextlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

NAME = "ec_ipc.note"
MAX_BYTES = 1 << 16


def leave(facts: Mapping[str, Any]) -> int:
    """Make the note. The descriptor keeps it; closing that takes it away."""
    fd = os.memfd_create(NAME)
    os.write(fd, json.dumps(dict(facts), default=str).encode()[:MAX_BYTES])
    return fd


def read(pid: int, proc: Path = Path("/proc")) -> Iterator[dict[str, Any]]:
    """The notes of a process; none of one that is not ours to look into."""
    with contextlib.suppress(OSError):
        for link in sorted((proc / str(pid) / "fd").iterdir()):
            with contextlib.suppress(OSError, ValueError):
                if os.readlink(link).startswith(f"/memfd:{NAME} "):
                    with link.open("rb") as file:
                        note = json.loads(file.read(MAX_BYTES))
                    if isinstance(note, dict):
                        yield note

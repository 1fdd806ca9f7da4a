"""The machine as doctor sees it. Its parts can be replaced, so that tests can make any machine."""

import json
import os
import pwd
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ec_ipc.cli.doctor.segments import Seen, scan
from ec_ipc.names import SHARED_MEMORY_DIRECTORY

PROBE_TIMEOUT_S = 60.0


@dataclass
class Host:
    """What the checks look at."""

    arena_bytes: int
    namespace: str | None = None
    shm: Path = SHARED_MEMORY_DIRECTORY
    proc: Path = Path("/proc")
    uid: int = field(default_factory=os.geteuid)
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)
    _segments: list[Seen] | None = None

    @property
    def segments(self) -> list[Seen]:
        """Every segment in /dev/shm, of any user, or those of the one namespace. Read once."""
        if self._segments is None:
            self._segments = scan(self.shm, self.uid, self.namespace)
        return self._segments

    @property
    def readable(self) -> list[Seen]:
        """This user's segments that this build can read."""
        return [seen for seen in self.segments if seen.directory is not None and seen.is_ours(self.uid)]

    def read(self, path: Path) -> str:
        """A small text file; empty when it cannot be read."""
        try:
            return path.read_text(errors="replace")
        except OSError:
            return ""

    def link(self, path: Path) -> str:
        """Where a symbolic link leads; empty when it cannot be read."""
        try:
            return os.readlink(path)
        except OSError:
            return ""

    def free_bytes(self) -> tuple[int, int]:
        """Size of /dev/shm, and what this user may still take of it."""
        facts = os.statvfs(self.shm)
        return facts.f_blocks * facts.f_frsize, facts.f_bavail * facts.f_frsize

    def user(self, uid: int) -> str:
        """``uid 1000 (name)``."""
        try:
            return f"uid {uid} ({pwd.getpwuid(uid).pw_name})"
        except KeyError:
            return f"uid {uid}"

    def probe(self, program: str) -> dict[str, Any]:
        """Run Python in a process of its own, which prints one JSON object last; when it does not, ``error``
        says why, and ``unasked`` is there.

        CUDA and CuPy are only touched there.
        """
        try:
            done = subprocess.run(
                [sys.executable, "-c", program], capture_output=True, text=True, timeout=PROBE_TIMEOUT_S
            )
            answer = json.loads(done.stdout.strip().splitlines()[-1])
        except subprocess.TimeoutExpired:
            return {"unasked": True, "error": f"no answer within {PROBE_TIMEOUT_S:.0f} s"}
        except OSError as error:
            reason = f"{sys.executable} cannot be started as {self.user(self.uid)}: {error.strerror}"
            return {"unasked": True, "error": reason}
        except (ValueError, IndexError):
            lines = done.stderr.strip().splitlines()
            reason = (
                lines[-1] if lines else f"the probe ended with status {done.returncode}, without an answer"
            )
            return {"unasked": True, "error": reason}
        return answer if isinstance(answer, dict) else {"unasked": True, "error": "its answer is no object"}

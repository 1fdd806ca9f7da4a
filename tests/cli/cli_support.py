"""Participants that stand in for engines, and the command as a user runs it."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

PARTICIPANT = """
import json, sys
from ec_ipc import _core, notes, segment
wanted = json.loads(sys.argv[1])
joined = segment.join(
    wanted["namespace"], fingerprint=wanted["facts"], max_items=16, role=wanted["role"], engine=1
)
if wanted["arena_kind"]:
    joined.set_arena(wanted["arena_kind"], 1 << 20, b"", b"", 0, 5.0)
note = notes.leave({"namespace": wanted["namespace"], "slot": joined.slot, **wanted["note"]})
print("joined", flush=True)
sys.stdin.readline()
segment.leave(joined, wanted["namespace"])
"""

FACTS = {"model": "models/tiny", "dtype": "bfloat16", "hf_config": "00ff", "revision": None}


@dataclass
class Done:
    """How the command ended, and what it said."""

    code: int
    out: str
    err: str

    @property
    def findings(self) -> list[dict[str, Any]]:
        return list(json.loads(self.out)["findings"])

    def of(self, check: str, *levels: str) -> list[dict[str, Any]]:
        levels = levels or ("warning", "problem")
        return [f for f in self.findings if f["check"] == check and f["level"] in levels]

    def only(self, check: str, *levels: str) -> dict[str, Any]:
        (finding,) = self.of(check, *levels)
        return finding


def run(*arguments: str, prefix: tuple[str, ...] = (), **environ: str) -> Done:
    command = [*prefix, str(Path(sys.executable).with_name("ec-ipc")), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environ})
    return Done(done.returncode, done.stdout, done.stderr)


def unshare(*flags: str) -> tuple[str, ...]:
    """A command prefix for namespaces of one's own. Skips, and says why, where the kernel refuses."""
    prefix = ("unshare", *(() if os.geteuid() == 0 else ("--map-current-user",)), *flags)
    try:
        tried = subprocess.run([*prefix, "true"], capture_output=True, text=True)
        refusal = tried.stderr.strip() if tried.returncode else ""
    except FileNotFoundError:
        refusal = "there is no unshare"
    if refusal:
        pytest.skip(f"this kernel gives no namespaces to this user: {refusal}")
    return prefix


@dataclass
class Participants:
    """Starts participants, and ends them."""

    processes: list[subprocess.Popen[str]] = field(default_factory=list)

    def __call__(
        self,
        namespace: str,
        role: str = "e.worker",
        facts: dict[str, Any] = FACTS,
        note: dict[str, Any] | None = None,
        prefix: tuple[str, ...] = (),
        arena_kind: int = 0,
    ) -> subprocess.Popen[str]:
        wanted = {"namespace": namespace, "role": role, "facts": facts, "note": note or {}}
        process = subprocess.Popen(
            [*prefix, sys.executable, "-c", PARTICIPANT, json.dumps({**wanted, "arena_kind": arena_kind})],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.processes.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "joined\n"
        return process

    def leave(self) -> None:
        """All of them, in order."""
        for process in self.processes:
            if process.poll() is None:
                process.communicate("\n")
        self.processes.clear()

"""Every segment in /dev/shm, whoever made it, whatever its layout; and what is wrong with one."""

import contextlib
import json
import os
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ec_ipc import _core
from ec_ipc.cli.doctor.finding import Finding, Level
from ec_ipc.errors import ECIPCError

if TYPE_CHECKING:
    from ec_ipc.cli.doctor.host import Host

CHECK = "segments"

_FILE = re.compile(r"ec_ipc\.(\d+)\.([^:]+)")
_MAGIC_AND_VERSION = struct.Struct("=QQ")  # the first two words in every layout


@dataclass
class Seen:
    """One file that is named like a segment."""

    path: Path
    namespace: str
    named_uid: int
    owner: int
    mode: int
    place: str  # device and inode, as /proc/<pid>/maps writes them
    version: int | None = None  # None: not readable, or not yet written
    alive: bool | None = None  # None: cannot be known
    directory: _core.Segment | None = None
    error: str = ""

    def is_ours(self, uid: int) -> bool:
        """Whether engines of this user would use it."""
        return self.named_uid == uid and self.owner == uid

    @property
    def facts(self) -> dict[str, Any]:
        """What its embeddings depend on, as its creator described it."""
        with contextlib.suppress(ValueError):
            described = json.loads(self.directory.description) if self.directory is not None else {}
            if isinstance(described, dict):
                return described
        return {}

    def living(self) -> list[_core.ParticipantRecord]:
        """Its participants whose kernel lock is held."""
        return [p for p in self.directory.participants() if p.alive] if self.directory is not None else []


def scan(shm: Path, uid: int, namespace: str | None) -> list[Seen]:
    """What is there, in order of name."""
    found = []
    for path in sorted(shm.glob("ec_ipc.*")):
        match = _FILE.fullmatch(path.name)
        if match is None or namespace not in (None, match[2]):
            continue
        with contextlib.suppress(FileNotFoundError):  # removed meanwhile
            facts = path.stat()
            place = f"{os.major(facts.st_dev):02x}:{os.minor(facts.st_dev):02x} {facts.st_ino}"
            seen = Seen(path, match[2], int(match[1]), facts.st_uid, facts.st_mode & 0o777, place)
            if seen.is_ours(uid):
                _look_into(seen)
            found.append(seen)
    return found


def _look_into(seen: Seen) -> None:
    try:
        fd = os.open(seen.path, os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        seen.error = f"it cannot be opened: {error.strerror}"
        return
    head = os.pread(fd, _MAGIC_AND_VERSION.size, 0)
    if len(head) == _MAGIC_AND_VERSION.size:
        seen.version = _MAGIC_AND_VERSION.unpack(head)[1]
    seen.alive = _core.anyone_alive(fd)
    try:
        seen.directory = _core.Segment(fd)  # closes fd also when it raises
    except ECIPCError as error:
        seen.error = str(error)


def check(host: "Host") -> Iterator[Finding]:
    """Segments that no engine of this build and user could join, and those left by the dead."""
    for seen in host.segments:
        finding = _examine(host, seen)
        if finding is not None:
            yield finding
    if not host.segments:
        text = "no namespace exists now: no engine with this connector runs here"
        if host.namespace is not None:
            text = f"no namespace {host.namespace} exists now: no engine runs in it"
        yield Finding(CHECK, Level.INFO, text)


def _examine(host: "Host", seen: Seen) -> Finding | None:
    name = seen.namespace

    def finding(level: Level, text: str, remedy: str = "") -> Finding:
        return Finding(CHECK, level, f"namespace {name}: {text}", remedy, name)

    if not seen.is_ours(host.uid):
        return _foreign(host, seen)
    if seen.mode & 0o077:
        return finding(
            Level.PROBLEM,
            f"its segment has mode {seen.mode:04o}, wider than 0600, and engines refuse it",
            f"stop its engines and run 'ec-ipc reset --namespace {name}'",
        )
    if seen.version is not None and seen.version not in (0, _core.LAYOUT_VERSION):
        lives = "engines of another ec_ipc version run in it" if seen.alive else "nobody lives in it"
        return finding(
            Level.PROBLEM,
            f"its segment has layout version {seen.version}, this build of ec_ipc has "
            f"{_core.LAYOUT_VERSION}; {lives}",
            "install the same version of ec_ipc for all engines"
            if seen.alive
            else f"'ec-ipc reset --namespace {name}' removes it",
        )
    if seen.directory is None:
        return finding(
            Level.PROBLEM,
            f"its segment cannot be read: {seen.error}",
            f"stop its engines and run 'ec-ipc reset --namespace {name}'",
        )
    if not seen.alive:
        held = sum(arena.nbytes for arena in seen.directory.arenas()) + seen.directory.nbytes
        return finding(
            Level.WARNING,
            f"its segment is stale: nobody lives in it, and {held} bytes of shared memory are held",
            f"'ec-ipc reap --namespace {name}' removes it; the next engine to join would do that too",
        )
    count = len(seen.living())
    return finding(Level.OK, f"{count} living participant{'s' * (count != 1)}")


def _foreign(host: "Host", seen: Seen) -> Finding:
    owner, name = host.user(seen.owner), seen.namespace
    if seen.named_uid == host.uid:
        return Finding(
            CHECK,
            Level.PROBLEM,
            f"namespace {name}: its segment is named for this user but belongs to {owner}, and engines "
            "refuse it",
            f"choose another namespace, or have {owner} (or root) remove {seen.path}",
            name,
        )
    same_name = any(other.namespace == name and other.is_ours(host.uid) for other in host.segments)
    return Finding(
        CHECK,
        Level.PROBLEM if same_name else Level.WARNING,
        f"namespace {name}: another user's segment, of {owner}; this is {host.user(host.uid)}"
        + (", who has a namespace of the same name: these engines never meet" if same_name else ""),
        "run all engines that are to share as one user (docker: --user, Kubernetes: runAsUser)",
        name,
    )

"""Kernel, /dev/shm and user."""

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ec_ipc.cli.doctor.finding import Finding, Level

if TYPE_CHECKING:
    from ec_ipc.cli.doctor.host import Host

OLDEST_KERNEL = (3, 15)  # the first with open-file-description locks


def kernel(host: "Host") -> Iterator[Finding]:
    """Open-file-description locks, and WSL2."""
    release = host.read(host.proc / "sys" / "kernel" / "osrelease").strip()
    numbers = release.split("-")[0].split(".")[:2]
    old = all(n.isdigit() for n in numbers) and tuple(map(int, numbers)) < OLDEST_KERNEL
    if old or not release:
        yield Finding(
            "kernel",
            Level.PROBLEM,
            f"Linux {release or '(unknown)'} has no open-file-description locks",
            "use Linux 3.15 or newer",
        )
    else:
        yield Finding("kernel", Level.OK, f"Linux {release}")
    if "microsoft" in release.lower():
        yield Finding(
            "kernel",
            Level.WARNING,
            "this is WSL2, which has no CUDA IPC",
            "set arena to 'host' in ec_connector_extra_config (auto does so by itself)",
        )


def shared_memory(host: "Host") -> Iterator[Finding]:
    """Whether /dev/shm is there, is memory, and is large enough for one arena."""
    try:
        total, free = host.free_bytes()
    except OSError as error:
        yield Finding(
            "/dev/shm", Level.PROBLEM, f"it cannot be used: {error.strerror}", "mount a tmpfs on /dev/shm"
        )
        return
    kind = _file_system(host)
    where = f"{total} bytes, {free} free, {kind or 'not a mount of its own'}"
    if kind not in ("tmpfs", "ramfs", "hugetlbfs"):
        yield Finding(
            "/dev/shm",
            Level.WARNING,
            f"{where}: it is not memory, so embeddings may go to a disk",
            "mount a tmpfs on /dev/shm",
        )
    if not os.access(host.shm, os.W_OK | os.X_OK):
        yield Finding("/dev/shm", Level.PROBLEM, f"{where}: this user may not write", "chmod 1777 /dev/shm")
    has_arena = any(seen.directory is not None and seen.directory.arenas() for seen in host.readable)
    if free >= host.arena_bytes:
        yield Finding("/dev/shm", Level.OK, f"{where}; room for an arena of {host.arena_bytes} bytes")
    elif total >= host.arena_bytes and has_arena:
        yield Finding("/dev/shm", Level.INFO, f"{where}; arenas are reserved in it already")
    else:
        yield Finding(
            "/dev/shm",
            Level.PROBLEM,
            f"it is too small for a host arena of {host.arena_bytes} bytes: {where}",
            "enlarge it (docker: --shm-size=8g; Kubernetes: an emptyDir of medium Memory on /dev/shm; else "
            "'mount -o remount,size=8g /dev/shm'), or lower arena_bytes",
        )


def _file_system(host: "Host") -> str:
    """Type of the file system that is mounted on /dev/shm; empty when none is."""
    for line in reversed(host.read(host.proc / "self" / "mountinfo").splitlines()):
        fields, _, rest = line.partition(" - ")
        if fields.split()[4:5] == [str(host.shm)] and rest:
            return rest.split()[0]
    return ""


def user(host: "Host") -> Iterator[Finding]:
    """Who looks: doctor sees the engines of one user only."""
    yield Finding(
        "user", Level.OK, f"{host.user(host.uid)}; engines share with those of the same user, mode 0600"
    )

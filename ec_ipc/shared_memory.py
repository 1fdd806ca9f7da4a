"""POSIX shared-memory objects by name: create, open, size, compare, unlink.

Only the creator of an object sizes it, and it reserves every byte: a size that is merely promised
ends as SIGBUS at the first write that finds the file system full.
"""

import contextlib
import errno
import os
from collections.abc import Iterator

import posix_ipc

from ec_ipc.errors import OutOfSharedMemory, SegmentError
from ec_ipc.names import SHARED_MEMORY_DIRECTORY


def open_or_create(name: str, mode: int) -> int:
    """A descriptor of the object with that name, which is made, empty, where there is none."""
    return _open(name, posix_ipc.O_CREAT, mode)


def create(name: str, mode: int) -> int:
    """A descriptor of a new object. SegmentError when the name is taken."""
    return _open(name, posix_ipc.O_CREX, mode)


def open_existing(name: str) -> int | None:
    """A descriptor of the object with that name, None where there is none."""
    try:
        return _open(name, 0, 0)
    except FileNotFoundError:
        return None


def _open(name: str, flags: int, mode: int) -> int:
    try:
        return int(posix_ipc.SharedMemory(name, flags=flags, mode=mode, size=0).fd)
    except posix_ipc.ExistentialError as error:
        if flags:
            raise SegmentError(f"shared memory {name} exists; remove it with 'ec-ipc reap'") from error
        raise FileNotFoundError(name) from error
    except posix_ipc.PermissionsError as error:
        raise SegmentError(
            f"shared memory {name} belongs to another user, or its mode keeps this one (uid "
            f"{os.geteuid()}) out; run both engines as one user, or choose another namespace"
        ) from error
    except OSError as error:
        raise SegmentError(f"shared memory {name} cannot be opened: {error}") from error


def reserve(fd: int, name: str, nbytes: int, mode: int) -> None:
    """Give a new object its size, every byte of it backed, and exactly this mode.

    OutOfSharedMemory when the file system has fewer bytes left.
    """
    os.fchmod(fd, mode)
    available = available_bytes()
    try:
        if available < nbytes:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        os.posix_fallocate(fd, 0, nbytes)
    except OSError as error:
        os.ftruncate(fd, 0)
        if error.errno not in (errno.ENOSPC, errno.ENOMEM):
            raise
        raise OutOfSharedMemory(
            f"shared memory {name} needs {nbytes} bytes and {SHARED_MEMORY_DIRECTORY} has {available} "
            "available; lower arena_bytes, or enlarge it (docker: --shm-size, Kubernetes: an emptyDir "
            "of medium Memory)"
        ) from error


def available_bytes() -> int:
    """Bytes that a new shared-memory object of this user may take."""
    facts = os.statvfs(SHARED_MEMORY_DIRECTORY)
    return facts.f_bavail * facts.f_frsize


def is_current(fd: int, name: str) -> bool:
    """Whether the name still leads to the object behind fd: it may have been unlinked meanwhile."""
    other = open_existing(name)
    if other is None:
        return False
    try:
        return os.path.samestat(os.fstat(fd), os.fstat(other))
    finally:
        os.close(other)


def check_owner(fd: int, name: str) -> None:
    """SegmentError when the object is another user's."""
    facts = os.fstat(fd)
    if facts.st_uid != os.geteuid():
        raise SegmentError(
            f"shared memory {name} belongs to uid {facts.st_uid}, this process runs as {os.geteuid()}; run "
            "both engines as one user, or choose another namespace"
        )


def check_owner_and_mode(fd: int, name: str, mode: int) -> None:
    """SegmentError when the object is another user's or open to more than ``mode``."""
    check_owner(fd, name)
    found = os.fstat(fd).st_mode & 0o777
    if found & ~mode:
        raise SegmentError(
            f"shared memory {name} has mode {found:04o}, wider than {mode:04o}; remove it with "
            "'ec-ipc reset' once its engines are stopped"
        )


def unlink(name: str) -> bool:
    """Take the name away; mappings stay valid. False when it was gone already."""
    try:
        posix_ipc.unlink_shared_memory(name)
    except posix_ipc.ExistentialError:
        return False
    return True


@contextlib.contextmanager
def closing_on_error(fd: int) -> Iterator[None]:
    """Close a descriptor when the body fails; otherwise somebody else owns it from here on."""
    try:
        yield
    except BaseException:
        os.close(fd)
        raise

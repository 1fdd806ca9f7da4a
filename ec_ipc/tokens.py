"""Settling by token from outside: by a process that passes requests on and is no participant.

E returns one token per item, in ``ec_transfer_params[item]["ec_ipc_token"]``: (entry, generation, inode
of the segment). Whoever learns that an announced read will never come may take its announcement back.
"""

import os
from collections.abc import Sequence

from ec_ipc import names, segment
from ec_ipc.errors import ECIPCError

_LIMIT = 1 << 63


def is_token(parts: Sequence[object]) -> bool:
    """Whether it may name an entry: it has been in a client's hands."""
    return len(parts) == 3 and all(type(part) is int and 0 <= part < _LIMIT for part in parts)


def settle_token(token: Sequence[int], n: int = 1) -> bool:
    """Take back ``n`` announcements of the entry that a token names: reads that will not come.

    The segment is looked for among those of this user on this node, and is not joined. Only for reads
    that nobody else settles: an engine that has taken the request settles by itself, and a second time
    takes away what another request has announced.

    Returns False, and changes nothing, when the token is no token, its segment is not here or cannot be
    read, or the entry has been freed since.
    """
    if n < 1:
        raise ValueError(f"settle_token({token!r}, {n}): the number of reads must be 1 or more")
    if not is_token(token):
        return False
    entry, generation, inode = token
    for namespace in names.namespaces():
        if _inode(namespace) != inode:
            continue
        try:
            directory = segment.attach(namespace)
            if directory is not None and os.fstat(directory.fileno()).st_ino == inode:
                return directory.settle(entry, generation, n)
        except (ECIPCError, FileNotFoundError):
            continue
    return False


def _inode(namespace: str) -> int:
    """Of this user's segment with that name; 0, which nothing has, when there is none."""
    path = names.SHARED_MEMORY_DIRECTORY / names.segment_name(namespace).removeprefix("/")
    try:
        facts = path.stat()
    except OSError:
        return 0
    return facts.st_ino if facts.st_uid == os.geteuid() else 0

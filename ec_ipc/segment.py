"""A namespace's directory segment: made by the first that joins, unlinked by the last that leaves.

The creator's lock byte is held from before the name is looked at until the participant's own byte
is taken, and again while the last one leaves, so a segment is never unlinked under a joiner.
"""

import contextlib
import json
import os
import struct
from collections.abc import Iterator, Mapping

from ec_ipc import _core, names, shared_memory
from ec_ipc.errors import ECIPCError, SegmentError
from ec_ipc.keys import fingerprint_digest
from ec_ipc.names import arena_name, arena_names, incarnation_of, segment_name

DEFAULT_MODE = 0o600
LOCK_TIMEOUT_S = 10.0
DESCRIPTION_BYTES = 1000
MAX_FACT = 200

# Kinds of arena as stored in the directory.
HOST = 1
CUDA = 2
KIND_NAMES = {HOST: "host", CUDA: "cuda"}


def join(
    namespace: str,
    *,
    fingerprint: Mapping[str, object],
    max_items: int,
    role: str,
    engine: int = 0,
    mode: int = DEFAULT_MODE,
) -> _core.Segment:
    """Join a namespace as one participant, making its segment where there is none.

    Args:
        namespace: what the engines that share have in common.
        fingerprint: facts that make embeddings comparable; all participants must agree.
        max_items: entries in the directory, used by the creator, checked by the others.
        role: what this participant is, for people and for ``Segment.mapped_by``.
        engine: a number that the participants of one engine have in common.
        mode: permission bits of a segment that is made; a wider one that exists is refused.

    Raises:
        SegmentError: the segment is of another layout, size, fingerprint, user or a wider mode.
        OutOfSharedMemory: there is no room for it.
        NoFreeSlot: all participant slots are taken.
        LockTimeout: another process holds the creator's or the writer byte for too long.
    """
    name = segment_name(namespace)
    while True:
        fd = shared_memory.open_or_create(name, mode)
        with shared_memory.closing_on_error(fd):
            shared_memory.check_owner_and_mode(fd, name, mode)
            _core.lock_creator(fd, LOCK_TIMEOUT_S)
            current = shared_memory.is_current(fd, name)
            made = current and not _core.segment_is_ready(fd)
            if made:
                _check_half_made(fd, name, namespace)
                _make(fd, name, fingerprint, max_items, mode)
        if not current:
            os.close(fd)  # the last participant unlinked it while we waited
            continue
        segment = _core.Segment(fd)  # owns fd from here on
        try:
            _check_agreement(segment, namespace, fingerprint, max_items)
            collect_dead(segment, name)
            segment.join(role, engine, LOCK_TIMEOUT_S)
        except BaseException:
            if made and not segment.anyone_else():
                shared_memory.unlink(name)
            raise
        finally:
            _core.unlock_creator(segment.fileno())
        return segment


def _check_half_made(fd: int, name: str, namespace: str) -> None:
    """SegmentError unless it is new, or its creator died while making it: nothing else may be wiped."""
    magic, version = struct.unpack("=QQ", os.pread(fd, 16, 0).ljust(16, b"\0"))
    in_use = _core.anyone_alive(fd)
    if in_use or magic not in (0, _core.MAGIC) or version not in (0, _core.LAYOUT_VERSION):
        raise SegmentError(
            f"shared memory {name} is of another layout than {_core.LAYOUT_VERSION}, or damaged"
            f"{', and in use' if in_use else ''}; stop its engines and run 'ec-ipc reset --namespace "
            f"{namespace}', or choose another namespace"
        )


def _make(fd: int, name: str, fingerprint: Mapping[str, object], max_items: int, mode: int) -> None:
    """Size and initialise a segment that is new, or that its creator left half-made."""
    os.ftruncate(fd, 0)
    try:
        shared_memory.reserve(fd, name, _core.segment_bytes(max_items), mode)
        _core.initialise_segment(fd, max_items, fingerprint_digest(fingerprint), _describe(fingerprint))
    except BaseException:
        shared_memory.unlink(name)
        raise


def attach(namespace: str, uid: int | None = None) -> _core.Segment | None:
    """Map a segment without joining it, to look at it or to reclaim; None where there is none.

    Raises:
        SegmentError: it is not ours to read, half-made, or of another layout.
    """
    fd = shared_memory.open_existing(segment_name(namespace, uid))
    return None if fd is None else _core.Segment(fd)


def leave(segment: _core.Segment, namespace: str) -> bool:
    """Give up the slot and, when nobody else is left, take every name away.

    Returns False when holds of this process are still alive: the slot is then given back with the
    last of them. The names are taken away all the same, for mappings outlive them.
    """
    name = segment_name(namespace)
    with creator_lock(segment):
        if segment.slot >= 0:
            with contextlib.suppress(SegmentError):
                _forget(segment, name, segment.slot, segment.incarnation)
        left = segment.leave(LOCK_TIMEOUT_S)
        if not segment.anyone_else():
            unlink_all(segment, name)
    return left


def collect_dead(segment: _core.Segment, name: str) -> _core.Maintained:
    """Take back what dead participants held, and the memory of their arenas. Idempotent."""
    # The files first: whoever makes one has joined before, so its participant is seen after.
    files = arena_names(name)
    done = segment.maintain(LOCK_TIMEOUT_S)
    for arena in segment.dead_arenas():
        _forget(segment, name, arena.slot, arena.incarnation)
    _unlink_orphans(segment, name, files)
    return done


def _unlink_orphans(segment: _core.Segment, name: str, files: list[str]) -> None:
    """Arenas whose owner died after it had made the memory and before it was in the directory."""
    # Asked after the files were listed: otherwise they may be of this segment's successor.
    if not files or not shared_memory.is_current(segment.fileno(), name):
        return
    known = {arena.incarnation for arena in segment.arenas()}
    known |= {participant.incarnation for participant in segment.participants()}
    for file in files:
        if incarnation_of(file) not in known:
            shared_memory.unlink(file)


def _forget(segment: _core.Segment, name: str, slot: int, incarnation: int) -> None:
    """Unlink an arena's memory, then its record: killed in between, the next cleaner does it again."""
    shared_memory.unlink(arena_name(name, incarnation))
    segment.forget_arena(slot, incarnation, LOCK_TIMEOUT_S)


def unlink_all(segment: _core.Segment, name: str) -> None:
    """Unlink the arenas of a segment without living participants, then the segment."""
    if not shared_memory.is_current(segment.fileno(), name):
        return
    for arena in segment.arenas():
        shared_memory.unlink(arena_name(name, arena.incarnation))
    shared_memory.unlink(name)


@contextlib.contextmanager
def creator_lock(segment: _core.Segment) -> Iterator[None]:
    """Hold the creator's lock byte of a mapped segment."""
    _core.lock_creator(segment.fileno(), LOCK_TIMEOUT_S)
    try:
        yield
    finally:
        _core.unlock_creator(segment.fileno())


def _describe(fingerprint: Mapping[str, object]) -> str:
    """The facts for people, as far as they fit: what must agree is the digest."""
    room = DESCRIPTION_BYTES
    kept: dict[str, object] = {}
    for name, value in sorted(fingerprint.items()):
        text = json.dumps(value, sort_keys=True, default=str)
        short = json.loads(text) if len(text) <= MAX_FACT else text[:MAX_FACT] + "..."
        room -= len(json.dumps({name: short}))
        if room > 0:
            kept[name] = short
    return json.dumps(kept, sort_keys=True, separators=(",", ":"))


def _check_agreement(
    segment: _core.Segment, namespace: str, fingerprint: Mapping[str, object], max_items: int
) -> None:
    """SegmentError, naming the field, when this participant was set up unlike the creator."""
    if segment.fingerprint != fingerprint_digest(fingerprint):
        raise SegmentError(
            f"namespace {namespace} was made for other embeddings ({_differences(segment, fingerprint)}); "
            "give both engines the same model and dtype, or a namespace each; once its engines are "
            f"stopped, 'ec-ipc reset --namespace {namespace}' removes it"
        )
    if segment.max_items != max_items:
        raise SegmentError(
            f"namespace {namespace} has max_items {segment.max_items}, this participant asks for "
            f"{max_items}; give both engines the same max_items, or stop them and run "
            f"'ec-ipc reset --namespace {namespace}'"
        )


def _differences(segment: _core.Segment, fingerprint: Mapping[str, object]) -> str:
    try:
        theirs = json.loads(segment.description)
    except ValueError:
        return "its description cannot be read"
    ours = json.loads(_describe(fingerprint))
    fields = sorted(k for k in theirs.keys() | ours.keys() if theirs.get(k) != ours.get(k))
    return "; ".join(f"{k}: {theirs.get(k)!r} there, {ours.get(k)!r} here" for k in fields) or "unknown field"


def reap(namespace: str) -> str:
    """Reclaim in a namespace, and remove it when nobody lives in it. Says what it did."""
    directory = attach(namespace)
    if directory is None:
        return remove(namespace)
    name = segment_name(namespace)
    with creator_lock(directory):
        if shared_memory.is_current(directory.fileno(), name):
            done = collect_dead(directory, name)
            if directory.anyone_else():
                return f"in use; took back {done.reclaimed}, expired {done.expired}, evicted {done.evicted}"
            unlink_all(directory, name)
            return "nobody lived in it; removed"
    return reap(namespace)  # it was replaced while we waited


def remove(namespace: str, lock_timeout_s: float = LOCK_TIMEOUT_S) -> str:
    """Remove a namespace, whatever its layout. Says what it did.

    Raises:
        LockTimeout: another process holds the creator's lock byte for too long.
        SegmentError: a participant is alive; the message has its pid.
    """
    name = segment_name(namespace)
    fd = shared_memory.open_existing(name)
    if fd is None:
        orphans = sum(shared_memory.unlink(arena) for arena in arena_names(name))
        return f"removed {orphans} arenas that had no segment" if orphans else "there is none"
    try:
        shared_memory.check_owner(fd, name)
        _core.lock_creator(fd, lock_timeout_s)  # nobody joins from here on; closing fd gives it back
        if not shared_memory.is_current(fd, name):
            return "there is none"
        if _core.anyone_alive(fd):
            raise SegmentError(f"namespace {namespace} is in use ({_who(namespace)}); stop its engines first")
        for arena in arena_names(name):
            shared_memory.unlink(arena)
        shared_memory.unlink(name)
        return "removed"
    finally:
        os.close(fd)


def _living(namespace: str) -> list[_core.ParticipantRecord]:
    directory = attach(namespace)
    return [p for p in directory.participants() if p.alive] if directory is not None else []


def _who(namespace: str) -> str:
    try:
        living = _living(namespace)
    except SegmentError:
        return "of another layout"
    return ", ".join(f"pid {p.pid}, {p.role}" for p in living) or "a participant has not yet left"


def remove_abandoned(lock_timeout_s: float = LOCK_TIMEOUT_S) -> set[int]:
    """Remove each namespace of this user in which nobody lives, except one whose lock byte somebody holds
    for longer. Returns the pids of those who live in the others."""
    living: set[int] = set()
    for namespace in names.namespaces():
        with contextlib.suppress(FileNotFoundError):
            try:
                remove(namespace, lock_timeout_s)
            except ECIPCError:
                with contextlib.suppress(ECIPCError):
                    living |= {participant.pid for participant in _living(namespace)}
    return living

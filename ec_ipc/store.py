"""The store: put an embedding once, read it in place from any process, freed by the last reader."""

import logging
import time
import weakref
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any

import torch

from ec_ipc import _core, arena, segment
from ec_ipc._core import Outcome
from ec_ipc.attachment import Attachment, Publication, Token
from ec_ipc.errors import ArenaFull, ArenaUnavailable, ConfigurationError
from ec_ipc.keys import key_digest
from ec_ipc.lease import Lease
from ec_ipc.maintenance import Maintenance
from ec_ipc.names import segment_name

logger = logging.getLogger(__name__)

DEFAULT_MAX_ITEMS = 4096
MAX_ITEMS = 1 << 20
DEFAULT_READ_TIMEOUT_S = 300.0
DRAIN_TIMEOUT_S = 30.0
REMOVED_STAYS_S = 5.0  # a scheduler may have asked its workers for something in a segment just removed


class Store:
    """One participant of a namespace. Open it with ``Store.open``; use it as a context manager.

    Threads may share a store. A forked child may not: its calls raise ForkedHandle.
    """

    def __init__(
        self,
        namespace: str,
        *,
        deallocate: bool,
        read_timeout_s: float,
        lock_timeout_s: float,
        device: int | None,
        membership: Mapping[str, Any],
    ) -> None:
        self.namespace = namespace
        self.name = segment_name(namespace)
        self.deallocate = deallocate
        self.read_timeout_s = read_timeout_s
        self.lock_timeout_s = lock_timeout_s
        self.on_maintenance: Callable[[], None] | None = None  # called by the timer after its own work
        self._device = device
        self._membership = dict(membership)
        self._at = Attachment(namespace, segment.join(namespace, **membership), device)
        self._fingerprint = self._at.segment.fingerprint
        # The current one and removed ones: what is yet to be left, also by a store that is dropped unclosed.
        self._joined = [self._at]
        weakref.finalize(self, _leave_all, self._joined).atexit = False
        self._arena_kind: str | None = None
        self._maps_eagerly = False
        self._closed = False
        self._maintenance = Maintenance(self)

    @classmethod
    def open(
        cls,
        namespace: str,
        *,
        arena: str | None = None,
        arena_bytes: int = 1 << 30,
        deallocate: bool = True,
        read_timeout_s: float = DEFAULT_READ_TIMEOUT_S,
        lock_timeout_s: float = segment.LOCK_TIMEOUT_S,
        max_items: int = DEFAULT_MAX_ITEMS,
        fingerprint: Mapping[str, object] | None = None,
        role: str = "store",
        engine: int = 0,
        device: int | None = None,
    ) -> "Store":
        """Join a namespace, and make it where there is none.

        Args:
            namespace: what the processes that share have in common.
            arena: ``host``, ``cuda`` or ``auto`` to publish; None to read only.
            arena_bytes: size of this process's arena.
            deallocate: free an embedding after its last announced read; False keeps it as a cache,
                from which the least recently used is evicted.
            read_timeout_s: how long an announcement protects an embedding that nobody reads.
            lock_timeout_s: how long putting and announcing wait for the writer byte, which another
                process holds for microseconds unless it is stopped.
            max_items: entries in the directory; all participants must agree.
            fingerprint: facts that make embeddings comparable; all participants must agree.
            role: a name for people, shown by ``ec-ipc status``.
            engine: a number that the participants of one engine have in common.
            device: ordinal of the GPU on which this process makes and maps CUDA arenas; None: the
                current one of the thread that does.

        Raises:
            ConfigurationError: a name, size or kind of arena that cannot be.
            ArenaUnavailable: that kind of arena cannot be had here.
            SegmentError: the namespace was made for something else, or by somebody else.
            OutOfSharedMemory: the directory or the arena does not fit into shared memory.
        """
        if not 0 < read_timeout_s <= 1e6:
            raise ConfigurationError(f"read_timeout_s is {read_timeout_s}; it must be 0 to 1000000 seconds")
        if not 0 < max_items <= MAX_ITEMS:
            raise ConfigurationError(f"max_items is {max_items}; it must be 1 to {MAX_ITEMS}")
        store = cls(
            namespace,
            deallocate=deallocate,
            read_timeout_s=read_timeout_s,
            lock_timeout_s=lock_timeout_s,
            device=device,
            membership={
                "fingerprint": fingerprint or {},
                "max_items": max_items,
                "role": role,
                "engine": engine,
            },
        )
        try:
            if arena is not None:
                store.create_arena(arena, arena_bytes)
        except BaseException:
            store.close()
            raise
        store._maintenance.start()
        return store

    @property
    def segment(self) -> _core.Segment:
        """The directory, for questions that this class does not answer."""
        return self._at.segment

    @property
    def attachment(self) -> Attachment:
        """What this participant has joined: another one after the segment was removed."""
        return self._at

    # Arenas

    def create_arena(self, kind: str, nbytes: int) -> None:
        """Make this participant's arena. Once; its size stays."""
        self._at.create_arena(kind, nbytes)
        self._arena_kind = kind

    def map_arenas(self) -> None:
        """Map every arena that is there and let go of those that are gone; from now on by timer too."""
        self._maps_eagerly = True
        self._at.map_arenas()

    def mapped_by(self, engine: int, role: str, slot: int, incarnation: int) -> int | None:
        """How many participants of that engine and role have mapped an arena; None when one cannot."""
        return self._at.mapped_by(engine, role, slot, incarnation)

    # Publishing

    def put(self, key: str, tensor: torch.Tensor, announce: int = 1) -> Token:
        """Copy a tensor into the arena, once, and publish it.

        A key that is published already is not copied again: the announcements are added to it.

        Args:
            key: any string.
            tensor: any strides, up to 8 dimensions, a dtype of ``ec_ipc.dtypes``.
            announce: how many reads to expect. With ``deallocate`` the last of them frees it.

        Returns:
            The token with which a read can be settled from anywhere.

        Raises:
            ArenaFull: nothing more can be evicted, the directory is full, or the tensor is too large.
            UnsupportedTensor: empty, of another dtype, or of too many dimensions.
            LockTimeout: another process held the writer byte for longer than ``lock_timeout_s``.
        """
        if announce < 1 and self.deallocate:
            raise ValueError(
                f"put({key!r}, announce={announce}) would be freed at once; announce the reads to expect, "
                "or open the store with deallocate=False"
            )
        outcome, token = self.publish(key, tensor, announce)
        if outcome not in (Outcome.RESERVED, Outcome.ANNOUNCED, Outcome.SATURATED):
            raise ArenaFull(_refusal(key, tensor, outcome, self._at.arena, self.segment.max_items))
        self.drain()
        return token

    def publish(self, key: str, tensor: torch.Tensor, announce: int) -> Publication:
        """``put`` for callers that go on without, and never wait for a GPU: an entry that is RESERVED is
        WRITING until its copy has completed."""
        return self._at.publish(
            self.digest(key), tensor, announce, self.read_timeout_s, self.deallocate, self.lock_timeout_s
        )

    def announce(self, key: str, n: int = 1) -> Publication:
        """Expect ``n`` more reads of a published key; its deadline moves with them."""
        at = self._at
        placement = at.segment.announce(self.digest(key), n, self.read_timeout_s, self.lock_timeout_s)
        return Publication(placement.outcome, at.token(placement))

    def drain(self, timeout_s: float = DRAIN_TIMEOUT_S) -> bool:
        """Wait until what is queued on a GPU has completed: copies to be published, holds of views that
        have died. At once on the host arena. False when it takes longer than the timeout."""
        return self._at.drain(timeout_s)

    # Reading

    def get(self, key: str, *, announced: bool = True) -> Lease | None:
        """Read a key in place: a lease on it, or None when it is absent or not yet written.

        Args:
            key: as it was put.
            announced: this is one of the reads that were announced. False looks at it without
                counting as one.
        """
        at = self._at
        pin = at.segment.pin(self.digest(key))
        if pin is None:
            at.segment.count("misses")
            return None
        token = at.token(pin)
        try:
            tensor = at.mapping(pin).view(pin)
        except ArenaUnavailable:
            at.segment.count("misses")
            return None
        if announced:
            at.segment.settle(token.entry, token.generation)
        at.segment.count("reads")
        return Lease(tensor, key, token)

    def load(self, token: Token, device: torch.device) -> torch.Tensor:
        """What another participant holds for us, where a model on ``device`` can use it: a view with a hold
        of its own, or one asynchronous copy. Works as long as that hold does: also when the owner has
        ended, the epoch has passed or the segment was removed since.

        Raises:
            ArenaUnavailable: nobody holds it, or this process has not mapped its arena.
            SegmentError: the entry's numbers do not fit the arena or each other.
        """
        for at in tuple(self._joined):  # the timer may change it
            if at.identity == token.segment:
                pin = at.segment.pin_shared(token.entry, token.generation)
                if pin is not None:
                    return at.mapping(pin).load(pin, device)
        raise ArenaUnavailable(
            f"nobody holds entry {token.entry} in its generation {token.generation} any more"
        )

    def settle(self, key: str, n: int = 1) -> bool:
        """Take back ``n`` announcements: reads that will not come. False when there was none."""
        if n < 1:
            raise ValueError(f"settle({key!r}, {n}): the number of reads must be 1 or more")
        return self.segment.settle_key(self.digest(key), n)

    def settle_token(self, token: Token, n: int = 1) -> bool:
        """The same by token, from wherever it came. One of another segment, or of an earlier life of the
        entry, changes nothing."""
        at = self._at
        return token.segment == at.identity and at.segment.settle(token.entry, token.generation, n)

    def find(self, key: str) -> _core.Found | None:
        """What the directory says of a key, without holding it."""
        return self.segment.find(self.digest(key))

    def token(self, found: _core.Found) -> Token:
        """The token of what ``find`` found."""
        return self._at.token(found)

    def digest(self, key: str) -> bytes:
        """The digest under which the directory keeps a key."""
        return key_digest(key, self._fingerprint)

    # Life

    def reset(self) -> None:
        """Begin a new epoch after the weights have changed: nothing from before is read after."""
        self.segment.bump_epoch()

    def raise_pressure(self) -> None:
        """Tell everybody that this producer is short of space: readers give up what they can spare."""
        # A lost update is one signal for two, and any other number is a signal: it may wrap.
        self.segment.pressure = (self.segment.pressure + 1) & (2**64 - 1)

    def maintain(self) -> None:
        """What the timer does: take back what the dead held, expire, map, let go."""
        self._leave_removed(time.monotonic())
        if not self._at.is_current():
            self._rejoin()
        segment.collect_dead(self.segment, self.name)
        if self._maps_eagerly:
            self._at.map_arenas()
        if self.on_maintenance is not None:
            self.on_maintenance()

    def _rejoin(self) -> None:
        """The segment was removed under us: meet the others in the one that has its name now.

        Everybody notices, within a period of the timer. What was published is lost; views stay valid.
        """
        logger.warning(
            "the segment of namespace %s was removed under its participants; joining its successor",
            self.namespace,
        )
        fresh = Attachment(self.namespace, segment.join(self.namespace, **self._membership), self._device)
        try:
            if self._arena_kind is not None and self._at.arena is not None:
                fresh.create_arena(self._arena_kind, self._at.arena.nbytes)
        except BaseException:
            fresh.close(0)
            raise
        self._at.leave_at = time.monotonic() + REMOVED_STAYS_S
        self._at = fresh
        self._joined.append(fresh)

    def _leave_removed(self, now: float) -> None:
        """Leave the removed segments that no step in flight can ask for any more."""
        for at in [at for at in self._joined if at.leave_at <= now]:
            self._joined.remove(at)
            at.close(DRAIN_TIMEOUT_S)

    def close(self) -> None:
        """Leave the namespace. Live views stay valid, and their holds are dropped as they die."""
        if self._closed:
            return
        self._closed = True
        self._maintenance.stop()
        _leave_all(self._joined)

    def forget(self) -> None:
        """In a forked child: the store is the parent's to close."""
        self._closed = True
        self._joined.clear()

    def __enter__(self) -> "Store":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _leave_all(joined: list[Attachment]) -> None:
    while joined:
        joined.pop().close(DRAIN_TIMEOUT_S)


def _refusal(
    key: str, tensor: torch.Tensor, outcome: Outcome, own: arena.Arena | None, max_items: int
) -> str:
    nbytes = tensor.numel() * tensor.element_size()
    size = own.nbytes if own is not None else 0
    what = {
        Outcome.TOO_LARGE: f"it has {nbytes} bytes and the arena {size}; raise arena_bytes",
        Outcome.ARENA_FULL: (
            f"its {nbytes} bytes do not fit into the arena of {size} and nothing may be evicted; read or "
            "settle what is announced, or raise arena_bytes"
        ),
        Outcome.DIRECTORY_FULL: f"all {max_items} entries of the directory are in use; raise max_items",
        Outcome.WRITING_HERE: "another thread of this process is writing it; try again",
        Outcome.WRITING_ELSEWHERE: "another process is writing it; try again",
    }
    return f"cannot put {key!r}: {what.get(outcome, str(outcome))}"

"""The store: put an embedding once, read it in place from any process, freed by the last reader."""

import logging
import threading
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import NamedTuple

import torch

from ec_ipc import _core, arena, dtypes, segment
from ec_ipc._core import Outcome
from ec_ipc.errors import ArenaFull, ArenaUnavailable, ConfigurationError, ECIPCError, ForkedHandle
from ec_ipc.keys import key_digest
from ec_ipc.lease import Lease
from ec_ipc.maintenance import Maintenance, leave_later
from ec_ipc.names import segment_name

logger = logging.getLogger(__name__)

DEFAULT_MAX_ITEMS = 4096
DEFAULT_READ_TIMEOUT_S = 300.0

DRAIN_TIMEOUT_S = 30.0

# Added to an arena's incarnation in a participant's "mapped" word: it cannot map that arena.
_UNMAPPABLE = 1 << 48

Token = tuple[int, int]


class Publication(NamedTuple):
    """What became of a ``publish``. The token is (-1, -1) when there is nothing to name."""

    outcome: Outcome
    token: Token


class Store:
    """One participant of a namespace. Open it with ``Store.open``; use it as a context manager.

    Threads may share a store. A forked child may not: its calls raise ForkedHandle.
    """

    def __init__(
        self, namespace: str, directory: _core.Segment, deallocate: bool, read_timeout_s: float
    ) -> None:
        self.namespace = namespace
        self.segment = directory
        self.deallocate = deallocate
        self.read_timeout_s = read_timeout_s
        self.name = segment_name(namespace)
        self._fingerprint = directory.fingerprint
        self._arena: arena.Arena | None = None
        self._publishing: dict[Token, int] = {}  # WRITING here -> reads announced meanwhile
        self._publishing_lock = threading.Lock()
        self._mappings: dict[tuple[int, int], arena.ArenaMapping] = {}
        self._unmappable: set[tuple[int, int]] = set()
        self._mapping_lock = threading.Lock()
        self._maps_eagerly = False
        self.on_maintenance: Callable[[], None] | None = None  # called by the timer after its own work
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
        max_items: int = DEFAULT_MAX_ITEMS,
        fingerprint: Mapping[str, object] | None = None,
        role: str = "store",
        engine: int = 0,
    ) -> "Store":
        """Join a namespace, and make it where there is none.

        Args:
            namespace: what the processes that share have in common.
            arena: ``host``, ``cuda`` or ``auto`` to publish; None to read only.
            arena_bytes: size of this process's arena.
            deallocate: free an embedding after its last announced read; False keeps it as a cache,
                from which the least recently used is evicted.
            read_timeout_s: how long an announcement protects an embedding that nobody reads.
            max_items: entries in the directory; all participants must agree.
            fingerprint: facts that make embeddings comparable; all participants must agree.
            role: a name for people, shown by ``ec-ipc status``.
            engine: a number that the participants of one engine have in common.

        Raises:
            ConfigurationError: a name, size or kind of arena that cannot be.
            SegmentError: the namespace was made for something else, or by somebody else.
            OutOfSharedMemory: the directory or the arena does not fit into shared memory.
        """
        if read_timeout_s <= 0:
            raise ConfigurationError(f"read_timeout_s is {read_timeout_s}; it must be more than 0 seconds")
        if max_items <= 0:
            raise ConfigurationError(f"max_items is {max_items}; a directory needs at least one entry")
        directory = segment.join(
            namespace, fingerprint=fingerprint or {}, max_items=max_items, role=role, engine=engine
        )
        store = cls(namespace, directory, deallocate, read_timeout_s)
        try:
            if arena is not None:
                store.create_arena(arena, arena_bytes)
        except BaseException:
            store.close()
            raise
        store._maintenance.start()
        return store

    # Arenas

    def create_arena(self, kind: str, nbytes: int) -> None:
        """Make this participant's arena. Once; its size stays."""
        if self._arena is not None:
            raise ConfigurationError(f"this store has an arena of {self._arena.nbytes} bytes already")
        own, mapping = arena.create(kind, self.segment, self.name, nbytes, segment.LOCK_TIMEOUT_S)
        self._arena = own
        key = (self.segment.slot, self.segment.incarnation)
        with self._mapping_lock:
            self._mappings[key] = mapping
        self.segment.mark_mapped(*key)

    def map_arenas(self) -> None:
        """Map every arena that is there and let go of those that are gone; from now on by timer too.

        An arena that cannot be mapped is reported once, and marked so that the engine's scheduler
        does not wait for it.
        """
        self._maps_eagerly = True
        records = {(r.slot, r.incarnation): r for r in self.segment.arenas()}
        with self._mapping_lock:
            for key in [k for k in self._mappings if k not in records]:
                del self._mappings[key]  # live views keep the memory
                self.segment.mark_mapped(key[0], 0)
            self._unmappable &= records.keys()
            for key in records.keys() - self._mappings.keys() - self._unmappable:
                try:
                    self._mappings[key] = arena.map_record(records[key], self.name)
                except ArenaUnavailable as error:
                    self._unmappable.add(key)
                    self.segment.mark_mapped(key[0], key[1] | _UNMAPPABLE)
                    logger.warning("cannot read from an arena of namespace %s: %s", self.namespace, error)
                else:
                    self.segment.mark_mapped(*key)

    def mapped_by(self, engine: int, role: str, slot: int, incarnation: int) -> int | None:
        """How many participants of that engine and role have mapped an arena; None when one cannot."""
        if self.segment.mapped_by(engine, role, slot, incarnation | _UNMAPPABLE):
            return None
        return self.segment.mapped_by(engine, role, slot, incarnation)

    def _mapping(self, slot: int, incarnation: int) -> arena.ArenaMapping:
        key = (slot, incarnation)
        mapping = self._mappings.get(key)
        if mapping is not None:
            return mapping
        with self._mapping_lock:
            mapping = self._mappings.get(key)
            if mapping is None:
                record = self.segment.arena(slot)
                if record is None or record.incarnation != incarnation:
                    raise ArenaUnavailable(f"the arena of slot {slot} is gone: its owner has ended")
                mapping = self._mappings[key] = arena.map_record(record, self.name)
                self.segment.mark_mapped(*key)
            return mapping

    # Publishing

    def put(self, key: str, tensor: torch.Tensor, announce: int = 1) -> Token:
        """Copy a tensor into the arena, once, and publish it.

        A key that is published already is not copied again: the announcements are added to it.

        Args:
            key: any string.
            tensor: any strides, up to 8 dimensions, a dtype of ``ec_ipc.dtypes``.
            announce: how many reads to expect. With ``deallocate`` the last of them frees it.

        Returns:
            The token, (entry, generation), with which a read can be settled from anywhere.

        Raises:
            ArenaFull: nothing more can be evicted, the directory is full, or the tensor is too large.
            UnsupportedTensor: empty, of another dtype, or of too many dimensions.
        """
        if announce < 1 and self.deallocate:
            raise ValueError(
                f"put({key!r}, announce={announce}) would be freed at once; announce the reads to expect, "
                "or open the store with deallocate=False"
            )
        outcome, token = self.publish(key, tensor, announce)
        if outcome not in (Outcome.RESERVED, Outcome.ANNOUNCED, Outcome.SATURATED):
            raise ArenaFull(_refusal(key, tensor, outcome, self._arena, self.segment.max_items))
        self.drain()
        return token

    def publish(self, key: str, tensor: torch.Tensor, announce: int) -> Publication:
        """``put`` for callers that go on without, and never wait for a GPU: an entry that is RESERVED is
        WRITING until its copy has completed."""
        if self._arena is None:
            raise ConfigurationError("this store reads only; open it with an arena to publish")
        code = dtypes.encode(tensor)
        # Under the lock, so that whoever finds an entry WRITING here finds it in the table too.
        with self._publishing_lock:
            placement = self.segment.reserve(
                self.digest(key),
                tensor.numel() * tensor.element_size(),
                code,
                tuple(tensor.shape),
                announce,
                self.read_timeout_s,
                self.deallocate,
                segment.LOCK_TIMEOUT_S,
            )
            outcome, token = placement.outcome, (placement.entry, placement.generation)
            if outcome is Outcome.RESERVED:
                self._publishing[token] = 0
            elif outcome is Outcome.WRITING_HERE and token in self._publishing:
                self._publishing[token] += announce
                return Publication(Outcome.ANNOUNCED, token)
        if outcome is Outcome.RESERVED:
            try:
                completion = self._arena.write(placement.offset, tensor)
                if completion is not None:
                    completion(lambda failure: self._written(token, failure))
            except BaseException:
                self._abort(token)
                raise
            if completion is None:
                self._written(token, None)
        return Publication(outcome, token)

    def _written(self, token: Token, failure: ECIPCError | None) -> None:
        if failure is not None:
            self._abort(token)
            logger.error("an embedding is not published, its copy failed: %s", failure)
            return
        with self._publishing_lock:
            self.segment.publish(*token, self._publishing.pop(token))

    def _abort(self, token: Token) -> None:
        with self._publishing_lock:
            self._publishing.pop(token, None)
            self.segment.abort(*token)

    def drain(self, timeout_s: float = DRAIN_TIMEOUT_S) -> bool:
        """Wait until what is queued on a GPU has completed: copies to be published, holds of views that
        have died. At once on the host arena. False when it takes longer than the timeout."""
        with self._mapping_lock:
            queues: list[arena.Arena | arena.ArenaMapping] = list(self._mappings.values())
        if self._arena is not None:
            queues.append(self._arena)
        return all([queue.drain(timeout_s) for queue in queues])

    def announce(self, key: str, n: int = 1) -> _core.Placement:
        """Expect ``n`` more reads of a published key; its deadline moves with them."""
        return self.segment.announce(self.digest(key), n, self.read_timeout_s, segment.LOCK_TIMEOUT_S)

    # Reading

    def get(self, key: str, *, announced: bool = True) -> Lease | None:
        """Read a key in place: a lease on it, or None when it is absent or not yet written.

        Args:
            key: as it was put.
            announced: this is one of the reads that were announced. False looks at it without
                counting as one.
        """
        pin = self.segment.pin(self.digest(key))
        if pin is None:
            self.segment.count("misses")
            return None
        token = pin.entry, pin.generation
        try:
            tensor = self.view(pin)
        except ArenaUnavailable:
            self.segment.count("misses")
            return None
        if announced:
            self.segment.settle(*token)
        self.segment.count("reads")
        return Lease(tensor, key, token)

    def view(self, pin: _core.Pin) -> torch.Tensor:
        """A tensor over a pinned extent; its storage owns the pin from then on.

        Raises:
            ArenaUnavailable: this process cannot map the arena, or its owner has ended.
            SegmentError: the entry's numbers do not fit the arena or each other.
        """
        return self._mapping(pin.arena_slot, pin.arena_incarnation).view(pin)

    def load(self, pin: _core.Pin, device: torch.device) -> torch.Tensor:
        """The pinned extent where a model on ``device`` can use it: a view, or one asynchronous copy."""
        return self._mapping(pin.arena_slot, pin.arena_incarnation).load(pin, device)

    def settle(self, key: str, n: int = 1) -> bool:
        """Take back ``n`` announcements: reads that will not come. False when there was none."""
        return self.segment.settle_key(self.digest(key), n)

    def find(self, key: str) -> _core.Found | None:
        """What the directory says of a key, without holding it."""
        return self.segment.find(self.digest(key))

    def digest(self, key: str) -> bytes:
        """The digest under which the directory keeps a key."""
        return key_digest(key, self._fingerprint)

    # Life

    def reset(self) -> None:
        """Begin a new epoch after the weights have changed: nothing from before is read after."""
        self.segment.bump_epoch()

    def maintain(self) -> None:
        """What the timer does: take back what the dead held, expire, map, let go."""
        segment.collect_dead(self.segment, self.name)
        if self._maps_eagerly:
            self.map_arenas()
        if self.on_maintenance is not None:
            self.on_maintenance()

    def raise_pressure(self) -> None:
        """Tell everybody that this producer is short of space: readers give up what they can spare."""
        self.segment.pressure += 1  # a lost update is one signal for two

    def close(self) -> None:
        """Leave the namespace. Live views stay valid, and their holds are dropped as they die."""
        if self._closed:
            return
        self._closed = True
        self._maintenance.stop()
        self.drain()
        with self._mapping_lock:
            self._mappings.clear()
        slot, incarnation = self.segment.slot, self.segment.incarnation
        try:
            if self._arena is not None:
                self._arena.close()
            if not segment.leave(self.segment, self.namespace):
                leave_later(self.segment, self.namespace)
            if self._arena is not None and not self.segment.holds:
                # With views of this process alive the memory must stay; it goes with the process.
                self._arena.give_back(lambda: self._used_elsewhere(slot, incarnation))
        except ForkedHandle:
            pass  # the parent's to leave
        except ECIPCError as error:
            logger.warning("leaving namespace %s: %s", self.namespace, error)

    def _used_elsewhere(self, slot: int, incarnation: int) -> bool:
        """Whether anybody maps an arena that is no longer in the directory, or holds one of its entries."""
        groups = {(p.engine, p.role) for p in self.segment.participants() if p.alive}
        return any(self.segment.mapped_by(*group, slot, incarnation) for group in groups) or any(
            entry.arena_slot == slot and entry.arena_incarnation == incarnation
            for entry in self.segment.entries()
        )

    def __enter__(self) -> "Store":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


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

"""One participant's attachment to one segment: its arena, the arenas it has mapped, what it is writing.

A store has one at a time. When a segment was removed under its participants the store makes another;
pins, views and copies in flight keep to the one they began with.
"""

import logging
import math
import os
import threading
import time
from dataclasses import dataclass, field
from typing import NamedTuple

import torch

from ec_ipc import _core, arena, dtypes, segment, shared_memory
from ec_ipc._core import Outcome
from ec_ipc.errors import ArenaUnavailable, ConfigurationError, ECIPCError, ForkedHandle, LockTimeout
from ec_ipc.maintenance import leave_later
from ec_ipc.names import segment_name

logger = logging.getLogger(__name__)

# Added to an arena's incarnation in a participant's "mapped" word: it cannot map that arena.
_UNMAPPABLE = 1 << 48
# A cause may pass, as memory that is short does: the timer tries again, ever more rarely.
RETRY_S = 0.5
MAX_RETRY_S = 60.0


@dataclass
class _Unmappable:
    """An arena that could not be mapped: when to try again, and the reasons that were said."""

    due: float = 0.0
    pause_s: float = RETRY_S
    said: set[str] = field(default_factory=set)


class Token(NamedTuple):
    """One life of an entry. ``segment`` tells segments of one name apart that follow each other."""

    entry: int
    generation: int
    segment: int


class Publication(NamedTuple):
    """What became of a ``publish``. The token names nothing when nothing was placed."""

    outcome: Outcome
    token: Token


class Attachment:
    """A joined segment and what this process has of it. Threads may share it."""

    def __init__(self, namespace: str, directory: _core.Segment, device: int | None) -> None:
        self.namespace = namespace
        self.name = segment_name(namespace)
        self.segment = directory
        self.identity = os.fstat(directory.fileno()).st_ino
        self.leave_at = math.inf  # set when the segment was removed
        self.arena: arena.Arena | None = None
        self._device = device
        self._mappings: dict[tuple[int, int], arena.ArenaMapping] = {}
        self._unmappable: dict[tuple[int, int], _Unmappable] = {}
        self._mapping_lock = threading.Lock()
        self._publishing: dict[Token, int] = {}  # WRITING here -> reads announced meanwhile
        self._publishing_lock = threading.Lock()

    def token(self, placed: "_core.Pin | _core.Placement | _core.Found") -> Token:
        """The token of an entry in this segment."""
        return Token(placed.entry, placed.generation, self.identity)

    def is_current(self) -> bool:
        """Whether the namespace's name still leads to this segment."""
        return shared_memory.is_current(self.segment.fileno(), self.name)

    # Arenas

    def create_arena(self, kind: str, nbytes: int) -> None:
        """Make this participant's arena. Once; its size stays."""
        if self.arena is not None:
            raise ConfigurationError(f"this store has an arena of {self.arena.nbytes} bytes already")
        own, mapping = arena.create(
            kind, self.segment, self.name, nbytes, segment.LOCK_TIMEOUT_S, self._device
        )
        self.arena = own
        key = (self.segment.slot, self.segment.incarnation)
        with self._mapping_lock:
            self._mappings[key] = mapping
        self.segment.mark_mapped(*key)

    def map_arenas(self) -> None:
        """Map every arena that is there and let go of those that are gone. One that cannot be mapped is
        reported, once for each reason, and marked so that the engine's scheduler does not wait for it,
        until a later try succeeds."""
        records = {(r.slot, r.incarnation): r for r in self.segment.arenas()}
        with self._mapping_lock:
            for key in [k for k in self._mappings if k not in records and not self._has_entries(k)]:
                del self._mappings[key]  # live views keep the memory
                if all(slot != key[0] for slot, _ in self._mappings):
                    self.segment.mark_mapped(key[0], 0)
            for key in self._unmappable.keys() - records.keys():
                del self._unmappable[key]
            for key in records.keys() - self._mappings.keys():
                self._try_to_map(records[key])

    def _try_to_map(self, record: _core.ArenaRecord) -> None:
        key = (record.slot, record.incarnation)
        failed = self._unmappable.get(key)
        if failed is not None and time.monotonic() < failed.due:
            return
        try:
            self._map(record)
        except ECIPCError as error:
            failed = self._unmappable.setdefault(key, _Unmappable())
            failed.due = time.monotonic() + failed.pause_s
            failed.pause_s = min(2 * failed.pause_s, MAX_RETRY_S)
            self.segment.mark_mapped(key[0], key[1] | _UNMAPPABLE)
            if str(error) not in failed.said:
                failed.said.add(str(error))
                logger.warning("cannot read from an arena of namespace %s: %s", self.namespace, error)
        else:
            if failed is not None:
                logger.info("an arena of namespace %s can be read from after all", self.namespace)

    def _has_entries(self, key: tuple[int, int]) -> bool:
        """Whether something in an arena that is gone is held: whoever holds it may yet ask for its bytes."""
        return any((e.arena_slot, e.arena_incarnation) == key for e in self.segment.entries())

    def _map(self, record: _core.ArenaRecord) -> arena.ArenaMapping:
        mapping = arena.map_record(record, self.name, self._device)
        self._mappings[record.slot, record.incarnation] = mapping
        self._unmappable.pop((record.slot, record.incarnation), None)
        self.segment.mark_mapped(record.slot, record.incarnation)
        return mapping

    def mapped_by(self, engine: int, role: str, slot: int, incarnation: int) -> int | None:
        """How many participants of that engine and role have mapped an arena; None when one cannot."""
        if self.segment.mapped_by(engine, role, slot, incarnation | _UNMAPPABLE):
            return None
        return self.segment.mapped_by(engine, role, slot, incarnation)

    def mapping(self, pin: _core.Pin) -> arena.ArenaMapping:
        """The mapped arena of a pin. ArenaUnavailable when it is gone, or of another segment."""
        key = (pin.arena_slot, pin.arena_incarnation)
        mapping = self._mappings.get(key)
        if mapping is not None:
            return mapping
        with self._mapping_lock:
            mapping = self._mappings.get(key)
            if mapping is not None:
                return mapping
            record = self.segment.arena(pin.arena_slot)
            if record is None or record.incarnation != pin.arena_incarnation:
                raise ArenaUnavailable(f"the arena of slot {pin.arena_slot} is gone: its owner has ended")
            return self._map(record)

    # Publishing

    def publish(
        self,
        digest: bytes,
        tensor: torch.Tensor,
        announce: int,
        ttl_s: float,
        deallocate: bool,
        lock_timeout_s: float,
    ) -> Publication:
        """Copy a tensor into the own arena. Never waits for a GPU: an entry that is RESERVED is WRITING
        until its copy has completed."""
        if self.arena is None:
            raise ConfigurationError("this store reads only; open it with an arena to publish")
        code = dtypes.encode(tensor)
        nbytes = tensor.numel() * tensor.element_size()
        # Under the lock, so that whoever finds an entry WRITING here finds it in the table too.
        with self._publishing_lock:
            placement = self.segment.reserve(
                digest, nbytes, code, tuple(tensor.shape), announce, ttl_s, deallocate, lock_timeout_s
            )
            outcome, token = placement.outcome, self.token(placement)
            if outcome is Outcome.RESERVED:
                self._publishing[token] = 0
            elif outcome is Outcome.WRITING_HERE and token in self._publishing:
                self._publishing[token] += announce
                return Publication(Outcome.ANNOUNCED, token)
        if outcome is Outcome.RESERVED:
            try:
                completion = self.arena.write(placement.offset, tensor)
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
            self.segment.publish(token.entry, token.generation, self._publishing.pop(token))

    def _abort(self, token: Token) -> None:
        with self._publishing_lock:
            self._publishing.pop(token, None)
            self.segment.abort(token.entry, token.generation)

    def drain(self, timeout_s: float) -> bool:
        """Wait until what is queued on a GPU has completed. False when it takes longer."""
        with self._mapping_lock:
            queues: list[arena.Arena | arena.ArenaMapping] = list(self._mappings.values())
        if self.arena is not None:
            queues.append(self.arena)
        return all([queue.drain(timeout_s) for queue in queues])

    # The end

    def close(self, timeout_s: float) -> None:
        """Leave the segment. Live views stay valid, and their holds are dropped as they die."""
        self.drain(timeout_s)
        with self._mapping_lock:
            self._mappings.clear()
        slot, incarnation = self.segment.slot, self.segment.incarnation
        try:
            if self.arena is not None:
                self.arena.close()
            if not segment.leave(self.segment, self.namespace):
                leave_later(self.segment, self.namespace)
            if self.arena is not None and not self.segment.holds:
                # With views of this process alive the memory must stay; it goes with the process.
                self.arena.give_back(lambda: self._used_elsewhere(slot, incarnation))
        except ForkedHandle:
            pass  # the parent's to leave
        except LockTimeout as error:
            logger.warning("leaving namespace %s takes longer: %s", self.namespace, error)
            leave_later(self.segment, self.namespace)
        except ECIPCError as error:
            logger.warning("leaving namespace %s: %s", self.namespace, error)

    def _used_elsewhere(self, slot: int, incarnation: int) -> bool:
        """Whether anybody maps an arena that is no longer in the directory, or holds one of its entries."""
        groups = {(p.engine, p.role) for p in self.segment.participants() if p.alive}
        return any(self.segment.mapped_by(*group, slot, incarnation) for group in groups) or (
            self._has_entries((slot, incarnation))
        )

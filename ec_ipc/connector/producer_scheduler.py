"""The scheduler half on E: counts the reads to expect, and waits for room, never in a step."""

import logging
import time
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from vllm.distributed.ec_transfer.ec_connector.utils import (
    PlaceholderMetadataResolver,
    collect_ec_item_metadata,
)
from vllm.v1.request import RequestStatus

from ec_ipc._core import Outcome, State
from ec_ipc.attachment import Token
from ec_ipc.connector.arena_space import ArenaSpace
from ec_ipc.connector.config import ConnectorConfig
from ec_ipc.connector.items import TOKEN, is_request_scoped, last_position, needed
from ec_ipc.connector.metadata import StepMetadata
from ec_ipc.connector.metrics import Collector, Tally
from ec_ipc.connector.scheduled import scheduled_windows
from ec_ipc.connector.side_channel import SideChannelReceiver
from ec_ipc.errors import LockTimeout
from ec_ipc.store import Store

if TYPE_CHECKING:
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.outputs import ECConnectorOutput
    from vllm.v1.request import Request

    from ec_ipc.connector.encoder_cache_manager import ECIPCEncoderCacheManager

logger = logging.getLogger(__name__)

STEPS_TO_TELL = 100  # steps after which a worker's message will not come any more

_TAKEN_BACK = (RequestStatus.FINISHED_ABORTED, RequestStatus.FINISHED_ERROR)
_ADDED = (Outcome.ANNOUNCED, Outcome.SATURATED)


@dataclass(eq=False)
class _RequestState:
    """The announcements of one request, one per occurrence of an item."""

    request: "Request"
    last_position: int
    accounted: set[int] = field(default_factory=set)  # occurrences announced or sent to the worker
    announced: defaultdict[str, list[Token]] = field(default_factory=lambda: defaultdict(list))
    aborted: bool = False
    waiting_since: float | None = None
    waits_no_more: bool = False


class ProducerScheduler:
    """One announcement per occurrence of an item in a scheduled request, taken back when aborted."""

    eager = True
    metrics: Collector  # set by ``scheduler.create``

    def __init__(
        self,
        store: Store,
        config: ConnectorConfig,
        space: ArenaSpace,
        resolver: PlaceholderMetadataResolver,
        channel: SideChannelReceiver,
    ) -> None:
        self.tally = Tally()
        self._store = store
        self._config = config
        self._space = space
        self._resolver = resolver
        self._channel = channel
        self._step = 0
        # What the worker announces as it publishes: (step, item) -> whose, once for each occurrence.
        self._sent: defaultdict[tuple[int, str], list[_RequestState]] = defaultdict(list)
        self._requests: dict[str, _RequestState] = {}
        # Announced by has_cache_item, which is not told for whom; update_state_after_alloc is.
        self._unclaimed: defaultdict[str, list[Token]] = defaultdict(list)

    # The encoder-cache manager's questions

    def cache_created(self, manager: "ECIPCEncoderCacheManager") -> None:
        """A producer need not ask what its own cache holds."""

    def may_allocate(self, request: "Request", index: int) -> bool:
        """A producer always has the pixels."""
        return True

    def only_announced(self, identifier: str) -> bool:
        """Whether the item is READY in the directory and was not encoded here."""
        return bool(self._unclaimed.get(identifier))

    def cache_reset(self) -> None:
        """Begin a new epoch for everybody in the namespace."""
        self._store.reset()

    # vLLM's hooks, in the order of a step

    def ensure_cache_available(self, request: "Request", computed: int) -> bool:
        """False, for a bounded time, while another engine writes an item or the arena is full."""
        state = self._requests.get(request.request_id)
        if state is None:
            state = _RequestState(request, last_position(request))
            self._requests[request.request_id] = state
        if state.waits_no_more or computed >= state.last_position:
            return True
        reason = self._obstacle(state, computed)
        if reason is None:
            state.waiting_since = None
            return True
        now = time.monotonic()
        if state.waiting_since is None:
            state.waiting_since = now
            self._store.raise_pressure()
        if now - state.waiting_since < self._config.wait_timeout_s:
            return False
        state.waits_no_more = True
        logger.warning(
            "request %s has waited %s s (wait_timeout_s) because %s; it goes on",
            request.request_id,
            self._config.wait_timeout_s,
            reason,
        )
        return True

    def _obstacle(self, state: _RequestState, computed: int) -> str | None:
        self._space.begin(state.request.request_id)
        for index, feature in needed(state.request, computed):
            identifier = feature.identifier
            if index in state.accounted or is_request_scoped(identifier):
                continue
            found = self._store.find(identifier)
            if found is None:
                if not self._space.admits(identifier, feature):
                    return "the arena is full"
            elif found.state == State.WRITING and not self._space.is_own(found.writer_slot):
                return f"another engine is writing {identifier}"
        return None

    def has_cache_item(self, identifier: str) -> bool:
        """Announce on the spot; when that succeeds the item is READY and need not be encoded again."""
        if is_request_scoped(identifier):
            return False
        token = self._announced(identifier)
        if token is None:
            return False
        self._unclaimed[identifier].append(token)
        return True

    def update_state_after_alloc(self, request: "Request", index: int) -> None:
        """The announcement that has_cache_item made for this occurrence now belongs to it."""
        tokens = self._unclaimed.get(request.mm_features[index].identifier)
        state = self._requests.get(request.request_id)
        if tokens and state is not None:
            token = tokens.pop()
            if index in state.accounted:
                self._store.settle_token(token)  # asked again for the next part of a split item
                return
            state.announced[request.mm_features[index].identifier].append(token)
            state.accounted.add(index)
            self.tally.hits += 1

    def build_connector_meta(self, output: "SchedulerOutput") -> StepMetadata:
        """Announce the other occurrences of this step, or ask the worker to when it publishes."""
        encoded = {
            state.request.mm_features[index].identifier
            for request_id, indices in output.scheduled_encoder_inputs.items()
            if (state := self._requests.get(request_id)) is not None
            for index in indices
        }
        self._step += 1
        saves: defaultdict[str, int] = defaultdict(int)
        for request_id, computed, end in scheduled_windows(output):
            state = self._requests.get(request_id)
            if state is None:
                continue
            for index, feature in needed(state.request, computed, end):
                if index in state.accounted or is_request_scoped(feature.identifier):
                    continue
                state.accounted.add(index)
                if feature.identifier in encoded or not self._announce(state, feature.identifier):
                    saves[feature.identifier] += 1
                    self._sent[self._step, feature.identifier].append(state)
        for token in (token for tokens in self._unclaimed.values() for token in tokens):
            self._store.settle_token(token)  # its request was not scheduled after all
        self._unclaimed.clear()
        self._space.end_pass()
        return StepMetadata(step=self._step, saves=dict(saves))

    def _announce(self, state: _RequestState, identifier: str) -> bool:
        token = self._announced(identifier)
        if token is None:
            return False
        state.announced[identifier].append(token)
        return True

    def _announced(self, identifier: str) -> Token | None:
        """One more read announced; None when the item is not READY, or the directory is locked."""
        try:
            outcome, token = self._store.announce(identifier)
        except LockTimeout as error:
            logger.warning("item %s is not announced but published again: %s", identifier, error)
            return None
        return token if outcome in _ADDED else None

    def update_state_after_free(self, request: "Request", index: int) -> None:
        """What E's own cache holds says nothing about the arena."""

    def take_unavailable_requests(self) -> set[str]:
        """A producer always has the pixels. A step has finished, so its worker has told what it saved."""
        self._learn_what_was_saved()
        return set()

    def _learn_what_was_saved(self) -> None:
        for step, identifier, token in self._channel.take_saved():
            for state in self._sent.pop((step, identifier), ()):
                if token is None:
                    continue  # skipped
                if state.aborted:
                    self._store.settle_token(token)
                else:
                    state.announced[identifier].append(token)
        for key in [key for key in self._sent if key[0] < self._step - STEPS_TO_TELL]:
            del self._sent[key]  # its message was lost; what it announced is left to the deadline

    def update_connector_output(self, output: "ECConnectorOutput") -> None:
        """Nothing to learn: V1 loses a producer's worker metadata, so none is sent."""

    def request_finished(self, request: "Request") -> tuple[bool, dict[str, Any] | None]:
        """Item metadata and tokens for PD; an aborted request takes its announcements back.

        An item that is neither WRITING nor READY is left out, so that a proxy keeps its pixels.
        """
        self._learn_what_was_saved()
        state = self._requests.pop(request.request_id, None)
        if state is None:
            return False, None
        if request.status in _TAKEN_BACK:
            self._take_back(state)
            return False, None
        items = collect_ec_item_metadata(request.mm_features, self._resolver)
        published: dict[str, Any] = {}
        rows = {f.identifier: f.mm_position.get_num_embeds() for f in request.mm_features}
        for identifier, item in items.items():
            found = self._store.find(identifier)
            # Other rows: a client gave the same uuid to two pictures, and the first is still there.
            if found is None or found.shape[:1] != (rows[identifier],):
                continue
            token = self._store.token(found)
            # What is there only because another request announced it is that request's to read.
            if token in state.announced[identifier] or self._is_untold(state, identifier):
                published[identifier] = {**item, TOKEN: list(token)}
        return False, published or None

    def _is_untold(self, state: _RequestState, identifier: str) -> bool:
        """Whether the worker's message on the item was lost: then what is there counts as this request's."""
        return any(key[1] == identifier and state in states for key, states in self._sent.items())

    def _take_back(self, state: _RequestState) -> None:
        """Now what is known; what a step in flight announces, when it has told."""
        state.aborted = True
        for tokens in state.announced.values():
            for token in tokens:
                self._store.settle_token(token)

    def shutdown(self) -> None:
        """Leave the namespace. What was announced is left to its readers, or to its deadline."""
        self._store.close()

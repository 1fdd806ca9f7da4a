"""The scheduler half on PD: holds what a request needs until the workers hold it, settles each read."""

import logging
import time
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from vllm.distributed.ec_transfer.ec_connector.utils import PlaceholderMetadataResolver

from ec_ipc import dtypes
from ec_ipc._core import Pin, State
from ec_ipc.connector.config import ConnectorConfig
from ec_ipc.connector.items import has_pixels, is_request_scoped, last_position, needed, token_of
from ec_ipc.connector.metadata import Load, StepMetadata, WorkerReport
from ec_ipc.connector.metrics import Collector, Tally
from ec_ipc.errors import SegmentError
from ec_ipc.store import Store

if TYPE_CHECKING:
    from vllm.multimodal.inputs import MultiModalFeatureSpec
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.outputs import ECConnectorOutput
    from vllm.v1.request import Request

    from ec_ipc.connector.encoder_cache_manager import ECIPCEncoderCacheManager

logger = logging.getLogger(__name__)


@dataclass
class _RequestState:
    """What one request holds. An occurrence is an index into the request's items."""

    request: "Request"
    last_position: int
    pins: dict[str, Pin] = field(default_factory=dict)  # until the item's load is scheduled
    insurance: dict[str, Pin] = field(default_factory=dict)  # no pixels: against preemption
    settled: set[int] = field(default_factory=set)
    missed: set[str] = field(default_factory=set)
    waiting_since: float | None = None
    failed: bool = False

    def let_go(self) -> None:
        """Give up everything held."""
        for held in (self.pins, self.insurance):
            for pin in held.values():
                pin.release()
            held.clear()


@dataclass
class _Step:
    """The loads of one step: held here until every rank of the engine has its own hold."""

    pins: dict[str, Pin] = field(default_factory=dict)
    loads: dict[str, Load] = field(default_factory=dict)


class ConsumerScheduler:
    """Pins before a step is scheduled, so that loading cannot fail; without pixels, refuses in time."""

    metrics: Collector  # set by ``scheduler.create``

    def __init__(
        self,
        store: Store,
        config: ConnectorConfig,
        engine: int,
        worker_role: str,
        ranks: int,
        resolver: PlaceholderMetadataResolver,
    ) -> None:
        self.eager = config.deallocate_cache
        self.tally = Tally()
        self._store = store
        self._at = store.attachment  # whose pins the requests have
        self._mapped: set[tuple[int, int]] = set()  # arenas (slot, incarnation) that every rank can read
        self._config = config
        self._engine = engine
        self._worker_role = worker_role
        self._ranks = ranks
        self._resolver = resolver
        self._manager: ECIPCEncoderCacheManager | None = None
        self._requests: dict[str, _RequestState] = {}
        self._asking: _RequestState | None = None  # the request vLLM is trying to schedule
        self._next_step = _Step()
        self._steps: deque[_Step] = deque()  # scheduled, not yet finished
        self._unavailable: set[str] = set()
        self._freed: list[str] = []  # not yet told to the workers
        self._pressure = store.segment.pressure
        self._said_no_producer = False

    # The encoder-cache manager's questions

    def cache_created(self, manager: "ECIPCEncoderCacheManager") -> None:
        """From now on ``manager`` says what the workers have."""
        self._manager = manager

    def may_allocate(self, request: "Request", index: int) -> bool:
        """False, and the request fails alone, when an item has no pixels and is not held."""
        feature = request.mm_features[index]
        state = self._state(request)
        if feature.identifier in state.pins or has_pixels(feature, self._resolver):
            return True
        self._fail_without_pixels(state, feature.identifier, "its embedding is gone")
        return False

    def only_announced(self, identifier: str) -> bool:
        """A consumer's items are all tensors in its workers."""
        return False

    def cache_reset(self) -> None:
        """Begin a new epoch for everybody in the namespace."""
        self._store.reset()

    # vLLM's hooks, in the order of a step

    def ensure_cache_available(self, request: "Request", computed: int) -> bool:
        """Hold each item still needed. False while one is being written or mapped, for a bounded time,
        and for a request that is about to fail."""
        state = self._asking = self._state(request)
        if computed >= state.last_position:
            state.pins.clear()  # a decode step, or a prefix hit: nothing to hold
            return True
        if state.failed:
            return False
        self._drop_what_has_passed(state)
        obstacle = None
        for index, feature in needed(request, computed):
            identifier = feature.identifier
            if identifier in state.pins:
                continue
            cached = self._manager is not None and self._manager.holds(identifier)
            if cached and (identifier in state.insurance or has_pixels(feature, self._resolver)):
                continue
            absence = self._pin(state, index, feature)
            if absence is None or cached:
                continue
            if absence.may_pass and not self._waited_enough(state):
                obstacle = absence
            elif not has_pixels(feature, self._resolver):
                self._fail_without_pixels(state, identifier, absence.reason)
                return False
        if obstacle is not None:
            return False
        state.waiting_since = None
        return True

    def _drop_what_has_passed(self, state: _RequestState) -> None:
        """A request may wait for long while the owner of what it holds ends, the weights change, or the
        segment is removed: then it must not read it any more."""
        if self._store.attachment is not self._at:
            self._at = self._store.attachment
            self._mapped.clear()
            for each in self._requests.values():
                each.let_go()
        for held in (state.pins, state.insurance):
            for identifier in [i for i, pin in held.items() if not pin.current]:
                held.pop(identifier).release()

    def _pin(self, state: _RequestState, index: int, feature: "MultiModalFeatureSpec") -> "_Absence | None":
        """Hold the item for this request; or why not."""
        identifier = feature.identifier
        if is_request_scoped(identifier):
            return _Absence("its identifier is made from a request id, which no encoder shares")
        directory = self._at.segment
        digest = self._store.digest(identifier)
        pin = self._insured(state, identifier) or directory.pin(digest)
        if pin is None:
            found = directory.find(digest)
            if found is not None and found.state == State.WRITING:
                return _Absence("it is still being written", may_pass=True)
            if identifier not in state.missed:
                state.missed.add(identifier)
                self._count_miss()
            return _Absence("its embedding is not in the namespace: never published, expired, or evicted")
        try:
            dtypes.decode(pin.dtype, pin.shape, pin.nbytes)
        except SegmentError as error:
            pin.release()
            return _Absence(f"its entry is damaged: {error}")
        rows = feature.mm_position.get_num_embeds()
        if pin.shape[:1] != (rows,):
            shape = pin.shape
            pin.release()
            return _Absence(f"its embedding has shape {shape} and the request needs {rows} rows")
        unmapped = self._unmapped(pin)
        if unmapped is not None:
            pin.release()
            return unmapped
        state.pins[identifier] = pin
        if identifier not in state.insurance and not has_pixels(feature, self._resolver):
            insurance = directory.pin_token(pin.entry, pin.generation)
            if insurance is not None:
                state.insurance[identifier] = insurance
        return None

    def _count_miss(self) -> None:
        self._store.segment.count("misses")
        if self._config.is_producer or self._store.segment.arenas():
            self._said_no_producer = False
            return
        self.tally.no_producer += 1
        if not self._said_no_producer:
            self._said_no_producer = True
            logger.warning(
                "no producer in namespace %s (no_producer): nothing can be read there; start the encoder "
                "with the same model, dtype and namespace, and see 'ec-ipc doctor'; said once",
                self._store.namespace,
            )

    def _insured(self, state: _RequestState, identifier: str) -> Pin | None:
        """A further hold on what the request's insurance holds: after a preemption."""
        insurance = state.insurance.get(identifier)
        if insurance is None:
            return None
        return self._at.segment.pin_token(insurance.entry, insurance.generation)

    def _unmapped(self, pin: Pin) -> "_Absence | None":
        """Why a rank of this engine could not read the item; None when every rank can."""
        arena = (pin.arena_slot, pin.arena_incarnation)
        if arena in self._mapped:
            return None
        mapped = self._at.mapped_by(self._engine, self._worker_role, *arena)
        if mapped is None:
            return _Absence("its arena cannot be mapped by a rank of this engine")
        if mapped < self._ranks:
            return _Absence("its arena is not mapped by every rank of this engine yet", may_pass=True)
        self._mapped.add(arena)  # for good: ranks keep a mapping for as long as anything in it is held
        return None

    def _waited_enough(self, state: _RequestState) -> bool:
        now = time.monotonic()
        if state.waiting_since is None:
            state.waiting_since = now
        return now - state.waiting_since >= self._config.wait_timeout_s

    def has_cache_item(self, identifier: str) -> bool:
        """Whether the request that vLLM is scheduling holds the item."""
        return self._asking is not None and identifier in self._asking.pins

    def update_state_after_alloc(self, request: "Request", index: int) -> None:
        """The request's hold now belongs to this step's load. No hold: vLLM encodes the item here."""
        identifier = request.mm_features[index].identifier
        state = self._state(request)
        pin = state.pins.pop(identifier, None)
        if pin is not None:
            self._next_step.pins[identifier] = pin
            self._next_step.loads[identifier] = Load(identifier, self._at.token(pin), pin.shape, pin.dtype)
            self.tally.hits += 1

    def build_connector_meta(self, output: "SchedulerOutput") -> StepMetadata:
        """The loads of this step, without those whose request was preempted in the same pass."""
        step, self._next_step = self._next_step, _Step()
        for identifier in output.free_encoder_mm_hashes:
            pin = step.pins.pop(identifier, None)
            if pin is not None:
                pin.release()
                del step.loads[identifier]
        self._steps.append(step)
        self._asking = None
        self._drop_insurance_under_pressure()
        self._freed += output.free_encoder_mm_hashes
        meta = StepMetadata(
            loads=list(step.loads.values()),
            freed=self._freed,
        )
        if output.total_num_scheduled_tokens:  # without tokens V1 shows a consumer no metadata
            self._freed = []
        return meta

    def _drop_insurance_under_pressure(self) -> None:
        pressure = self._store.segment.pressure
        if pressure == self._pressure:
            return
        self._pressure = pressure
        for state in self._requests.values():
            for pin in state.insurance.values():
                pin.release()
            state.insurance.clear()

    def update_state_after_free(self, request: "Request", index: int) -> None:
        """The occurrence is in the KV cache: its read has happened."""
        self._settle(self._state(request), index)

    def _settle(self, state: _RequestState, index: int) -> None:
        if not self._config.settles or index in state.settled:
            return
        state.settled.add(index)
        identifier = state.request.mm_features[index].identifier
        token = token_of(state.request, identifier)
        if token is not None:
            self._store.settle_token(token)
        elif state.request.ec_transfer_params is None:
            self._store.settle(identifier)  # a proxy that does not send E's answer on: best effort

    def take_unavailable_requests(self) -> set[str]:
        """Called once for each finished step, in order: every rank has loaded, its holds take over."""
        if self._steps:
            for pin in self._steps.popleft().pins.values():
                pin.release()
        unavailable, self._unavailable = self._unavailable, set()
        return unavailable

    def update_connector_output(self, output: "ECConnectorOutput") -> None:
        """Every request with an item that a rank could not load fails: several may share the load."""
        report = output.ec_connector_worker_meta
        if not isinstance(report, WorkerReport):
            return
        self.tally.load_seconds += report.load_seconds
        if not report.failed:
            return
        for state in self._requests.values():
            for identifier in report.failed & {f.identifier for f in state.request.mm_features}:
                self._fail(state, f"a worker could not load item {identifier}")

    def _fail_without_pixels(self, state: _RequestState, identifier: str, reason: str) -> None:
        self._fail(state, f"item {identifier} has no pixels and {reason}")

    def _fail(self, state: _RequestState, reason: str) -> None:
        if state.failed:
            return
        state.failed = True
        self._unavailable.add(state.request.request_id)
        logger.error(
            "request %s fails: %s; send the request through the encoder again",
            state.request.request_id,
            reason,
        )

    def request_finished(self, request: "Request") -> tuple[bool, dict[str, Any] | None]:
        """Settle the reads that never came, whatever the status, and let go of everything held."""
        state = self._state(request)
        for index in range(len(request.mm_features)):
            self._settle(state, index)
        state.let_go()
        del self._requests[request.request_id]
        self._unavailable.discard(request.request_id)
        if self._asking is state:
            self._asking = None
        return False, None

    def shutdown(self) -> None:
        """Let go of everything held, and leave the namespace."""
        for step in (self._next_step, *self._steps):
            for pin in step.pins.values():
                pin.release()
        for state in self._requests.values():
            state.let_go()
        self._requests.clear()
        self._steps.clear()
        self._store.close()

    def _state(self, request: "Request") -> _RequestState:
        state = self._requests.get(request.request_id)
        if state is None:
            state = _RequestState(request, last_position(request))
            self._requests[request.request_id] = state
        return state


@dataclass(frozen=True)
class _Absence:
    """Why an item cannot be held now, and whether that may pass by itself."""

    reason: str
    may_pass: bool = False

"""The worker half on PD: puts views of the arena into vLLM's encoder cache."""

import contextlib
import logging
import threading
import time
from typing import TYPE_CHECKING

import torch

from ec_ipc import dtypes
from ec_ipc.connector.metadata import Load, WorkerReport

if TYPE_CHECKING:
    from ec_ipc.connector.metadata import StepMetadata
    from ec_ipc.store import Store

logger = logging.getLogger(__name__)


class ConsumerWorker:
    """Loads what the scheduler holds. Never raises into vLLM: an item that cannot be loaded is reported
    to the scheduler, which fails its requests, and zeros keep the step alive until then.

    Views stay in vLLM's cache as long as vLLM likes. When a producer is short of space they are
    *localised*: copied out and swapped, so that the hold ends. That happens in a step, or, as a quiet
    engine runs no steps, from the store's timer; the two exclude each other.
    """

    def __init__(
        self,
        store: "Store",
        copies: bool,
        device: "torch.device",
        counts_reads: bool,
    ) -> None:
        self._store = store
        self._said_first = False
        self._said_no_copy = False
        self._copies = copies
        self._device = device
        self._counts_reads = counts_reads
        self._report = WorkerReport()
        self._encoder_cache: dict[str, torch.Tensor] = {}
        self._views: dict[str, int] = {}  # item in vLLM's cache -> address of its bytes in an arena
        self._in_step = threading.Lock()
        self._pressure = store.segment.pressure
        self._stream: torch.cuda.Stream | None = None  # on which steps read; the timer's thread has another
        store.on_maintenance = self._localise_when_quiet

    def start_load_caches(self, meta: "StepMetadata", encoder_cache: dict[str, torch.Tensor]) -> None:
        """A view for each item of this step; an older one under the same name is replaced."""
        with self._in_step:
            self._encoder_cache = encoder_cache
            if self._device.type == "cuda":
                self._stream = torch.cuda.current_stream(self._device)
            for identifier in meta.freed:
                # vLLM has removed it; the timer may have put its copy back at that very moment.
                encoder_cache.pop(identifier, None)
                self._views.pop(identifier, None)
            for load in meta.loads:
                encoder_cache[load.identifier] = self._load_or_zeros(load)
            self._localise_under_pressure()

    def _load_or_zeros(self, load: Load) -> torch.Tensor:
        try:
            return self._load(load)
        except RuntimeError as error:  # ours, and torch's
            logger.error("item %s cannot be loaded: %s", load.identifier, error)
            self._report.failed.add(load.identifier)
            return torch.zeros(load.shape, dtype=dtypes.of_code(load.dtype), device=self._device)

    def _load(self, load: Load) -> torch.Tensor:
        begin = time.perf_counter()
        tensor = self._store.load(load.token, self._device)
        if self._counts_reads:
            self._store.segment.count("reads")
            self._report.load_seconds.append(time.perf_counter() - begin)
            self._say_first(load)
        if self._copies:
            return tensor.clone()
        self._views[load.identifier] = tensor.data_ptr()
        return tensor

    def _say_first(self, load: Load) -> None:
        if not self._said_first:
            self._said_first = True
            logger.info(
                "ec_ipc: the hand-over works in namespace %s: item %s, shape %s, is read from the arena",
                self._store.namespace,
                load.identifier,
                load.shape,
            )

    def _localise_when_quiet(self) -> None:
        with (
            self._in_step,
            contextlib.nullcontext() if self._stream is None else torch.cuda.stream(self._stream),
        ):
            self._localise_under_pressure()

    def _localise_under_pressure(self) -> None:
        """Replace views by copies. A step that reads one meanwhile sees the same bytes in either: the copy
        is on its stream, before what it queues from now on, and before the event that ends the hold."""
        pressure = self._store.segment.pressure
        if pressure == self._pressure:
            return
        self._pressure = pressure
        for identifier, address in list(self._views.items()):
            view = self._encoder_cache.get(identifier)
            if view is not None and view.data_ptr() == address:  # else vLLM has let go of it
                try:
                    self._encoder_cache[identifier] = view.clone()
                except RuntimeError as error:  # no memory for a copy: the producer will ask again
                    self._say_no_copy(str(error))
                    return
                self._store.segment.count("localised")
            del self._views[identifier]

    def _say_no_copy(self, reason: str) -> None:
        if not self._said_no_copy:
            self._said_no_copy = True
            logger.warning(
                "an arena of namespace %s is short of space, but a view cannot be copied out of it: %s; the "
                "producer publishes less meanwhile; said once",
                self._store.namespace,
                reason,
            )

    def build_connector_worker_meta(self) -> WorkerReport | None:
        """What was loaded, and what could not be, since the last report."""
        report = self._report
        if not (report.failed or report.load_seconds):
            return None
        self._report = WorkerReport()
        return report

"""The worker half on PD: puts views of the arena into vLLM's encoder cache."""

import logging
from typing import TYPE_CHECKING

import torch

from ec_ipc import dtypes
from ec_ipc.connector.metadata import Load, WorkerReport
from ec_ipc.errors import ArenaUnavailable, ECIPCError

if TYPE_CHECKING:
    from ec_ipc.connector.metadata import StepMetadata
    from ec_ipc.store import Store

logger = logging.getLogger(__name__)


class ConsumerWorker:
    """Loads what the scheduler holds. Never raises into vLLM: an item that cannot be loaded is reported
    to the scheduler, which fails its requests, and zeros keep the step alive until then."""

    def __init__(self, store: "Store", copies: bool, device: "torch.device", counts_reads: bool) -> None:
        self._store = store
        self._copies = copies
        self._device = device
        self._counts_reads = counts_reads
        self._failed: set[str] = set()

    def start_load_caches(self, meta: "StepMetadata", encoder_cache: dict[str, torch.Tensor]) -> None:
        """A view for each item of this step; an older one under the same name is replaced."""
        for load in meta.loads:
            try:
                encoder_cache[load.identifier] = self._load(load)
            except ECIPCError as error:
                logger.error("item %s cannot be loaded: %s", load.identifier, error)
                self._failed.add(load.identifier)
                dtype = dtypes.of_code(load.dtype)
                encoder_cache[load.identifier] = torch.zeros(load.shape, dtype=dtype, device=self._device)

    def _load(self, load: Load) -> torch.Tensor:
        pin = self._store.segment.pin_token(load.entry, load.generation)
        if pin is None:
            raise ArenaUnavailable("it was freed under the scheduler's hold; the directory is damaged")
        tensor = self._store.view(pin)
        if self._counts_reads:
            self._store.segment.count("reads")
        if self._copies:
            return tensor.to(self._device, copy=True)
        return tensor.to(self._device)  # the view itself, when the arena is on this device

    def build_connector_worker_meta(self) -> WorkerReport | None:
        """What could not be loaded since the last report."""
        if not self._failed:
            return None
        failed, self._failed = self._failed, set()
        return WorkerReport(failed)

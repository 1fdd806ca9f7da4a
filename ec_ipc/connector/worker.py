"""The worker half: which ranks take part, and the hooks routed to what the engine's role does."""

import logging
from typing import TYPE_CHECKING

import torch

from ec_ipc.connector import identity
from ec_ipc.connector.config import ConnectorConfig
from ec_ipc.connector.consumer_worker import ConsumerWorker
from ec_ipc.connector.producer_worker import ProducerWorker
from ec_ipc.connector.side_channel import SideChannelSender
from ec_ipc.store import Store

if TYPE_CHECKING:
    from vllm.config import VllmConfig

    from ec_ipc.connector.metadata import StepMetadata, WorkerReport

logger = logging.getLogger(__name__)


class WorkerHalf:
    """vLLM's worker hooks. A rank without an encoder, or one of several that encode the same, does
    nothing in those that are not for it."""

    def __init__(self, vllm_config: "VllmConfig", config: ConnectorConfig) -> None:
        self._vllm_config = vllm_config
        self._config = config
        self._store: Store | None = None
        self._producer: ProducerWorker | None = None
        self._consumer: ConsumerWorker | None = None
        self._channel = SideChannelSender(identity.engine_number(vllm_config))

    def start_worker_services(self) -> None:
        """Join the namespace; make the arena and map those that are there.

        Raises:
            ArenaUnavailable: the arena that was asked for cannot be had here.
            OutOfSharedMemory: it does not fit.
        """
        first_stage, first_rank = _place()
        publishes = self._config.is_producer and first_stage and first_rank
        reads = self._config.is_consumer and first_stage
        if self._store is not None or not (publishes or reads):
            return
        device = self._device()
        role = identity.worker_role(self._config.role)
        store = identity.open_store(self._vllm_config, self._config, role, device.index)
        self._store = store
        if publishes:
            store.create_arena(self._arena_kind(), self._config.arena_bytes)
            self._producer = ProducerWorker(store, self._channel)
        if reads:
            store.map_arenas()
            self._consumer = ConsumerWorker(
                store,
                copies=self._config.read_mode == "copy",
                device=device,
                counts_reads=first_rank,
            )
        identity.introduce(store, self._vllm_config, identity.worker_role(self._config.role))

    def _arena_kind(self) -> str:
        """``auto`` does not look for a GPU that vLLM does not use."""
        on_gpu = self._device().type == "cuda"
        return "host" if self._config.arena == "auto" and not on_gpu else self._config.arena

    def _device(self) -> torch.device:
        """What this worker's model runs on, by its own name for it."""
        kind = self._vllm_config.device_config.device_type
        return torch.device(kind, torch.cuda.current_device()) if kind == "cuda" else torch.device(kind)

    def start_save_caches(self, meta: "StepMetadata", encoder_cache: dict[str, torch.Tensor]) -> None:
        """Before a producer's model runs."""
        if self._producer is not None:
            self._producer.start_save_caches(meta, encoder_cache)

    def save_caches(self, encoder_cache: dict[str, torch.Tensor], identifier: str) -> None:
        """An item has just been encoded. V1 calls this on consumers too."""
        if self._producer is not None:
            self._producer.save_caches(encoder_cache, identifier)

    def start_load_caches(self, meta: "StepMetadata", encoder_cache: dict[str, torch.Tensor]) -> None:
        """Before a consumer's embeddings are gathered."""
        if self._consumer is not None:
            self._consumer.start_load_caches(meta, encoder_cache)

    def build_connector_worker_meta(self) -> "WorkerReport | None":
        """At the end of a step."""
        self._channel.flush()
        return self._consumer.build_connector_worker_meta() if self._consumer is not None else None

    def shutdown(self) -> None:
        """Leave the namespace. Views in vLLM's encoder cache stay valid."""
        if self._store is not None:
            self._store.close()


def create(vllm_config: "VllmConfig", config: ConnectorConfig) -> WorkerHalf:
    """The worker half. It joins in ``start_worker_services``, when this rank's place is known."""
    return WorkerHalf(vllm_config, config)


def _place() -> tuple[bool, bool]:
    """Whether this rank is of the first pipeline stage, and whether it is the first of its group."""
    from vllm.distributed import parallel_state

    first_stage = parallel_state.get_pp_group().is_first_rank
    ranks = [parallel_state.get_tensor_model_parallel_rank(), parallel_state.get_pcp_group().rank_in_group]
    return first_stage, not any(ranks)

"""Makes the scheduler half for a role: joins the namespace, and brings our encoder-cache manager."""

import logging
from typing import TYPE_CHECKING, Any, Protocol

from vllm.distributed.ec_transfer.ec_connector.utils import PlaceholderMetadataResolver

from ec_ipc.connector import encoder_cache_manager, identity, support
from ec_ipc.connector.arena_space import ArenaSpace
from ec_ipc.connector.config import ConnectorConfig
from ec_ipc.connector.consumer_scheduler import ConsumerScheduler
from ec_ipc.connector.metrics import Collector
from ec_ipc.connector.producer_scheduler import ProducerScheduler
from ec_ipc.connector.shared_cache_scheduler import SharedCacheScheduler
from ec_ipc.connector.side_channel import SideChannelReceiver

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.outputs import ECConnectorOutput
    from vllm.v1.request import Request

    from ec_ipc.connector.metadata import StepMetadata

logger = logging.getLogger(__name__)


class SchedulerHalf(Protocol):
    """vLLM's scheduler hooks, as each role implements them."""

    metrics: Collector

    def ensure_cache_available(self, request: "Request", computed: int) -> bool: ...
    def has_cache_item(self, identifier: str) -> bool: ...
    def update_state_after_alloc(self, request: "Request", index: int) -> None: ...
    def build_connector_meta(self, output: "SchedulerOutput") -> "StepMetadata": ...
    def update_state_after_free(self, request: "Request", index: int) -> None: ...
    def take_unavailable_requests(self) -> set[str]: ...
    def update_connector_output(self, output: "ECConnectorOutput") -> None: ...
    def request_finished(self, request: "Request") -> tuple[bool, dict[str, Any] | None]: ...
    def shutdown(self) -> None: ...


def create(vllm_config: "VllmConfig", config: ConnectorConfig) -> SchedulerHalf:
    """Join the namespace as this engine's scheduler.

    Raises:
        ConfigurationError, SegmentError: see ``Store.open``.
    """
    engine = identity.engine_number(vllm_config)
    store = identity.open_store(vllm_config, config, identity.scheduler_role(config.role))
    resolver = PlaceholderMetadataResolver(vllm_config.model_config)
    worker_role = identity.worker_role(config.role)
    channel = SideChannelReceiver(engine)
    half: ProducerScheduler | ConsumerScheduler
    workers = 1
    if config.role == "ec_producer":
        transfer = vllm_config.ec_transfer_config
        assert transfer is not None
        space = ArenaSpace(
            store,
            engine,
            worker_role,
            getattr(transfer, "mm_encoder_output_widths", {}),  # since vLLM 0.32
            vllm_config.model_config.dtype.itemsize,
        )
        half = ProducerScheduler(store, config, space, resolver, channel)
    else:
        parallel = vllm_config.parallel_config
        workers = parallel.tensor_parallel_size * parallel.prefill_context_parallel_size
        kind = SharedCacheScheduler if config.role == "ec_both" else ConsumerScheduler
        half = kind(store, config, engine, worker_role, workers, resolver)
    half.metrics = Collector(store, engine, half.tally, workers, channel)
    encoder_cache_manager.install(vllm_config, half)
    identity.introduce(store, vllm_config, identity.scheduler_role(config.role))
    if support.both_caches_off(vllm_config):
        logger.warning(
            "the multimodal processor cache and prefix caching are both off, so an item without a uuid gets "
            "an identifier that no other engine shares and is never published; send a uuid with each item, "
            "or turn one of the two caches on (--mm-processor-cache-gb, --enable-prefix-caching)"
        )
    return half

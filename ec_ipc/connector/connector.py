"""``ECIPCConnector``: the object vLLM makes, once in the scheduler and once in each worker.

It only routes. The halves are imported when they are made, so that the scheduler side never sees
what only a worker needs.
"""

from typing import TYPE_CHECKING, Any

import vllm
from vllm.distributed.ec_transfer.ec_connector.base import ECConnectorBase, ECConnectorRole

from ec_ipc.connector import config as configuration
from ec_ipc.connector import log, support
from ec_ipc.connector.metadata import StepMetadata

if TYPE_CHECKING:
    import torch
    from vllm.config import VllmConfig
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.outputs import ECConnectorOutput
    from vllm.v1.request import Request

    from ec_ipc.connector.metadata import WorkerReport
    from ec_ipc.connector.prometheus import ECIPCPromMetrics, ECIPCStats
    from ec_ipc.connector.scheduler import SchedulerHalf
    from ec_ipc.connector.worker import WorkerHalf


class ECIPCConnector(ECConnectorBase):
    """Hands encoder outputs over inside one node, in place. See DESIGN.md, "vLLM hooks"."""

    def __init__(self, vllm_config: "VllmConfig", role: ECConnectorRole) -> None:
        super().__init__(vllm_config=vllm_config, role=role)
        log.use_vllm_handlers()
        support.check_vllm(ECConnectorBase, vllm.__version__)
        support.check_deployment(vllm_config)
        transfer = vllm_config.ec_transfer_config
        assert transfer is not None
        config = configuration.parse(
            transfer.ec_role, transfer.ec_connector_extra_config, transfer.ec_buffer_size
        )
        self._stats_class: type[ECIPCStats] | None = None  # needs vLLM 0.32
        self._scheduler: SchedulerHalf | None = None
        self._worker: WorkerHalf | None = None
        if role == ECConnectorRole.SCHEDULER:
            from ec_ipc.connector import scheduler

            self._scheduler = scheduler.create(vllm_config, config)
        else:
            from ec_ipc.connector import worker

            self._worker = worker.create(vllm_config, config)

    def shutdown(self) -> None:
        """Leave the namespace."""
        if self._scheduler is not None:
            self._scheduler.metrics.close()
        half = self._scheduler or self._worker
        if half is not None:
            half.shutdown()

    # Metrics: vLLM 0.32 and newer ask for them

    def get_ec_connector_stats(self) -> "ECIPCStats | None":
        """What has happened since the last step. Asked of the scheduler; a worker has nothing to add."""
        data = self._scheduler.metrics.collect() if self._scheduler is not None else None
        if data is None:
            return None
        if self._stats_class is None:
            from ec_ipc.connector.prometheus import ECIPCStats

            self._stats_class = ECIPCStats
        return self._stats_class(data=data)

    @classmethod
    def build_ec_connector_stats(cls, data: dict[str, Any] | None = None) -> "ECIPCStats":
        """What ``get_ec_connector_stats`` reported, in vLLM's front end."""
        from ec_ipc.connector.prometheus import ECIPCStats

        return ECIPCStats(data=data or {})

    @classmethod
    def build_prom_metrics(
        cls,
        vllm_config: "VllmConfig",
        metric_types: dict[Any, Any],
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> "ECIPCPromMetrics":
        """The metrics of vLLM's front end."""
        from ec_ipc.connector.prometheus import ECIPCPromMetrics

        return ECIPCPromMetrics(vllm_config, metric_types, labelnames, per_engine_labelvalues)

    # Worker side

    def start_worker_services(self) -> None:
        """The weights are there, and vLLM has not profiled memory yet."""
        self._worker_half.start_worker_services()

    def start_save_caches(self, **kwargs: Any) -> None:
        """Before a producer's model runs."""
        self._worker_half.start_save_caches(self._meta, kwargs["encoder_cache"])

    def start_load_caches(self, encoder_cache: dict[str, "torch.Tensor"], **kwargs: Any) -> None:
        """Before a consumer's embeddings are gathered."""
        self._worker_half.start_load_caches(self._meta, encoder_cache)

    def save_caches(self, encoder_cache: dict[str, "torch.Tensor"], mm_hash: str, **kwargs: Any) -> None:
        """An item has just been encoded."""
        self._worker_half.save_caches(encoder_cache, mm_hash)

    def build_connector_worker_meta(self) -> "WorkerReport | None":
        """At the end of a worker's step."""
        return self._worker_half.build_connector_worker_meta()

    # Scheduler side

    def ensure_cache_available(self, request: "Request", num_computed_tokens: int) -> bool:
        """Before a request is scheduled."""
        return self._scheduler_half.ensure_cache_available(request, num_computed_tokens)

    def has_cache_item(self, identifier: str) -> bool:
        """Whether an item need not be encoded."""
        return self._scheduler_half.has_cache_item(identifier)

    def update_state_after_alloc(self, request: "Request", index: int) -> None:
        """An item is loaded or encoded in this step."""
        self._scheduler_half.update_state_after_alloc(request, index)

    def build_connector_meta(self, scheduler_output: "SchedulerOutput") -> StepMetadata:
        """What the workers are to do in this step."""
        return self._scheduler_half.build_connector_meta(scheduler_output)

    def update_state_after_free(self, request: "Request", index: int) -> None:
        """An item is in the KV cache."""
        self._scheduler_half.update_state_after_free(request, index)

    def take_unavailable_requests(self) -> set[str]:
        """Once for each finished step: the requests that cannot get an item."""
        return self._scheduler_half.take_unavailable_requests()

    def update_connector_output(self, connector_output: "ECConnectorOutput") -> None:
        """What the workers reported."""
        self._scheduler_half.update_connector_output(connector_output)

    def request_finished(self, request: "Request") -> tuple[bool, dict[str, Any] | None]:
        """For every status; its dict reaches the client as ``ec_transfer_params``."""
        return self._scheduler_half.request_finished(request)

    @property
    def _meta(self) -> StepMetadata:
        meta = self._get_connector_metadata()
        assert isinstance(meta, StepMetadata)
        return meta

    @property
    def _scheduler_half(self) -> "SchedulerHalf":
        assert self._scheduler is not None, "a scheduler's hook was called on a worker's connector"
        return self._scheduler

    @property
    def _worker_half(self) -> "WorkerHalf":
        assert self._worker is not None, "a worker's hook was called on a scheduler's connector"
        return self._worker

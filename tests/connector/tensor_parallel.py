"""As lockstep.py, with a second rank that executes each step late: just before its output is due."""

from __future__ import annotations

from collections import deque
from typing import Any
from unittest import mock

import torch
from vllm.config import VllmConfig
from vllm.distributed.ec_transfer.ec_connector.base import ECConnectorRole
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.outputs import ModelRunnerOutput

from ec_ipc.connector import worker
from ec_ipc.connector.connector import ECIPCConnector

from .lockstep import LockstepEngine, encoded


class TensorParallelEngine(LockstepEngine):
    """A consumer of two ranks."""

    def __init__(self, config: VllmConfig, *args: Any) -> None:
        config.parallel_config.tensor_parallel_size = 2
        super().__init__(config, *args)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.second = ECIPCConnector(self.config, ECConnectorRole.WORKER)
        self.second_cache: dict[str, torch.Tensor] = {}
        self.behind: deque[SchedulerOutput] = deque()

    def start_second(self) -> None:
        """The second rank joins and maps; until then PD must not rely on it."""
        with mock.patch.object(worker, "_place", lambda: (True, False)):
            self.second.start_worker_services()

    def _execute(self, output: SchedulerOutput) -> ModelRunnerOutput:
        self.behind.append(output)
        return super()._execute(output)

    def _process(self) -> None:
        self._execute_second(self.behind.popleft())
        super()._process()

    def _execute_second(self, output: SchedulerOutput) -> None:
        for identifier in output.free_encoder_mm_hashes:
            self.second_cache.pop(identifier, None)
        if not output.total_num_scheduled_tokens:
            return
        assert output.ec_connector_metadata is not None
        self.second.bind_connector_metadata(output.ec_connector_metadata)
        self.second.start_load_caches(self.second_cache)
        for request_id, indices in output.scheduled_encoder_inputs.items():
            for feature in (self.features[request_id][index] for index in indices):
                rows = feature.mm_position.get_num_embeds()
                self.second_cache[feature.identifier] = encoded(feature.identifier, rows)
        self._gather(output, self.second_cache)
        assert self.second.build_connector_worker_meta() is None
        self.second.clear_connector_metadata()

    def shutdown(self) -> None:
        self.second_cache.clear()
        self.second.shutdown()
        super().shutdown()

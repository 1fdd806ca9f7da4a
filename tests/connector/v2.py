"""As lockstep.py, with the encoder-cache glue of vLLM's V2 model runner, which is its own code."""

from __future__ import annotations

from unittest import mock

from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.worker.gpu import ec_connector as glue

from .lockstep import LockstepEngine, encoded


class V2Engine(LockstepEngine):
    """V2 calls the connector in steps without tokens too, saves what is new after the encoder has run, on
    producers only, keeps a producer's worker metadata, and does not encode what it has a tensor of."""

    def __post_init__(self) -> None:
        super().__post_init__()
        with mock.patch.object(glue, "get_ec_transfer", lambda: self.worker):
            self.connector = glue.ActiveECConnector(self.config, self.encoder_cache)

    def _execute(self, output: SchedulerOutput) -> ModelRunnerOutput:
        for identifier in output.free_encoder_mm_hashes:
            self.encoder_cache.pop(identifier, None)
        if self.worker.is_consumer:
            assert output.ec_connector_metadata is not None
            self.loads += [load.identifier for load in output.ec_connector_metadata.loads]
        if not output.total_num_scheduled_tokens:
            return self.connector.no_forward(output)
        with self.connector.maybe_get_output(output) as report:
            self._encode(output)
            if not self._produces_only:
                self._gather(output)
        return self._result(output, report)

    def _encode(self, output: SchedulerOutput) -> None:
        for request_id, indices in output.scheduled_encoder_inputs.items():
            for index in indices:
                feature = self.features[request_id][index]
                if feature.identifier in self.encoder_cache:
                    continue
                assert feature.data is not None, f"encode of {feature.identifier}, which has no pixels"
                self.encodes.append(feature.identifier)
                rows = feature.mm_position.get_num_embeds()
                self.encoder_cache[feature.identifier] = encoded(feature.identifier, rows)

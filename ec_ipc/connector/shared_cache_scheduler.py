"""The scheduler half of ``ec_both``: engines that read what the others, and they themselves, encoded.

Nobody announces: entries stay until the least recently used is evicted.
"""

from typing import TYPE_CHECKING

from ec_ipc.connector.consumer_scheduler import ConsumerScheduler
from ec_ipc.connector.items import is_request_scoped
from ec_ipc.connector.metadata import StepMetadata

if TYPE_CHECKING:
    from vllm.v1.core.sched.output import SchedulerOutput


class SharedCacheScheduler(ConsumerScheduler):
    """A consumer that has its workers publish what it encodes."""

    def build_connector_meta(self, output: "SchedulerOutput") -> StepMetadata:
        """The loads of this step, and its encoded items without an announcement."""
        meta = super().build_connector_meta(output)
        for request_id, indices in output.scheduled_encoder_inputs.items():
            state = self._requests.get(request_id)
            if state is None:
                continue
            for index in indices:
                identifier = state.request.mm_features[index].identifier
                if not is_request_scoped(identifier):
                    meta.saves[identifier] = 0
        return meta

"""Reading vLLM's SchedulerOutput."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vllm.v1.core.sched.output import SchedulerOutput


def scheduled_windows(output: "SchedulerOutput") -> Iterator[tuple[str, int, int]]:
    """(request id, first position, end) of the tokens that each request computes in this step."""
    for new in output.scheduled_new_reqs:
        start = new.num_computed_tokens
        yield new.req_id, start, start + output.num_scheduled_tokens[new.req_id]
    cached = output.scheduled_cached_reqs
    for request_id, start in zip(cached.req_ids, cached.num_computed_tokens, strict=True):
        yield request_id, start, start + output.num_scheduled_tokens[request_id]

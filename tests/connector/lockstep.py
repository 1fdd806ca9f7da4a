"""One engine without a model: vLLM's real scheduler, requests and outputs, our real connector twice.

The model runner's part is played here, in the order in which vLLM's V1 runner calls the hooks:
free, save or load, encode, gather. What the encoder computes is a function of the identifier, so a
gather that finds other bytes fails on the spot.
"""

import contextlib
import hashlib
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.distributed import parallel_state
from vllm.distributed.ec_transfer.ec_connector.base import ECConnectorRole
from vllm.engine.arg_utils import EngineArgs
from vllm.multimodal.inputs import MultiModalFeatureSpec, MultiModalKwargsItem, PlaceholderRange
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.utils.network_utils import get_open_port
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import ECConnectorOutput, ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

from ec_ipc.connector.connector import ECIPCConnector

BLOCK = 16
WIDTH = 8
TOKEN = 7  # what the model always says


@contextlib.contextmanager
def single_rank() -> Iterator[None]:
    """vLLM's process groups, of this one process."""
    with set_current_vllm_config(VllmConfig()):
        address = f"tcp://127.0.0.1:{get_open_port()}"
        parallel_state.init_distributed_environment(1, 0, address, 0, backend="gloo")
        parallel_state.initialize_model_parallel(1, 1)
    yield
    parallel_state.destroy_model_parallel()
    parallel_state.destroy_distributed_environment()


def encoded(identifier: str, rows: int) -> torch.Tensor:
    """What the encoder makes of an item."""
    seed = int.from_bytes(hashlib.sha256(identifier.encode()).digest()[:4], "big")
    return torch.randn(rows, WIDTH, generator=torch.Generator().manual_seed(seed))


@dataclass(frozen=True)
class Item:
    """One occurrence of a picture in a prompt."""

    identifier: str
    rows: int = 16
    pixels: bool = True


def make_request(
    request_id: str,
    items: list[Item],
    *,
    max_tokens: int = 1,
    text: int = 4,
    params: dict[str, Any] | None = None,
    priority: int = 0,
) -> Request:
    """Text, then each item followed by text."""
    features, length = [], text
    for item in items:
        features.append(
            MultiModalFeatureSpec(
                data=MultiModalKwargsItem.dummy() if item.pixels else None,
                modality="image",
                identifier=item.identifier,
                mm_position=PlaceholderRange(offset=length, length=item.rows),
                mm_hash=item.identifier,
            )
        )
        length += item.rows + text
    sampling = SamplingParams(max_tokens=max_tokens, temperature=0, ignore_eos=True)
    if params is not None:
        sampling.extra_args = {"ec_transfer_params": params}
    init_none_hash(sha256)
    return Request(
        request_id,
        list(range(10, 10 + length)),
        sampling,
        None,
        mm_features=features,
        priority=priority,
        block_hasher=get_request_block_hasher(BLOCK, sha256),
    )


def engine_config(model: str, role: str, namespace: str, **extra: Any) -> VllmConfig:
    """The configuration of an engine that uses our connector. ``args`` go to vLLM; ``widths`` are those of
    its encoder, by modality."""
    args = extra.pop("args", {})
    widths = extra.pop("widths", {})
    config = EngineArgs(
        model=model,
        dtype="float32",
        max_model_len=512,
        enforce_eager=True,
        ec_transfer_config={
            "ec_connector": "ECIPCConnector",
            "ec_connector_module_path": "ec_ipc.connector",
            "ec_role": role,
            "ec_connector_extra_config": {"namespace": namespace, "arena": "host", **extra},
        },
        **args,
    ).create_engine_config()
    assert config.ec_transfer_config is not None
    config.ec_transfer_config.mm_encoder_output_widths = widths  # vLLM measures it when it has a model
    return config


@dataclass
class Finished:
    """How a request ended."""

    status: RequestStatus
    params: dict[str, Any] | None


@dataclass
class LockstepEngine:
    """An engine whose steps are taken one at a time. ``depth`` steps may be in flight."""

    config: VllmConfig
    blocks: int = 200
    depth: int = 1
    encoder_cache: dict[str, torch.Tensor] = field(default_factory=dict)
    encodes: list[str] = field(default_factory=list)
    loads: list[str] = field(default_factory=list)
    errors: set[str] = field(default_factory=set)
    answers: dict[str, dict[str, Any] | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.config.cache_config.num_gpu_blocks = self.blocks
        self.worker = ECIPCConnector(self.config, ECConnectorRole.WORKER)
        self.worker.start_worker_services()
        spec = FullAttentionSpec(block_size=BLOCK, num_kv_heads=4, head_size=32, dtype=torch.float32)
        kind = Scheduler if self.depth == 1 else AsyncScheduler
        self.scheduler = kind(
            vllm_config=self.config,
            kv_cache_config=KVCacheConfig(
                num_blocks=self.blocks,
                kv_cache_tensors=[],
                kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)],
            ),
            structured_output_manager=StructuredOutputManager(self.config),
            block_size=BLOCK,
        )
        self.features: dict[str, list[MultiModalFeatureSpec]] = {}
        self.in_flight: deque[tuple[SchedulerOutput, ModelRunnerOutput]] = deque()

    def add(self, request: Request) -> Request:
        self.features[request.request_id] = request.mm_features
        self.scheduler.add_request(request)
        return request

    def abort(self, request_id: str) -> None:
        self.scheduler.finish_requests(request_id, RequestStatus.FINISHED_ABORTED)

    def step(self) -> SchedulerOutput:
        """Schedule one step and execute it; process the outputs that are due."""
        output = self.scheduler.schedule()
        self.in_flight.append((output, self._execute(output)))
        while len(self.in_flight) >= self.depth:
            self._process()
        return output

    def drain(self) -> None:
        """Process every output in flight."""
        while self.in_flight:
            self._process()

    def _process(self) -> None:
        output, result = self.in_flight.popleft()
        for batch in self.scheduler.update_from_output(output, result).values():
            for answer in batch.outputs:
                if answer.finish_reason is not None:
                    self.answers[answer.request_id] = answer.ec_transfer_params
                    if str(answer.finish_reason) == "error":
                        self.errors.add(answer.request_id)

    def run(self, steps: int = 100) -> None:
        """Until nothing is left to do, then the empty step that frees."""
        for _ in range(steps):
            if not self.scheduler.has_unfinished_requests():
                break
            self.step()
        else:
            raise AssertionError(f"still busy after {steps} steps")
        self.drain()
        self.step()
        self.drain()

    def _execute(self, output: SchedulerOutput) -> ModelRunnerOutput:
        for identifier in output.free_encoder_mm_hashes:
            self.encoder_cache.pop(identifier, None)
        report = None
        if self._produces_only or output.total_num_scheduled_tokens:
            report = self._connected(output, self._produces_only)
        return self._result(output, None if self._produces_only else report)

    @property
    def _produces_only(self) -> bool:
        return bool(self.worker.is_producer and not self.worker.is_consumer)

    def _result(self, output: SchedulerOutput, report: ECConnectorOutput | None) -> ModelRunnerOutput:
        sampled = [self._sample(output, request_id) for request_id in output.num_scheduled_tokens]
        return ModelRunnerOutput(
            req_ids=list(output.num_scheduled_tokens),
            req_id_to_index={name: index for index, name in enumerate(output.num_scheduled_tokens)},
            sampled_token_ids=sampled,
            ec_connector_output=report,
        )

    def _connected(self, output: SchedulerOutput, produces_only: bool) -> ECConnectorOutput:
        assert output.ec_connector_metadata is not None
        self.worker.bind_connector_metadata(output.ec_connector_metadata)
        if self.worker.is_producer:
            self.worker.start_save_caches(encoder_cache=self.encoder_cache)
        if self.worker.is_consumer:
            self.loads += [load.identifier for load in output.ec_connector_metadata.loads]
            self.worker.start_load_caches(self.encoder_cache)
        for request_id, indices in output.scheduled_encoder_inputs.items():
            for index in indices:
                feature = self.features[request_id][index]
                assert feature.data is not None, f"encode of {feature.identifier}, which has no pixels"
                self.encodes.append(feature.identifier)
                rows = feature.mm_position.get_num_embeds()
                self.encoder_cache[feature.identifier] = encoded(feature.identifier, rows)
                self.worker.save_caches(encoder_cache=self.encoder_cache, mm_hash=feature.identifier)
        if not produces_only:
            self._gather(output)
        report = ECConnectorOutput()
        report.ec_connector_worker_meta = self.worker.build_connector_worker_meta()
        self.worker.clear_connector_metadata()
        return report

    def _gather(self, output: SchedulerOutput, cache: dict[str, torch.Tensor] | None = None) -> None:
        """Every item of the step is there, with the right bytes: else vLLM's engine dies."""
        cache = self.encoder_cache if cache is None else cache
        starts = {new.req_id: new.num_computed_tokens for new in output.scheduled_new_reqs}
        cached = output.scheduled_cached_reqs
        starts |= dict(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
        for request_id, count in output.num_scheduled_tokens.items():
            for feature in self.features[request_id]:
                place = feature.mm_position
                end = starts[request_id] + count
                if place.offset < end and place.offset + place.length > starts[request_id]:
                    tensor = cache[feature.identifier]
                    assert torch.equal(tensor, encoded(feature.identifier, place.length))

    def _sample(self, output: SchedulerOutput, request_id: str) -> list[int]:
        if self._produces_only:
            return []  # vLLM ends these requests when the prompt is encoded
        return [TOKEN] if self._prompt_done(output, request_id) else []

    def _prompt_done(self, output: SchedulerOutput, request_id: str) -> bool:
        request = self.scheduler.requests[request_id]
        starts = {new.req_id: new.num_computed_tokens for new in output.scheduled_new_reqs}
        cached = output.scheduled_cached_reqs
        starts |= dict(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
        return starts[request_id] + output.num_scheduled_tokens[request_id] >= request.num_prompt_tokens

    def shutdown(self) -> None:
        self.encoder_cache.clear()
        self.scheduler.shutdown()
        self.worker.shutdown()

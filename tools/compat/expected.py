"""What the connector needs of vLLM, and the check of one version's sources against it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from compat.source import Call, Module, Signature

BASE = "vllm/distributed/ec_transfer/ec_connector/base.py"
UTILS = "vllm/distributed/ec_transfer/ec_connector/utils.py"
MANAGER = "vllm/v1/core/encoder_cache_manager.py"
SCHEDULER = "vllm/v1/core/sched/scheduler.py"
OUTPUT = "vllm/v1/core/sched/output.py"
RUNNER_V1 = "vllm/v1/worker/ec_connector_model_runner_mixin.py"
RUNNER_V2 = "vllm/v1/worker/gpu/ec_connector.py"
WORKER = "vllm/v1/worker/gpu_worker.py"
CPU_WORKER = "vllm/v1/worker/cpu_worker.py"
REQUEST = "vllm/v1/request.py"
OUTPUTS = "vllm/v1/outputs.py"
INPUTS = "vllm/multimodal/inputs.py"
TRANSFER = "vllm/config/ec_transfer.py"
MANAGER_CONFIG = "vllm/config/ec_manager_config.py"
PARALLEL = "vllm/config/parallel.py"
PARALLEL_STATE = "vllm/distributed/parallel_state.py"
FACTORY = "vllm/distributed/ec_transfer/ec_connector/factory.py"
RENDERER = "vllm/renderers/base.py"

FILES = (
    BASE, UTILS, MANAGER, SCHEDULER, OUTPUT, RUNNER_V1, RUNNER_V2, WORKER, CPU_WORKER, REQUEST, OUTPUTS,
    INPUTS, TRANSFER, MANAGER_CONFIG, PARALLEL, PARALLEL_STATE, FACTORY, RENDERER,
)  # fmt: skip

CONNECTOR = "ec_ipc/connector/connector.py"
OUR_MANAGER = "ec_ipc/connector/encoder_cache_manager.py"

# Hooks of vLLM's that the connector leaves to their defaults. A hook that is neither here nor
# implemented is new: somebody must decide.
LEFT_ALONE = {
    "role", "is_producer", "is_consumer", "bind_connector_metadata", "clear_connector_metadata",
    "_get_connector_metadata", "register_caches", "get_finished", "get_ec_connector_stats",
    "has_pending_push_work", "build_ec_connector_stats", "build_prom_metrics", "__init__",
}  # fmt: skip

# Hooks that came after 0.30: an older vLLM does not call them, and nothing depends on them.
NEWER = {"get_ec_connector_stats", "build_ec_connector_stats", "build_prom_metrics"}

# Where vLLM must call each hook, or a promise breaks silently.
CALLED = {
    SCHEDULER: (
        "ensure_cache_available", "has_cache_item", "update_state_after_alloc", "build_connector_meta",
        "update_state_after_free", "take_unavailable_requests", "update_connector_output", "request_finished",
    ),
    RUNNER_V1: ("start_save_caches", "start_load_caches", "save_caches", "build_connector_worker_meta"),
    RUNNER_V2: ("start_save_caches", "start_load_caches", "save_caches", "build_connector_worker_meta"),
    WORKER: ("start_worker_services",),
}  # fmt: skip

# Called by vLLM on the manager that the scheduler has built.
MANAGER_CALLS = ("can_allocate", "allocate", "free_encoder_input", "reset", "create_manager")
# Assigned in vLLM's manager; our manager reads or changes them.
MANAGER_STATE = ("cached", "freeable", "freed", "num_free_slots")

# Attributes that are read: file -> class -> names.
FIELDS = {
    OUTPUT: {
        "SchedulerOutput": (
            "scheduled_new_reqs", "scheduled_cached_reqs", "num_scheduled_tokens", "scheduled_encoder_inputs",
            "free_encoder_mm_hashes", "total_num_scheduled_tokens", "ec_connector_metadata",
        ),
        "NewRequestData": ("req_id", "num_computed_tokens"),
        "CachedRequestData": ("req_ids", "num_computed_tokens"),
    },
    OUTPUTS: {"ECConnectorOutput": ("ec_connector_worker_meta",)},
    INPUTS: {
        "MultiModalFeatureSpec": ("data", "modality", "identifier", "mm_position"),
        "PlaceholderRange": ("offset", "length", "get_num_embeds"),
        "MultiModalKwargsItem": ("get_data",),
    },
    REQUEST: {
        "Request": ("request_id", "mm_features", "status", "ec_transfer_params"),
        "RequestStatus": ("FINISHED_ABORTED", "FINISHED_ERROR"),
    },
    TRANSFER: {
        "ECTransferConfig": (
            "ec_role", "ec_connector_extra_config", "ec_buffer_size", "engine_id", "is_ec_producer",
            "is_ec_consumer",
        ),
    },
    MANAGER_CONFIG: {"EncoderCacheManagerConfig": ("encoder_cache_manager_cls", "manager_config")},
    PARALLEL: {
        "ParallelConfig": (
            "tensor_parallel_size", "prefill_context_parallel_size", "data_parallel_index",
            "distributed_executor_backend",
        ),
    },
    UTILS: {"PlaceholderMetadataResolver": ("fields_for",)},
    FACTORY: {"ECConnectorFactory": ("_registry", "register_connector")},
}  # fmt: skip
FUNCTIONS = {
    UTILS: {"collect_ec_item_metadata": 2},  # with so many positional arguments
    PARALLEL_STATE: {"get_pp_group": 0, "get_tensor_model_parallel_rank": 0, "get_pcp_group": 0},
}


def check(folder: Path, repo: Path) -> Iterator[str]:
    """One sentence for each difference."""
    vllm = {name: Module(folder / name) for name in FILES}
    connector = Module(repo / CONNECTOR).methods("ECIPCConnector")
    base = vllm[BASE].methods("ECConnectorBase")
    yield from _hooks(connector, base, vllm[BASE].abstract("ECConnectorBase"))
    yield from _calls(vllm, connector, base)
    yield from _manager(vllm, Module(repo / OUR_MANAGER).methods("ECIPCEncoderCacheManager"))
    yield from _fields(vllm)
    yield from _identifiers(vllm[RENDERER].text, (repo / "ec_ipc/connector/items.py").read_text())


def _hooks(ours: dict[str, Signature], base: dict[str, Signature], abstract: set[str]) -> Iterator[str]:
    public = {name for name in ours if not name.startswith("_")}
    for name in sorted(public - base.keys() - NEWER):
        yield f"ECConnectorBase has no {name}, which the connector implements"
    for name in sorted(base.keys() - public - LEFT_ALONE):
        yield f"ECConnectorBase has a new hook {name}{base[name]}: implement it, or list it in LEFT_ALONE"
    for name in sorted(abstract - public):
        yield f"ECConnectorBase.{name} is abstract and the connector does not implement it"
    for name in sorted(public & base.keys()):
        if reason := ours[name].refuses(base[name]):
            yield f"{name}: vLLM has {base[name]}, the connector {ours[name]}: {reason}"


def _calls(vllm: dict[str, Module], ours: dict[str, Signature], base: dict[str, Signature]) -> Iterator[str]:
    for name, module in vllm.items():
        if not name.startswith("vllm/v1/"):
            continue
        for call in module.calls(set(base)):
            signature = ours.get(call.method, base.get(call.method))
            if _on_connector(name, call) and signature and (reason := signature.cannot_take(call)):
                yield f"{name}:{call.line} calls {call.receiver}.{call.method}{call}: {reason}"
    for name, methods in CALLED.items():
        there = {call.method for call in vllm[name].calls(set(methods)) if _on_connector(name, call)}
        for method in methods:
            if method not in there:
                yield f"{name} no longer calls {method} on the encoder-cache connector"


def _on_connector(name: str, call: Call) -> bool:
    """Not on the KV connector, which has methods of the same names."""
    return "ec_connector" in call.receiver or "ec_transfer" in call.receiver or name == RUNNER_V1


def _manager(vllm: dict[str, Module], ours: dict[str, Signature]) -> Iterator[str]:
    theirs = vllm[MANAGER].methods("EncoderCacheManager")
    for name in ("__init__", *MANAGER_CALLS):
        if name not in theirs:
            yield f"EncoderCacheManager has no {name}"
        elif name != "__init__" and (reason := ours[name].refuses(theirs[name])):
            yield f"EncoderCacheManager.{name}: vLLM has {theirs[name]}, ours {ours[name]}: {reason}"
    if "__init__" in theirs and theirs["__init__"].required != ["cache_size"]:
        yield f"EncoderCacheManager is made with {theirs['__init__']}, and ours passes cache_size only"
    assigned = vllm[MANAGER].assigned("EncoderCacheManager")
    for name in MANAGER_STATE:
        if name not in assigned:
            yield f"EncoderCacheManager no longer has {name}"
    for call in vllm[SCHEDULER].calls(set(MANAGER_CALLS)):
        on_manager = "encoder_cache_manager" in call.receiver or call.method == "create_manager"
        if on_manager and (reason := ours[call.method].cannot_take(call)):
            yield f"{SCHEDULER}:{call.line} calls {call.receiver}.{call.method}{call}: {reason}"
    text = vllm[SCHEDULER].text
    connector, manager = (
        text.find(word) for word in ("ECConnectorFactory.create_connector", "encoder_cache_manager =")
    )
    if not -1 < connector < manager:
        yield "the scheduler no longer builds its encoder-cache manager after the connector"
    if "create_manager" not in text or "ec_manager_config" not in text:
        yield "the scheduler no longer makes the manager that ec_manager_config names"


def _fields(vllm: dict[str, Module]) -> Iterator[str]:
    for name, classes in FIELDS.items():
        for owner, fields in classes.items():
            there = vllm[name].members(owner)
            if not there:
                yield f"{name} has no class {owner}"
                continue
            for each in fields:
                if each not in there:
                    yield f"{owner} has no {each} ({name})"
    for name, functions in FUNCTIONS.items():
        there_functions = vllm[name].functions()
        for function, count in functions.items():
            signature = there_functions.get(function)
            if signature is None:
                yield f"{name} has no function {function}"
            elif len(signature.required) > count or (not signature.rest and len(signature.names) < count):
                yield f"{name}: {function}{signature} cannot be called with {count} arguments"


def _identifiers(renderer: str, items: str) -> Iterator[str]:
    """Identifiers made from a request id must be told apart from hashes."""
    found = re.search(r'_REQUEST_SCOPED = re\.compile\(r"(.+)"\)', items)
    if found is None:
        yield "items.py has no _REQUEST_SCOPED pattern"
        return
    pattern = re.compile(found.group(1))
    templates = [
        node for node in ast.walk(ast.parse(renderer)) if isinstance(node, ast.JoinedStr) and _scoped(node)
    ]
    if not templates:
        yield f"{RENDERER} makes no identifiers of the form renderer<N>-mm-<N>: find the new form"
    for template in templates:
        request_id = "".join(
            str(part.value) if isinstance(part, ast.Constant) else "7" for part in template.values
        )
        for identifier in (f"{request_id}-image-0", f"lora:{request_id}-image-0"):
            if pattern.fullmatch(identifier) is None:
                yield f"{RENDERER}:{template.lineno} makes identifiers like {identifier!r}, taken for shared"


def _scoped(node: ast.JoinedStr) -> bool:
    return any(isinstance(part, ast.Constant) and "-mm-" in str(part.value) for part in node.values)

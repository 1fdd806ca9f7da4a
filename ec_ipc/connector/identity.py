"""Who an engine is: its namespace, what its embeddings depend on, and its number in the directory."""

import hashlib
import json
import logging
import os
import weakref
from typing import TYPE_CHECKING

import vllm

import ec_ipc
from ec_ipc import notes
from ec_ipc.connector import support
from ec_ipc.connector.config import ConnectorConfig
from ec_ipc.keys import fingerprint_digest
from ec_ipc.segment import KIND_NAMES
from ec_ipc.store import Store

if TYPE_CHECKING:
    from vllm.config import VllmConfig

    from ec_ipc._core import ArenaRecord

logger = logging.getLogger(__name__)

# For announcing and reserving, inside a step: the byte is held for microseconds, unless its holder is
# stopped. Then the item is not published, which costs less than an engine that stands still.
LOCK_TIMEOUT_S = 0.25

_SHORT_ROLES = {"ec_producer": "e", "ec_consumer": "pd", "ec_both": "both"}


def fingerprint(vllm_config: "VllmConfig") -> dict[str, object]:
    """Facts that must agree before an embedding of one engine may be read by another."""
    model = vllm_config.model_config
    multimodal = model.multimodal_config
    return {
        "model": model.model,
        "revision": model.revision,
        "dtype": str(model.dtype).removeprefix("torch."),
        "hf_config": hashlib.blake2b(
            json.dumps(model.hf_config.to_dict(), sort_keys=True, default=str).encode(), digest_size=8
        ).hexdigest(),
        "mm_processor_kwargs": None if multimodal is None else multimodal.mm_processor_kwargs,
    }


def default_namespace(facts: dict[str, object]) -> str:
    """The namespace of engines that were given none: the same model meets itself, and nothing else."""
    return f"model-{fingerprint_digest(facts).hex()[:16]}"


def engine_number(vllm_config: "VllmConfig") -> int:
    """63 bits that the scheduler and the workers of one engine, and nobody else, have in common."""
    transfer = vllm_config.ec_transfer_config
    text = f"{transfer.engine_id if transfer else ''}/{vllm_config.parallel_config.data_parallel_index}"
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def scheduler_role(role: str) -> str:
    """The participant role of a scheduler, as in ``ec-ipc status``."""
    return f"{_SHORT_ROLES[role]}.scheduler"


def worker_role(role: str) -> str:
    """The participant role of a worker, as in ``ec-ipc status``."""
    return f"{_SHORT_ROLES[role]}.worker"


def open_store(
    vllm_config: "VllmConfig", config: ConnectorConfig, role: str, device: int | None = None
) -> Store:
    """Join the engine's namespace in one of its two roles; a worker on a GPU says on which.

    Raises:
        ConfigurationError, SegmentError, OutOfSharedMemory, NoFreeSlot: see ``Store.open``.
    """
    facts = fingerprint(vllm_config)
    namespace = config.namespace if config.namespace is not None else default_namespace(facts)
    store = Store.open(
        namespace,
        deallocate=config.deallocate_cache,
        read_timeout_s=config.read_timeout_s,
        lock_timeout_s=LOCK_TIMEOUT_S,
        max_items=config.max_items,
        fingerprint=facts,
        role=role,
        engine=engine_number(vllm_config),
        device=device,
    )
    leave_note(store, vllm_config, role)
    return store


def introduce(store: Store, vllm_config: "VllmConfig", role: str) -> None:
    """Say in one line everything that shows why two engines do, or do not, meet."""
    facts = fingerprint(vllm_config)
    others = (p for p in store.segment.participants() if p.slot != store.segment.slot)
    logger.info(
        "ec_ipc: %s is slot %d of namespace %s; segment %s, layout %d, uid %d; fingerprint %s (%s); "
        "arenas: %s; other participants: %s",
        role,
        store.segment.slot,
        store.namespace,
        store.name,
        store.segment.layout_version,
        os.geteuid(),
        store.segment.fingerprint.hex()[:16],
        ", ".join(f"{field} {value}" for field, value in facts.items()),
        ", ".join(_arena_words(arena) for arena in store.segment.arenas()) or "none yet",
        ", ".join(f"{p.role} (slot {p.slot}, pid {p.pid})" for p in others) or "none yet",
    )


def _arena_words(arena: "ArenaRecord") -> str:
    return f"{KIND_NAMES.get(arena.kind, arena.kind)} of {arena.nbytes} bytes (slot {arena.slot})"


def leave_note(store: Store, vllm_config: "VllmConfig", role: str) -> None:
    """What ``ec-ipc doctor`` cannot learn from the directory; it lasts as long as the store."""
    note = notes.leave(
        {
            "namespace": store.namespace,
            "slot": store.segment.slot,
            "role": role,
            "both_caches_off": support.both_caches_off(vllm_config),
            "vllm": vllm.__version__,
            "ec_ipc": ec_ipc.__version__,
        }
    )
    weakref.finalize(store, os.close, note)

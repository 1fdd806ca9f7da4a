"""Who an engine is: its namespace, what its embeddings depend on, and its number in the directory."""

import hashlib
import json
import logging
from typing import TYPE_CHECKING

from ec_ipc.connector.config import ConnectorConfig
from ec_ipc.keys import fingerprint_digest
from ec_ipc.store import Store

if TYPE_CHECKING:
    from vllm.config import VllmConfig

logger = logging.getLogger(__name__)

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


def open_store(vllm_config: "VllmConfig", config: ConnectorConfig, role: str) -> Store:
    """Join the engine's namespace in one of its two roles, and say so in one line.

    Raises:
        ConfigurationError, SegmentError, OutOfSharedMemory, NoFreeSlot: see ``Store.open``.
    """
    facts = fingerprint(vllm_config)
    namespace = config.namespace if config.namespace is not None else default_namespace(facts)
    store = Store.open(
        namespace,
        deallocate=config.deallocate_cache,
        read_timeout_s=config.read_timeout_s,
        max_items=config.max_items,
        fingerprint=facts,
        role=role,
        engine=engine_number(vllm_config),
    )
    logger.info(
        "ec_ipc: %s joined namespace %s as slot %d (segment %s, fingerprint %s, others: %s)",
        role,
        namespace,
        store.segment.slot,
        store.name,
        store.segment.fingerprint.hex()[:16],
        ", ".join(p.role for p in store.segment.participants() if p.slot != store.segment.slot) or "none yet",
    )
    return store

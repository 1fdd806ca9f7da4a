"""What this connector needs of vLLM, and the deployments that it refuses, each with its sentence."""

from typing import TYPE_CHECKING

from ec_ipc.errors import ConfigurationError

if TYPE_CHECKING:
    from vllm.config import VllmConfig

MANAGER_CLASS = "ec_ipc.connector.encoder_cache_manager.ECIPCEncoderCacheManager"

# The newest of the hooks on which the connector rests; vLLM 0.30 is the first that calls them all.
_REQUIRED_HOOKS = (
    "ensure_cache_available",
    "start_save_caches",
    "start_worker_services",
    "take_unavailable_requests",
    "update_state_after_free",
)


def check_vllm(interface: type, version: str) -> None:
    """ConfigurationError when vLLM's connector interface is older than 0.30's."""
    missing = [hook for hook in _REQUIRED_HOOKS if not hasattr(interface, hook)]
    if missing:
        raise ConfigurationError(
            f"ec_ipc needs vLLM 0.30 or newer; this is {version}, whose connector interface has no "
            f"{', '.join(missing)}"
        )


def check_deployment(vllm_config: "VllmConfig") -> None:
    """ConfigurationError for a deployment in which the connector could not keep its promises."""
    if vllm_config.model_config.is_encoder_decoder:
        raise ConfigurationError(
            f"ec_ipc does not serve encoder-decoder models, and {vllm_config.model_config.model} is one: "
            "vLLM manages their encoder outputs itself; remove --ec-transfer-config"
        )
    chosen = vllm_config.ec_manager_config.encoder_cache_manager_cls
    if chosen is not None and chosen != MANAGER_CLASS:
        raise ConfigurationError(
            f"ec_ipc brings its own encoder-cache manager and --ec-manager-config names another, {chosen}; "
            "remove that option"
        )
    if vllm_config.parallel_config.distributed_executor_backend == "external_launcher":
        raise ConfigurationError(
            "ec_ipc does not work with the external_launcher executor, which runs a scheduler in each rank; "
            "use --distributed-executor-backend mp"
        )


def both_caches_off(vllm_config: "VllmConfig") -> bool:
    """Whether items without a uuid get identifiers made from the request id: E and PD never agree."""
    multimodal = vllm_config.model_config.multimodal_config
    if multimodal is None or multimodal.mm_processor_cache_gb > 0:
        return False
    transfer = vllm_config.ec_transfer_config
    encodes_only = transfer is not None and transfer.is_ec_producer and not transfer.is_ec_consumer
    return encodes_only or not vllm_config.cache_config.enable_prefix_caching

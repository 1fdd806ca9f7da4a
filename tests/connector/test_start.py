"""What stops an engine at start, with one sentence; and what is said once."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from vllm.distributed.ec_transfer.ec_connector.base import ECConnectorBase, ECConnectorRole
from vllm.distributed.ec_transfer.ec_connector.factory import ECConnectorFactory

from ec_ipc.cli import status
from ec_ipc.connector import items, plugin, support
from ec_ipc.connector.connector import ECIPCConnector
from ec_ipc.errors import ConfigurationError, SegmentError

from .lockstep import Item, LockstepEngine, engine_config, make_request


@pytest.mark.parametrize("side", list(ECConnectorRole))
@pytest.mark.parametrize(
    ("role", "extra", "sentence"),
    [
        ("ec_producer", {"arena_byte": 5}, "did you mean 'arena_bytes'"),
        ("ec_producer", {"max_items": "many"}, "must be of type int"),
        ("ec_producer", {"arena": "gpu"}, "use one of auto, host, cuda"),
        ("ec_producer", {"arena_bytes": 0}, "must be more than 0"),
        ("ec_both", {"deallocate_cache": True}, "cannot be true with ec_role ec_both"),
    ],
)
def test_a_bad_setting_stops_both_sides(
    model: str, namespace: str, side: ECConnectorRole, role: str, extra: dict[str, Any], sentence: str
) -> None:
    config = engine_config(model, role, namespace, **extra)
    with pytest.raises(ConfigurationError, match=sentence):
        ECIPCConnector(config, side)


def test_an_encoder_decoder_model_is_refused(model: str, namespace: str) -> None:
    config = engine_config(model, "ec_consumer", namespace)
    vars(config.model_config)["is_encoder_decoder"] = True  # where vLLM caches it
    assert config.model_config.is_encoder_decoder
    with pytest.raises(ConfigurationError, match="does not serve encoder-decoder models"):
        ECIPCConnector(config, ECConnectorRole.SCHEDULER)


def test_a_manager_of_the_users_own_is_refused(model: str, namespace: str) -> None:
    config = engine_config(model, "ec_consumer", namespace)
    config.ec_manager_config.encoder_cache_manager_cls = "somebody.Manager"
    with pytest.raises(ConfigurationError, match=r"names another, somebody\.Manager"):
        ECIPCConnector(config, ECConnectorRole.SCHEDULER)


def test_the_external_launcher_is_refused(model: str, namespace: str) -> None:
    config = engine_config(model, "ec_consumer", namespace)
    config.parallel_config.distributed_executor_backend = "external_launcher"
    with pytest.raises(ConfigurationError, match="external_launcher"):
        ECIPCConnector(config, ECConnectorRole.SCHEDULER)


def test_vllm_older_than_the_hooks_is_refused() -> None:
    class Old(ECConnectorBase):
        pass

    support.check_vllm(ECConnectorBase, "0.32.0")
    with pytest.raises(
        ConfigurationError, match=r"needs vLLM 0\.30 or newer; this is 0\.29\.0.*start_worker"
    ):
        support.check_vllm(type("Interface", (), {"has_cache_item": None}), "0.29.0")


def test_the_plugin_registers_the_name_once_and_for_all() -> None:
    plugin.register()
    plugin.register()
    assert ECConnectorFactory._registry["ECIPCConnector"]() is ECIPCConnector


def test_another_dtype_is_refused_by_name(
    start: Callable[..., LockstepEngine], model: str, namespace: str
) -> None:
    start("ec_producer")
    config = engine_config(model, "ec_consumer", namespace)
    config.model_config.dtype = "torch.bfloat16"
    with pytest.raises(SegmentError, match="dtype: 'float32' there, 'bfloat16' here"):
        ECIPCConnector(config, ECConnectorRole.SCHEDULER)


def test_the_same_model_meets_itself_without_a_namespace(model: str) -> None:
    from ec_ipc.connector import identity

    first, second = (
        identity.fingerprint(engine_config(model, r, "x")) for r in ("ec_producer", "ec_consumer")
    )
    assert first == second
    assert identity.default_namespace(first) == identity.default_namespace(second)
    assert identity.default_namespace({**first, "dtype": "bfloat16"}) != identity.default_namespace(first)


@pytest.mark.parametrize(
    ("role", "args", "warns"),
    [
        ("ec_producer", {"mm_processor_cache_gb": 0}, True),
        ("ec_consumer", {"mm_processor_cache_gb": 0, "enable_prefix_caching": False}, True),
        ("ec_consumer", {"mm_processor_cache_gb": 0, "enable_prefix_caching": True}, False),
        ("ec_producer", {}, False),
    ],
)
def test_both_caches_off_is_said_once(
    start: Callable[..., LockstepEngine], said: list[str], role: str, args: dict[str, Any], warns: bool
) -> None:
    start(role, args=args)
    assert sum("are both off" in line for line in said) == warns


@pytest.mark.parametrize("role", ["ec_producer", "ec_both"])
def test_an_item_named_after_its_request_is_never_published(
    start: Callable[..., LockstepEngine], namespace: str, role: str
) -> None:
    engine = start(role)
    engine.add(make_request("r", [Item("renderer0-mm-17-image-0")]))
    engine.run()
    assert engine.encodes == ["renderer0-mm-17-image-0"]
    assert status.collect(namespace)["namespaces"][0]["counters"]["published"] == 0
    assert "r" in engine.answers and not engine.answers["r"]


@pytest.mark.parametrize(
    ("identifier", "scoped"),
    [
        ("renderer0-mm-1-image-0", True),
        ("my-lora:renderer3-mm-12-audio-1", True),
        ("a" * 64, False),
        ("my picture", False),
        ("renderer", False),
    ],
)
def test_identifiers_made_from_a_request_id_are_told_from_others(identifier: str, scoped: bool) -> None:
    assert items.is_request_scoped(identifier) is scoped


def test_the_scheduler_side_imports_no_cupy_and_initialises_no_cuda(model: str, namespace: str) -> None:
    """In a process of its own, for CUDA that is initialised before a fork is broken in the child."""
    program = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parents[1])!r})
from vllm.distributed.ec_transfer.ec_connector.base import ECConnectorRole
from connector.lockstep import engine_config
from ec_ipc.connector.connector import ECIPCConnector
for role in ("ec_producer", "ec_consumer"):
    connector = ECIPCConnector(engine_config({model!r}, role, {namespace!r}), ECConnectorRole.SCHEDULER)
    connector.shutdown()
import torch
print("clean" if "cupy" not in sys.modules and not torch.cuda.is_initialized() else "not clean")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.splitlines()[-1:] == ["clean"], done.stdout + done.stderr

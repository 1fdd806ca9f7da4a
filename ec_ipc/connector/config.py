"""The keys of ``ec_connector_extra_config``, checked once at start."""

import difflib
from dataclasses import dataclass
from typing import Any

from ec_ipc.arena import KINDS
from ec_ipc.errors import ConfigurationError
from ec_ipc.names import check_namespace
from ec_ipc.store import DEFAULT_MAX_ITEMS, DEFAULT_READ_TIMEOUT_S, MAX_ITEMS

READ_MODES = ("zero_copy", "copy")
ROLES = ("ec_producer", "ec_consumer", "ec_both")


@dataclass(frozen=True)
class ConnectorConfig:
    """What a user may set. README.md has the table."""

    role: str
    namespace: str | None = None  # None: from the model's fingerprint
    deallocate_cache: bool = True
    arena: str = "auto"
    arena_bytes: int = 1_000_000_000
    read_mode: str = "zero_copy"
    read_timeout_s: float = DEFAULT_READ_TIMEOUT_S
    wait_timeout_s: float = 30.0
    max_items: int = DEFAULT_MAX_ITEMS

    @property
    def is_producer(self) -> bool:
        """Whether this engine publishes what it encodes."""
        return self.role in ("ec_producer", "ec_both")

    @property
    def is_consumer(self) -> bool:
        """Whether this engine reads what others have encoded."""
        return self.role in ("ec_consumer", "ec_both")

    @property
    def announces(self) -> bool:
        """Whether this engine announces reads: engines of the role ``ec_both`` share a cache."""
        return self.role == "ec_producer"

    @property
    def settles(self) -> bool:
        """Whether reads of this engine were announced by another."""
        return self.role == "ec_consumer"


_TYPES: dict[str, tuple[type, ...]] = {
    "namespace": (str,),
    "deallocate_cache": (bool,),
    "arena": (str,),
    "arena_bytes": (int, float),
    "read_mode": (str,),
    "read_timeout_s": (int, float),
    "wait_timeout_s": (int, float),
    "max_items": (int,),
}


_LIMITS = {
    "arena_bytes": 1 << 50,
    "read_timeout_s": 1e6,
    "wait_timeout_s": 1e6,
    "max_items": MAX_ITEMS,
}


def parse(role: str | None, extra: dict[str, Any], buffer_bytes: float) -> ConnectorConfig:
    """Check what the user set.

    Args:
        role: vLLM's ``ec_role``.
        extra: vLLM's ``ec_connector_extra_config``.
        buffer_bytes: vLLM's ``ec_buffer_size``, the default of ``arena_bytes``.

    Raises:
        ConfigurationError: an unknown key (the nearest known one is named), a wrong type or value.
    """
    if role not in ROLES:
        raise ConfigurationError(f"ec_role {role!r} is unknown; use one of {', '.join(ROLES)}")
    for key, value in extra.items():
        _check_type(key, value)
    settings: dict[str, Any] = {"deallocate_cache": role != "ec_both", "arena_bytes": buffer_bytes, **extra}
    if role == "ec_both" and settings["deallocate_cache"]:
        raise ConfigurationError(
            "deallocate_cache cannot be true with ec_role ec_both: these engines share a cache and nobody "
            "announces reads; leave it out, or use ec_producer and ec_consumer"
        )
    settings["arena_bytes"] = _whole(settings["arena_bytes"], "arena_bytes")
    config = ConnectorConfig(role=role, **settings)
    if config.namespace is not None:
        check_namespace(config.namespace)
    _check_choice("arena", config.arena, KINDS)
    _check_choice("read_mode", config.read_mode, READ_MODES)
    for key, most in _LIMITS.items():
        value = getattr(config, key)
        if not 0 < value <= most:
            raise ConfigurationError(f"{key} is {value}; it must be more than 0 and at most {int(most)}")
    return config


def _check_type(key: str, value: object) -> None:
    expected = _TYPES.get(key)
    if expected is None:
        nearest = difflib.get_close_matches(key, _TYPES, n=1, cutoff=0.5)
        hint = f"did you mean {nearest[0]!r}?" if nearest else f"known keys: {', '.join(_TYPES)}"
        raise ConfigurationError(f"ec_connector_extra_config has an unknown key {key!r}; {hint}")
    if not isinstance(value, expected) or (isinstance(value, bool) and bool not in expected):
        names = " or ".join(t.__name__ for t in expected)
        raise ConfigurationError(f"{key} is {value!r} ({type(value).__name__}); it must be of type {names}")


def _check_choice(key: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ConfigurationError(f"{key} is {value!r}; use one of {', '.join(choices)}")


def _whole(value: float, key: str) -> int:
    if value != value or value in (float("inf"), float("-inf")) or int(value) != value:
        raise ConfigurationError(f"{key} is {value}; it must be a whole number of bytes")
    return int(value)

"""ec_connector_extra_config: what is accepted, and the sentence for what is not."""

from typing import Any

import pytest

from ec_ipc.connector.config import ConnectorConfig, parse
from ec_ipc.errors import ConfigurationError
from ec_ipc.store import MAX_ITEMS


def test_defaults_are_those_of_the_table() -> None:
    config = parse("ec_producer", {}, 1e9)
    assert config == ConnectorConfig(
        role="ec_producer",
        namespace=None,
        deallocate_cache=True,
        arena="auto",
        arena_bytes=1_000_000_000,
        read_mode="zero_copy",
        read_timeout_s=300,
        wait_timeout_s=30,
        max_items=4096,
    )


def test_engines_that_share_a_cache_keep_entries() -> None:
    assert parse("ec_both", {}, 1e9).deallocate_cache is False
    assert parse("ec_both", {"deallocate_cache": False}, 1e9).deallocate_cache is False


@pytest.mark.parametrize(
    ("role", "extra", "sentence"),
    [
        ("ec_producer", {"dealocate_cache": True}, "did you mean 'deallocate_cache'"),
        ("ec_producer", {"arena_size": 5}, "did you mean 'arena_bytes'"),
        ("ec_producer", {"xyzzy": 5}, "known keys: namespace, "),
        ("ec_producer", {"deallocate_cache": "yes"}, "must be of type bool"),
        ("ec_producer", {"deallocate_cache": 1}, "must be of type bool"),
        ("ec_producer", {"max_items": True}, "must be of type int"),
        ("ec_producer", {"max_items": "many"}, "must be of type int"),
        ("ec_producer", {"arena": "gpu"}, "use one of auto, host, cuda"),
        ("ec_producer", {"arena_bytes": 0}, "arena_bytes is 0; it must be more than 0"),
        ("ec_producer", {"arena_bytes": 10**30}, "at most"),
        ("ec_producer", {"max_items": 10**9}, f"at most {MAX_ITEMS}$"),
        ("ec_producer", {"read_timeout_s": 1e9}, "at most 1000000$"),
        ("ec_producer", {"namespace": 5}, r"namespace is 5 \(int\); it must be of type str"),
        ("ec_producer", {"read_timeout_s": float("nan")}, "more than 0"),
        ("ec_producer", {"arena_bytes": -1}, "must be more than 0"),
        ("ec_producer", {"arena_bytes": 0.5}, "whole number of bytes"),
        ("ec_producer", {"arena_bytes": float("nan")}, "whole number of bytes"),
        ("ec_producer", {"read_mode": "view"}, "use one of zero_copy, copy"),
        ("ec_consumer", {"read_timeout_s": 0}, "read_timeout_s is 0"),
        ("ec_consumer", {"wait_timeout_s": -3}, "wait_timeout_s is -3"),
        ("ec_consumer", {"namespace": "a/b"}, "cannot name a segment"),
        ("ec_consumer", {"namespace": ""}, "cannot name a segment"),
        ("ec_both", {"deallocate_cache": True}, "cannot be true with ec_role ec_both"),
        ("ec_reader", {}, "ec_role 'ec_reader' is unknown"),
        (None, {}, "use one of ec_producer, ec_consumer, ec_both"),
    ],
)
def test_a_wrong_setting_is_refused_with_one_sentence(
    role: str | None, extra: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ConfigurationError, match=sentence) as raised:
        parse(role, extra, 1e9)
    assert "\n" not in str(raised.value)

"""Engines that share a cache, and engines that were set up wrongly."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from harness import Deployments, Reference

from examples.demo.chat import chat, picture
from examples.demo.deployment import Topology
from examples.demo.engines import EngineSpec, ServerFailed, ec_config, start_all, unique_namespace
from examples.demo.tiny_models import make_model

SHARED_CACHE = Topology(roles={"A": "ec_both", "B": "ec_both"}, proxy=False)
E_ALONE = Topology(
    roles={"E": "ec_producer", "PD": "ec_consumer"},
    proxy=False,
    args={"E": ("--mm-processor-cache-gb", "0")},
)


def test_the_second_of_two_engines_reads_what_the_first_has_encoded(
    deployments: Deployments, reference: Reference
) -> None:
    with deployments.private("llava", SHARED_CACHE) as shared:
        request = [picture(1)]
        expected = reference(shared, request)
        assert chat(shared.servers["A"].url, request).tokens == expected
        with shared.counters_delta() as delta:
            assert chat(shared.servers["B"].url, request).tokens == expected
        assert delta["reads"] == 1 and delta["misses"] == delta["published"] == 0
        status = shared.quick_status()
        assert status["announced"] == 0 and status["entries"]["ready"] == 1


def test_with_both_caches_off_e_warns_once_and_publishes_only_items_with_a_uuid(
    deployments: Deployments,
) -> None:
    with deployments.private("llava", E_ALONE) as alone:
        assert alone.encoder.log.read_text().count("are both off") == 1
        with alone.counters_delta() as delta:
            assert alone.encode([picture(1)]).ok
        assert delta["published"] == 0
        with alone.counters_delta() as delta:
            assert alone.encode([picture(1, uuid="mine")]).ok
        assert delta["published"] == 1


BAD_SETTINGS = {
    "unknown-key": ("ec_producer", {"arena_byte": 1}, "did you mean 'arena_bytes'?"),
    "shared-cache": ("ec_both", {"deallocate_cache": True}, "deallocate_cache cannot be true with ec_role"),
    "no-bytes": ("ec_producer", {"arena_bytes": 0}, "arena_bytes is 0; it must be more than 0"),
}


def test_a_bad_setting_stops_the_engine_with_one_clear_sentence(tmp_path: Path) -> None:
    model = make_model("llava")

    def boot(name: str) -> str:
        role, extra, _ = BAD_SETTINGS[name]
        config = ec_config(role, unique_namespace("test"), **extra)
        with (
            pytest.raises(ServerFailed, match="ended with status"),
            start_all(EngineSpec(name, model, ec_transfer=config), log_dir=tmp_path),
        ):
            pass
        return (tmp_path / f"{name}.log").read_text()

    with ThreadPoolExecutor() as pool:
        logs = dict(zip(BAD_SETTINGS, pool.map(boot, BAD_SETTINGS), strict=True))
    for name, (_, _, sentence) in BAD_SETTINGS.items():
        assert "ConfigurationError: " in logs[name] and sentence in logs[name], name

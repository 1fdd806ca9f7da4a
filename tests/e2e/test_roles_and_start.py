"""Engines that share a cache, and engines that were set up wrongly."""

from __future__ import annotations

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


def test_a_bad_setting_stops_the_engine_with_one_clear_sentence() -> None:
    config = ec_config("ec_producer", unique_namespace("test"), arena_byte=1)
    with (
        pytest.raises(ServerFailed) as failed,
        start_all(EngineSpec("E", make_model("llava"), ec_transfer=config)),
    ):
        pass
    text = str(failed.value)
    assert "ended with status" in text

"""Two E and two PD in one namespace."""

from __future__ import annotations

from functools import partial

import pytest
from harness import Deployment, Deployments, Reference
from scenarios import changes, side_by_side

from examples.demo.chat import chat, picture
from examples.demo.deployment import Topology

FOUR = Topology(roles={"E": "ec_producer", "E2": "ec_producer", "PD": "ec_consumer", "PD2": "ec_consumer"})
PD_S = ("PD", "PD2")


@pytest.fixture
def four(deployments: Deployments) -> Deployment:
    """Two encoders, two decoders and the proxy."""
    deployment = deployments.get("llava", FOUR)
    deployment.wait_until_idle()
    return deployment


@pytest.mark.parametrize("round", range(4))
def test_two_encoders_with_the_same_image_at_the_same_time_encode_once(
    four: Deployment, reference: Reference, round: int
) -> None:
    request = [picture(400 + round)]
    with changes(four) as delta:
        encoded = side_by_side(
            [partial(chat, four.servers[name].url, request, max_tokens=1) for name in ("E", "E2")] * 2
        )
        assert four.quick_status()["announced"] == 4
        assert four.quick_status()["entries"]["ready"] == 1
        answers = side_by_side(
            [
                partial(
                    chat, four.servers[PD_S[i % 2]].url, request, ec_transfer_params=each.ec_transfer_params
                )
                for i, each in enumerate(encoded)
            ]
        )
        four.wait_until_idle()
    assert {answer.tokens for answer in answers} == {reference(four, request)}
    assert delta["published"] == 1 and delta["misses"] == delta["expired"] == 0


def test_what_one_encoder_published_the_other_only_announces(four: Deployment, reference: Reference) -> None:
    request = [picture(410)]
    first = chat(four.servers["E"].url, request, max_tokens=1).ec_transfer_params
    with changes(four) as delta:
        second = chat(four.servers["E2"].url, request, max_tokens=1).ec_transfer_params
        assert second == first, "both name the same life of the entry"
        for name, params in (("PD", first), ("PD2", second)):
            answer = chat(four.servers[name].url, request, ec_transfer_params=params)
            assert answer.tokens == reference(four, request)
        four.wait_until_idle()
    assert delta["published"] == 0 and delta["reads"] == 2


def test_a_crowd_through_the_proxy(four: Deployment, reference: Reference) -> None:
    requests = [[picture(420 + i % 3), picture(420 + (i * 2 + 1) % 5)] for i in range(12)]
    for request in requests:
        reference(four, request)
    with changes(four) as delta:
        answers = side_by_side([partial(four.ask, request) for request in requests])
        four.wait_until_idle()
    for request, answer in zip(requests, answers, strict=True):
        assert answer.ok, answer.body
        assert answer.tokens == reference(four, request)
    assert delta["misses"] == delta["expired"] == delta["publish_skipped"] == 0

"""Whatever path a request takes through real engines, its embeddings are freed, and no sooner.

The engines are those of the shared Qwen3-VL deployment (harness.TOPOLOGIES): PD has few blocks and
short steps. The proxy sends PD requests without pixels.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from harness import Deployment, Reference
from scenarios import (
    all_tokens,
    changes,
    leave,
    metric,
    reset_encoder_cache,
    side_by_side,
    text_of,
    used,
)

from examples.demo.chat import Picture, picture
from examples.demo.deployment import is_idle

BIG = (256, 256)  # 64 tokens: more than one of PD's steps takes
READ_TIMEOUT_S = 10.0
LONG = {"max_tokens": 160, "ignore_eos": True}


def check(engines: Deployment, reference: Reference, request: list[Picture], **fields: Any) -> None:
    answer = engines.ask(request, **fields)
    assert answer.ok, answer.body
    assert answer.tokens == reference(engines, request, **fields)


def idle_after_what_expires(engines: Deployment) -> None:
    """A client that leaves between E's answer and PD's start leaves an announcement to its deadline."""
    engines.wait_until(is_idle, READ_TIMEOUT_S + 3)


def test_an_image_larger_than_a_step_of_pd(qwen3vl: Deployment, reference: Reference) -> None:
    with changes(qwen3vl) as delta:
        check(qwen3vl, reference, [picture(100, BIG)], prompt=text_of(200))
        qwen3vl.wait_until_idle()
    assert delta["reads"] == 1 and delta["misses"] == 0


def test_two_large_images_in_a_crowd_of_small_ones(qwen3vl: Deployment, reference: Reference) -> None:
    requests = [[picture(101, BIG), picture(102, BIG)], *([picture(103 + i)] for i in range(5))]
    with changes(qwen3vl) as delta:
        answers = side_by_side([partial(qwen3vl.ask, request) for request in requests])
        qwen3vl.wait_until_idle()
    for request, answer in zip(requests, answers, strict=True):
        assert answer.ok and answer.tokens == reference(qwen3vl, request)
    assert delta["reads"] == 7 and delta["misses"] == 0


def test_a_prefix_hit_on_pd_reads_nothing_and_settles(qwen3vl: Deployment, reference: Reference) -> None:
    request, prompt = [picture(110)], text_of(900)
    check(qwen3vl, reference, request, prompt=prompt)
    with changes(qwen3vl) as delta:
        check(qwen3vl, reference, request, prompt=prompt)
        qwen3vl.wait_until_idle()
    assert delta["reads"] == 0 and delta["misses"] == 0
    assert delta["expired"] == 0, "it was not settled but ran into its deadline"


def test_pd_alone_encodes_what_has_pixels(qwen3vl: Deployment, reference: Reference) -> None:
    request = [picture(111), picture(112)]
    with changes(qwen3vl) as delta:
        answer = qwen3vl.decode(request)
        qwen3vl.wait_until_idle()
    assert answer.tokens == reference(qwen3vl, request)
    assert delta["misses"] == 2 and delta["reads"] == delta["published"] == 0


def test_a_request_that_nobody_announced_settles_nothing_of_others(
    qwen3vl: Deployment, reference: Reference
) -> None:
    request = [picture(113)]
    encoded = qwen3vl.encode(request)
    assert used(qwen3vl)[2] == 1
    others = {"another item": {}}  # not {}, which vLLM's front end takes for none at all
    assert qwen3vl.decode(request, others).tokens == reference(qwen3vl, request)
    assert used(qwen3vl)[2] == 1, "the announcement belongs to the request of E"
    qwen3vl.decode(request, encoded.ec_transfer_params)
    qwen3vl.wait_until_idle()


def test_a_stop_string_ends_it_as_an_abort(qwen3vl: Deployment, reference: Reference) -> None:
    request = [picture(114)]
    text = qwen3vl.ask(request, max_tokens=40, ignore_eos=True).text
    stop = next(text[i] for i in range(3, len(text)) if text[i].isascii() and text[i].isprintable())
    fields: dict[str, Any] = {"max_tokens": 40, "ignore_eos": True, "stop": [stop]}
    with changes(qwen3vl) as delta:
        answer = qwen3vl.ask(request, **fields)
        qwen3vl.wait_until_idle()
    assert answer.finish_reason == "stop" and answer.tokens == reference(qwen3vl, request, **fields)
    assert delta["reads"] == 1 and delta["expired"] == 0


@pytest.mark.parametrize("by_hand", [False, True], ids=["proxy", "with-pixels"])
def test_two_choices_each_settle_their_own(qwen3vl: Deployment, reference: Reference, by_hand: bool) -> None:
    request, n = [picture(115 + by_hand), picture(117)], 3
    greedy: dict[str, Any] = {"temperature": 1.0, "top_k": 1}
    with changes(qwen3vl) as delta:
        if by_hand:
            encoded = qwen3vl.encode(request, n=n, **greedy)
            answer = qwen3vl.decode(request, encoded.ec_transfer_params, n=n, **greedy)
        else:
            answer = qwen3vl.ask(request, n=n, **greedy)
        qwen3vl.wait_until_idle()
    assert answer.ok, answer.body
    assert all_tokens(answer) == [reference(qwen3vl, request, **greedy)] * n
    assert delta["misses"] == delta["expired"] == 0 and delta["reads"] >= 2


def test_one_choice_announced_and_two_read(qwen3vl: Deployment, reference: Reference) -> None:
    """A proxy that does not send ``n`` on announces too few reads: nobody must be harmed."""
    request, greedy = [picture(118)], {"temperature": 1.0, "top_k": 1}
    encoded = qwen3vl.encode(request)
    answer = qwen3vl.decode(request, encoded.ec_transfer_params, n=2, **greedy)
    assert all_tokens(answer) == [reference(qwen3vl, request, **greedy)] * 2
    qwen3vl.wait_until_idle()


@pytest.mark.parametrize("pixels", [False, True], ids=["without-pixels", "with-pixels"])
def test_preempted_requests_read_again(qwen3vl: Deployment, reference: Reference, pixels: bool) -> None:
    pictures = [[picture(120 + 10 * pixels + i)] for i in range(7)]
    before = metric(qwen3vl.decoder, "vllm:num_preemptions_total")
    with changes(qwen3vl) as delta:
        if pixels:
            encoded = [qwen3vl.encode(each).ec_transfer_params for each in pictures]
            calls = [
                partial(qwen3vl.decode, each, encoded[i], text_of(60, i), **LONG)
                for i, each in enumerate(pictures)
            ]
        else:
            calls = [partial(qwen3vl.ask, each, text_of(60, i), **LONG) for i, each in enumerate(pictures)]
        answers = side_by_side(calls)
        qwen3vl.wait_until_idle()
    for i, (each, answer) in enumerate(zip(pictures, answers, strict=True)):
        assert answer.ok, answer.body
        assert answer.tokens == reference(qwen3vl, each, text_of(60, i), **LONG)
    assert metric(qwen3vl.decoder, "vllm:num_preemptions_total") > before, "nothing was preempted"
    assert delta["reads"] >= 7 and delta["expired"] == 0
    if not pixels:
        assert delta["misses"] == 0


def test_clients_leave_at_any_moment(qwen3vl: Deployment, reference: Reference) -> None:
    """While E encodes, between E and PD, while PD prefills (800 tokens at 48 a step), while it decodes."""
    with changes(qwen3vl):
        for i, after in enumerate([0.0, 0.02, 0.05, 0.08, 0.1, 0.15, 0.2, 0.3, 0.4, 0.6, 0.8]):
            request = [picture(140 + i, BIG), picture(139)]
            leave(qwen3vl.proxy.url, request, text_of(2500, i), after=after)
        idle_after_what_expires(qwen3vl)
    check(qwen3vl, reference, [picture(139)])
    qwen3vl.wait_until_idle()


def test_a_client_leaves_during_decode(qwen3vl: Deployment, reference: Reference) -> None:
    with changes(qwen3vl) as delta:
        leave(qwen3vl.proxy.url, [picture(150)], tokens=3)
        qwen3vl.wait_until_idle()
    assert delta["reads"] == 1 and delta["expired"] == 0


def test_clients_leave_while_they_wait_for_a_place_on_pd(qwen3vl: Deployment, reference: Reference) -> None:
    """Eight requests run at most: those behind them are aborted before any hook has seen them."""
    encoded = [qwen3vl.encode([picture(151 + i)]) for i in range(14)]

    def one(i: int) -> int:
        params = encoded[i].ec_transfer_params
        return leave(qwen3vl.decoder.url, [picture(151 + i)], after=0.4, ec_transfer_params=params)

    with changes(qwen3vl):
        side_by_side([partial(one, i) for i in range(14)])
        idle_after_what_expires(qwen3vl)
    check(qwen3vl, reference, [picture(151)])
    qwen3vl.wait_until_idle()


def test_clients_of_e_leave_and_their_announcements_are_taken_back(qwen3vl: Deployment) -> None:
    with changes(qwen3vl):
        side_by_side(
            [
                partial(leave, qwen3vl.encoder.url, [picture(170 + i, BIG)], after=0.01 * i, max_tokens=1)
                for i in range(8)
            ]
        )
        idle_after_what_expires(qwen3vl)


def test_what_pd_refuses_before_its_scheduler_is_left_to_the_deadline(
    qwen3vl: Deployment, reference: Reference
) -> None:
    request = [picture(180)]
    encoded = qwen3vl.encode(request)
    assert qwen3vl.decode(request, encoded.ec_transfer_params, max_tokens=5000).status == 400
    assert used(qwen3vl)[2] == 1
    with changes(qwen3vl) as delta:
        qwen3vl.wait_until(is_idle, READ_TIMEOUT_S + 3)
    assert delta["expired"] == 1, "both engines were idle: a timer must have freed it"
    check(qwen3vl, reference, request)


@pytest.mark.parametrize("which", ["E", "PD"])
def test_nothing_from_before_a_weight_update_is_read_after(
    qwen3vl: Deployment, reference: Reference, which: str
) -> None:
    request = [picture(181 + (which == "PD"))]
    encoded = qwen3vl.encode(request)
    with changes(qwen3vl) as delta:
        reset_encoder_cache(qwen3vl.servers[which])
        answer = qwen3vl.decode(request, encoded.ec_transfer_params)
        qwen3vl.wait_until_idle()
    assert answer.tokens == reference(qwen3vl, request)
    assert delta["reads"] == 0 and delta["misses"] == 1
    with changes(qwen3vl) as delta:
        check(qwen3vl, reference, request)
        qwen3vl.wait_until_idle()
    assert delta["published"] == delta["reads"] == 1, "it must be encoded again, under the new weights"

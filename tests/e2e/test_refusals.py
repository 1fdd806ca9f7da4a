"""Requests that E encodes and PD refuses: nothing of them stays in the arena.

The pictures are used nowhere else: after such a refusal vLLM's own processor caches disagree about them, and
PD answers the next request with one of them with a 500, "P0/P1 cache drift" in its log.
"""

from __future__ import annotations

from harness import Deployment

from examples.demo.chat import picture


def test_what_pd_refuses_is_given_back_at_once(llava: Deployment) -> None:
    llava.wait_until_idle()
    with llava.counters_delta() as delta:
        for fields in ({"max_tokens": 100_000}, {"logprobs": True, "top_logprobs": 1000}):
            answer = llava.ask([picture(801), picture(801), picture(802)], **fields)
            assert answer.status == 400, answer.body
        llava.wait_until_idle()
    assert delta["published"] >= 2, "E has encoded"
    assert delta["reads"] == 0 and delta["expired"] == 0 and delta["late_releases"] == 0

"""Real engines whose arena is too small: expire, evict, wait at admission, skip, make room."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial

import pytest
from harness import Deployment, Deployments, Reference
from scenarios import Mixed, changes, side_by_side, text_of, used

from examples.demo.chat import chat, picture
from examples.demo.deployment import PD, E, is_idle

BYTES_PER_TOKEN = 512 * 4  # DeepStack: four times the hidden size, in float32
SMALL = 9 * BYTES_PER_TOKEN  # a picture of 96 x 96
BIG = (256, 256)  # 64 tokens: more than the arena
READ_TIMEOUT_S, WAIT_TIMEOUT_S = 20.0, 6.0
NGRAM = '{"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 3}'

TIGHT = Mixed(
    extra={
        "arena_bytes": 2 * SMALL + 512,
        "read_timeout_s": READ_TIMEOUT_S,
        "wait_timeout_s": WAIT_TIMEOUT_S,
    },
    args={PD: ("--speculative-config", NGRAM)},
)
LLAVA_ITEM = 16 * 128 * 4
CACHE_ITEMS = 3
CACHE = Mixed(
    roles={E: "ec_producer", PD: "ec_consumer", "PD2": "ec_consumer"},
    extra={"deallocate_cache": False, "arena_bytes": CACHE_ITEMS * LLAVA_ITEM, "wait_timeout_s": 10},
    extra_of={"PD2": {"read_mode": "copy"}},
)


@pytest.fixture
def tight(deployments: Deployments) -> Deployment:
    """E's arena holds two pictures; PD decodes speculatively."""
    deployment = deployments.get("qwen3vl", TIGHT)
    deployment.wait_until(is_idle, READ_TIMEOUT_S + 3)
    return deployment


def test_an_announcement_that_nobody_reads_expires_with_both_engines_idle(tight: Deployment) -> None:
    assert tight.encode([picture(200)]).ok
    assert used(tight)[0] >= SMALL and used(tight)[2] == 1
    with changes(tight) as delta:
        tight.wait_until(is_idle, READ_TIMEOUT_S + 3)
    assert delta["expired"] == 1 and delta["reads"] == 0


def test_speculative_decoding_changes_nothing(tight: Deployment, reference: Reference) -> None:
    request, prompt = [picture(201)], text_of(120)
    with changes(tight) as delta:
        answer = tight.ask(request, prompt, max_tokens=60, ignore_eos=True)
        tight.wait_until_idle()
    assert answer.tokens == reference(tight, request, prompt, max_tokens=60, ignore_eos=True)
    assert delta["reads"] == 1 and delta["misses"] == 0


def test_with_pd_absent_e_waits_boundedly_then_skips_and_pd_encodes(
    tight: Deployment, reference: Reference
) -> None:
    reference(tight, [picture(204)])
    for i in (202, 203):
        assert tight.encode([picture(i)]).ec_transfer_params
    with changes(tight) as delta:
        third = tight.encode([picture(204)])
        assert third.ok and third.ec_transfer_params is None, "it must not promise what it did not publish"
        assert third.seconds >= WAIT_TIMEOUT_S
        answer = tight.ask([picture(204)])  # E waits and skips again, the proxy keeps the pixels
        assert answer.tokens == reference(tight, [picture(204)])
        tight.wait_until(is_idle, READ_TIMEOUT_S + 3)
    assert delta["publish_skipped"] >= 1 and delta["expired"] == 2
    assert tight.encoder.log.read_text().count("the arena is full of embeddings") == 1, "said once"


def test_a_request_that_waits_goes_on_as_soon_as_pd_has_read(tight: Deployment, reference: Reference) -> None:
    for i in (205, 206, 207):
        reference(tight, [picture(i)])  # known before any clock runs
    tight.ask([picture(209)])  # nor does a first request slow PD down
    tight.wait_until_idle()
    first = tight.encode([picture(205)]).ec_transfer_params
    second = tight.encode([picture(206)]).ec_transfer_params

    def read_the_first() -> None:
        time.sleep(0.3)
        assert tight.decode([picture(205)], first).tokens == reference(tight, [picture(205)])

    with changes(tight) as delta:
        third, _ = side_by_side([partial(tight.encode, [picture(207)]), read_the_first])
        assert third.ec_transfer_params
        for i, params in ((206, second), (207, third.ec_transfer_params)):
            assert tight.decode([picture(i)], params).tokens == reference(tight, [picture(i)])
        tight.wait_until_idle()
    assert (delta["publish_skipped"], delta["misses"], delta["reads"]) == (0, 0, 3), delta


def test_an_item_larger_than_the_arena_is_skipped_at_once(tight: Deployment, reference: Reference) -> None:
    with changes(tight) as delta:
        encoded = tight.encode([picture(208, BIG)])
        assert encoded.ok and encoded.ec_transfer_params is None
        answer = tight.ask([picture(208, BIG)])
        tight.wait_until_idle()
    assert answer.tokens == reference(tight, [picture(208, BIG)])
    assert delta["publish_skipped"] >= 1 and delta["published"] == 0


def test_with_pd_stopped_in_a_crowd_every_answer_is_right(tight: Deployment, reference: Reference) -> None:
    requests = [[picture(210 + i)] for i in range(6)]
    for request in requests:
        reference(tight, request)
    with changes(tight) as delta:

        def pause() -> None:
            with tight.decoder.paused():
                time.sleep(WAIT_TIMEOUT_S + 1.5)

        answers = side_by_side([*(partial(tight.ask, request) for request in requests), pause])
        tight.wait_until(is_idle, READ_TIMEOUT_S + 3)
    for request, answer in zip(requests, answers, strict=False):
        assert answer is not None and answer.ok, answer
        assert answer.tokens == reference(tight, request)
    assert delta["published"] >= 2


def test_a_crowd_over_a_small_arena(tight: Deployment, reference: Reference) -> None:
    requests = [[picture(220 + i % 4), picture(220 + (i + 1) % 4)] for i in range(8)]
    answers = side_by_side([partial(tight.ask, request) for request in requests])
    for request, answer in zip(requests, answers, strict=True):
        assert answer.ok, answer.body
        assert answer.tokens == reference(tight, request)
    tight.wait_until(is_idle, READ_TIMEOUT_S + 3)


@pytest.fixture
def cache(deployments: Deployments) -> Iterator[Deployment]:
    """Embeddings stay as a cache: PD reads in place, PD2 copies."""
    yield deployments.get("llava", CACHE)


def cached(deployment: Deployment) -> int:
    """The cached items; what is used must be just them, and nothing is announced."""
    status = deployment.quick_status()
    assert used(deployment)[0] == status["entries"]["ready"] * LLAVA_ITEM
    assert status["announced"] == status["entries"]["writing"] == 0
    return int(status["entries"]["ready"])


def ask(deployment: Deployment, which: str, number: int, reference: Reference) -> None:
    request = [picture(number)]
    reference(deployment, request)  # known before any clock runs
    encoded = deployment.encode(request)
    answer = chat(deployment.servers[which].url, request, ec_transfer_params=encoded.ec_transfer_params or {})
    assert answer.ok and answer.tokens == reference(deployment, request)


def end_views(deployment: Deployment, first: int) -> None:
    """Announced items fill the arena, so that PD has to give up the views of earlier requests."""
    encoded = {
        number: deployment.encode([picture(number)]).ec_transfer_params
        for number in range(first, first + CACHE_ITEMS)
    }
    for number, params in encoded.items():
        assert chat(deployment.servers["PD2"].url, [picture(number)], ec_transfer_params=params).ok
    assert used(deployment)[1] == 0


def test_the_least_recently_used_is_evicted(cache: Deployment, reference: Reference) -> None:
    with changes(cache) as delta:
        for number in (300, 301, 302):
            ask(cache, "PD2", number, reference)
        ask(cache, "PD", 300, reference)  # PD2 has a copy and would not read it again
        ask(cache, "PD2", 303, reference)
        assert cached(cache) == CACHE_ITEMS
    assert delta["published"] == 4 and delta["evicted"] == 1 and delta["publish_skipped"] == 0
    with changes(cache) as delta:
        ask(cache, "PD2", 300, reference)
    assert delta["published"] == 0, "301 was older"


def test_copy_mode_keeps_no_view(cache: Deployment, reference: Reference) -> None:
    end_views(cache, 310)
    with changes(cache) as delta:
        ask(cache, "PD2", 313, reference)
    assert delta["reads"] == 1 and used(cache)[1] == 0


def test_a_quiet_pd_gives_up_its_views(cache: Deployment, reference: Reference) -> None:
    """PD keeps views in vLLM's own cache and runs no step while E needs the space."""
    end_views(cache, 316)
    with changes(cache) as delta:
        for number in (320, 321, 322):
            ask(cache, "PD", number, reference)
        assert used(cache)[1] == CACHE_ITEMS
        for number in (323, 324, 325):
            ask(cache, "PD2", number, reference)
        assert cached(cache) == CACHE_ITEMS and used(cache)[1] == 0
    assert delta["localised"] >= 3 and delta["publish_skipped"] == 0
    with changes(cache) as delta:
        for number in (320, 321, 322):
            request = [picture(number)]
            assert cache.decode(request, {}).tokens == reference(cache, request)
    assert delta["reads"] == delta["misses"] == 0, "the copies serve on"


def test_an_announcement_is_not_evicted(cache: Deployment, reference: Reference) -> None:
    params = cache.encode([picture(330)]).ec_transfer_params
    for number in (331, 332, 333, 334):
        ask(cache, "PD2", number, reference)
    with changes(cache) as delta:
        answer = cache.decode([picture(330)], params)
    assert answer.tokens == reference(cache, [picture(330)])
    assert delta["reads"] == 1 and delta["misses"] == 0
    assert used(cache)[2] == 0

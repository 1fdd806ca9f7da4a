"""Requests that carry no pixels: PD cannot encode, so an embedding that is not there fails them alone."""

from __future__ import annotations

from typing import Any

from harness import Deployment, Reference

from examples.demo.chat import chat, picture


def embeds(uuid: str, grid: list[int]) -> dict[str, Any]:
    """A picture without its pixels, as a proxy sends it."""
    return {"type": "image_embeds", "image_embeds": {"image_grid_thw": grid}, "uuid": uuid}


def still_answers(qwen3vl: Deployment, reference: Reference) -> None:
    request = [picture(1)]
    with qwen3vl.counters_delta() as delta:
        assert qwen3vl.ask(request).tokens == reference(qwen3vl, request)
        qwen3vl.wait_until_idle(timeout=2)
    assert delta["reads"] == 1


def test_without_an_embedding_pd_answers_an_error_and_lives_on(
    qwen3vl: Deployment, reference: Reference
) -> None:
    answer = qwen3vl.decode([embeds("nobody has this", [1, 4, 4])], params={})
    assert answer.status == 500
    log = qwen3vl.decoder.log.read_text()
    assert "item nobody has this has no pixels and its embedding is not in the namespace" in log
    still_answers(qwen3vl, reference)


def test_through_the_proxy_the_error_says_what_is_missing(qwen3vl: Deployment, reference: Reference) -> None:
    answer = chat(qwen3vl.proxy.url, [embeds("nobody has this either", [1, 4, 4])])
    assert answer.status >= 400
    assert "embedding" in str(answer.body), answer.body
    still_answers(qwen3vl, reference)


def test_an_embedding_with_another_number_of_rows_is_an_error(
    qwen3vl: Deployment, reference: Reference
) -> None:
    encoded = qwen3vl.encode([picture(6, uuid="mine")])
    assert encoded.ok and encoded.ec_transfer_params
    (item,) = encoded.ec_transfer_params.values()
    grid = item["metadata"]["image_grid_thw"]
    wrong = [grid[0], grid[1] + 2, grid[2]]
    answer = qwen3vl.decode([embeds("mine", wrong)], encoded.ec_transfer_params)
    assert answer.status == 500
    assert "has no pixels and its embedding has shape" in qwen3vl.decoder.log.read_text()
    still_answers(qwen3vl, reference)


def test_without_pixels_the_tokens_are_those_of_a_single_engine(
    qwen3vl: Deployment, reference: Reference
) -> None:
    request = [picture(7)]
    encoded = qwen3vl.encode([picture(7, uuid="seven")])
    assert encoded.ec_transfer_params is not None
    grid = encoded.ec_transfer_params["seven"]["metadata"]["image_grid_thw"]
    answer = qwen3vl.decode([embeds("seven", grid)], encoded.ec_transfer_params)
    assert answer.tokens == reference(qwen3vl, request)
    qwen3vl.wait_until_idle(timeout=2)

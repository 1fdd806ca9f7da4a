"""The gate that holds PD's stream back until the answer has begun."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))

from proxy.gate import StreamFailed, hold_until_begun, split_events

DONE = b"data: [DONE]\n\n"


def event(value: Any) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def delta(index: int = 0, **more: Any) -> bytes:
    choice = {key: more.pop(key) for key in ("finish_reason", "token_ids", "logprobs") if key in more}
    return event({"choices": [{"index": index, "delta": more, **choice}]})


ROLE = delta(role="assistant", content="")
ERROR = event({"error": {"message": "Internal server error", "type": "InternalServerError", "code": 500}})


async def feed(chunks: Iterable[bytes], taken: list[bytes] | None = None) -> AsyncIterator[bytes]:
    for chunk in chunks:
        if taken is not None:
            taken.append(chunk)
        yield chunk


def through(chunks: Iterable[bytes], **options: Any) -> list[bytes]:
    async def collect() -> list[bytes]:
        return [chunk async for chunk in hold_until_begun(split_events(feed(chunks)), **options)]

    return asyncio.run(collect())


def taken_for_the_first(chunks: Iterable[bytes], **options: Any) -> int:
    """How many events the gate takes in before it lets the first through."""

    async def first() -> int:
        taken: list[bytes] = []
        await anext(hold_until_begun(feed(chunks, taken), **options))
        return len(taken)

    return asyncio.run(first())


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_nothing_is_lost_or_reordered_wherever_the_stream_is_cut(size):
    whole = ROLE + b": ping\n\n" + delta(content="h\u00e9") + delta(content="y", finish_reason="stop") + DONE
    cut = [whole[start : start + size] for start in range(0, len(whole), size)]
    assert b"".join(through(cut)) == whole


def test_events_that_end_in_crlf_are_told_apart():
    whole = (ROLE + delta(content="a") + delta(content="b")).replace(b"\n", b"\r\n")
    assert len(through([whole])) == 2


@pytest.mark.parametrize(
    "begins",
    [
        delta(content="a"),
        delta(reasoning="a"),
        delta(tool_calls=[{"index": 0}]),
        delta(content="", token_ids=[5]),
        delta(content="", finish_reason="stop"),
        delta(content="", logprobs={"content": []}),
        event({"choices": [], "usage": {"total_tokens": 3}}),
        DONE,
    ],
)
def test_the_role_is_held_back_until_the_answer_begins(begins):
    assert taken_for_the_first([ROLE, ROLE, begins, delta(content="later")]) == 3
    assert through([ROLE, begins])[0] == ROLE + begins


def test_after_the_beginning_every_event_passes_at_once():
    events = [ROLE, delta(content="a"), delta(content="b"), delta(content="c"), DONE]
    assert through(events) == [ROLE + events[1], *events[2:]]


def test_an_error_behind_the_role_is_raised_and_nothing_is_let_through():
    with pytest.raises(StreamFailed) as failed:
        through([ROLE, ERROR, DONE])
    assert failed.value.status == 500
    assert failed.value.error == json.loads(ERROR[6:])


def test_the_status_of_an_error_event_is_the_one_it_names():
    with pytest.raises(StreamFailed) as failed:
        through([event({"error": {"message": "no", "code": 400}})])
    assert failed.value.status == 400


def test_an_error_after_the_beginning_is_the_clients_to_see():
    assert through([ROLE, delta(content="a"), ERROR, DONE]) == [ROLE + delta(content="a"), ERROR, DONE]


@pytest.mark.parametrize("events", [[], [ROLE], [b": ping\n\n"], [b'data: {"choices": [']])
def test_a_stream_that_ends_before_the_answer_begins_has_failed(events):
    with pytest.raises(StreamFailed):
        through(events)


def test_an_echo_of_the_last_message_is_not_yet_an_answer():
    echo = [delta(0, content="so far"), delta(1, content="so far")]
    with pytest.raises(StreamFailed):
        through([ROLE, *echo, ERROR], echo=True)
    assert taken_for_the_first([ROLE, *echo, delta(1, content="new")], echo=True) == 4


def test_a_request_with_echo_that_has_nothing_to_echo_still_ends():
    assert b"".join(through([ROLE, delta(content="a"), DONE], echo=True)).endswith(DONE)

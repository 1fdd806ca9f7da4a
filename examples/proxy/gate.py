"""Server-sent events, and the gate that holds a stream back until PD has really begun.

vLLM opens a stream (status 200, a chunk with the role) before it says that the request failed. What
is still behind the gate can be thrown away and asked for again; what has passed cannot.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from typing import Any

END_OF_EVENT = re.compile(rb"((?:\r?\n){2})")


class StreamFailed(Exception):
    """The stream ended in an error before anything of the answer was in it."""

    def __init__(self, error: dict[str, Any] | None, reason: str) -> None:
        super().__init__(reason)
        self.error = error

    @property
    def status(self) -> int:
        """The status vLLM would have answered, had it not streamed."""
        inner = (self.error or {}).get("error")
        code = inner.get("code") if isinstance(inner, dict) else None
        return code if type(code) is int and 400 <= code <= 599 else 500


async def split_events(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Whole events, blank line included, out of a byte stream cut anywhere. Joined, they are it."""
    rest = b""
    async for chunk in chunks:
        *whole, rest = END_OF_EVENT.split(rest + chunk)
        for event, end in zip(whole[::2], whole[1::2], strict=True):
            yield event + end
    if rest:
        yield rest


async def hold_until_begun(events: AsyncIterator[bytes], *, echo: bool = False) -> AsyncIterator[bytes]:
    """The same events, the first ones together once the answer has begun.

    With `echo`, vLLM repeats the last message, once for each choice, before it knows of an error:
    those chunks do not count. Raises StreamFailed, before anything is yielded, on an error event or
    when the stream ends without having begun.
    """
    held: list[bytes] = []
    echoed: set[int] | None = set() if echo else None
    begun = False
    async for event in events:
        if begun:
            yield event
            continue
        held.append(event)
        data = event_data(event)
        if data is None:
            continue
        begun = data == "[DONE]" or _has_begun(_parsed(data), echoed)
        if begun:
            yield b"".join(held)
    if not begun:
        raise StreamFailed(None, "the stream ended before the answer began")


def event_data(event: bytes) -> str | None:
    """The event's data, or None for a comment or an empty event."""
    lines = event.decode("utf-8", errors="replace").splitlines()
    data = [line[5:].strip() for line in lines if line.startswith("data:")]
    return "\n".join(data) if data else None


def _parsed(data: str) -> dict[str, Any]:
    try:
        chunk = json.loads(data)
    except ValueError:
        chunk = None
    if not isinstance(chunk, dict):
        raise StreamFailed(None, f"an event is not a JSON object: {data[:200]}")
    if chunk.get("error") is not None:
        raise StreamFailed(chunk, "an error event came before the answer began")
    return chunk


def _has_begun(chunk: dict[str, Any], echoed: set[int] | None) -> bool:
    """Whether a chunk shows work of the model: a token, its text, or the end of a choice."""
    choices = [choice for choice in chunk.get("choices") or [] if isinstance(choice, dict)]
    if not choices:
        return chunk.get("usage") is not None
    for choice in choices:
        if choice.get("finish_reason") is not None or choice.get("token_ids") or choice.get("logprobs"):
            return True
        delta = choice.get("delta") or {}
        if not any(value for name, value in delta.items() if name != "role"):
            continue
        index = choice.get("index", 0)
        if echoed is None or index in echoed:
            return True
        echoed.add(index)
    return False

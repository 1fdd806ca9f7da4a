"""Has the items of one request encoded, by every encoder concerned at the same time."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Mapping, Sequence
from typing import Any

import aiohttp

from proxy.errors import EngineFailure
from proxy.forward import CONNECT_TIMEOUT_S, UNREACHABLE
from proxy.grouping import Encoded, encoder_request, group_items, read_answer
from proxy.items import MediaItem, takes_audio_from_video
from proxy.pool import Engine, Pool

log = logging.getLogger("proxy")


async def encode(
    session: aiohttp.ClientSession,
    encoders: Pool,
    request: Mapping[str, Any],
    items: Sequence[MediaItem],
    headers: Mapping[str, str],
    *,
    timeout_s: float,
    fallback: bool,
    encoded: Encoded,
) -> None:
    """Adds to `encoded` what the encoders report of `items`, as they report it.

    What an encoder that is down should have encoded goes to another one. What then is not encoded
    has no metadata in the result, so it keeps its media and PD encodes it; without `fallback`, and
    when every encoder refused its items (4xx), that is an error with the encoder's status.
    """
    failures: list[EngineFailure] = []
    succeeded = False
    tried: set[str] = set()
    pending = list(items)
    while pending and (candidates := encoders.candidates(exclude=tried)):
        by_url = {engine.url: engine for engine in candidates}
        groups = group_items(pending, list(by_url))
        pending = []
        results = await asyncio.gather(
            *(
                _encode_group(session, by_url[url], request, group, headers, timeout_s, encoded)
                for url, group in groups.items()
            )
        )
        for (url, group), result in zip(groups.items(), results, strict=True):
            if result is None:
                succeeded = True
                continue
            failures.append(result)
            if result.status >= 500 and result.status != 504:
                tried.add(url)
                pending.extend(group)
        pending.sort(key=lambda item: item.index)
    if failures:
        _judge(failures, succeeded=succeeded, unencoded=bool(pending), fallback=fallback, headers=headers)


def _judge(
    failures: Sequence[EngineFailure],
    *,
    succeeded: bool,
    unencoded: bool,
    fallback: bool,
    headers: Mapping[str, str],
) -> None:
    refusals = [failure for failure in failures if failure.status < 500]
    if refusals and not succeeded and len(refusals) == len(failures):
        raise refusals[0].as_error()
    recovered = not refusals and not unencoded and all(failure.status != 504 for failure in failures)
    said = "; ".join(failure.sentence() for failure in failures)
    if recovered:
        log.warning("[%s] %s; another encoder took its items", headers.get("X-Request-Id"), said)
    elif fallback:
        log.warning("[%s] %s; PD gets the media and encodes itself", headers.get("X-Request-Id"), said)
    else:
        raise failures[-1].as_error(f"{said} (PD does not encode instead: --no-fallback)")


async def _encode_group(
    session: aiohttp.ClientSession,
    engine: Engine,
    request: Mapping[str, Any],
    group: Sequence[MediaItem],
    headers: Mapping[str, str],
    timeout_s: float,
    encoded: Encoded,
) -> EngineFailure | None:
    """Failures are returned, not raised, so that the other groups of the request go on."""
    try:
        with engine.busy():
            async with session.post(
                f"{engine.url}/v1/chat/completions",
                json=encoder_request(request, group),
                headers=headers,
                timeout=aiohttp.ClientTimeout(total=timeout_s, sock_connect=CONNECT_TIMEOUT_S),
            ) as answer:
                body = await answer.read()
    except UNREACHABLE as error:
        return _unreachable(engine, error)
    except asyncio.TimeoutError:
        return EngineFailure.no_answer("encoder", engine.url, 504, f"did not answer within {timeout_s:g} s")
    except aiohttp.ClientError as error:
        return _unreachable(engine, error)
    if answer.status != 200:
        return EngineFailure.from_answer("encoder", engine.url, answer.status, body, answer.headers)
    try:
        parsed = json.loads(body)
    except ValueError:
        return EngineFailure.no_answer("encoder", engine.url, 502, "answered 200, but not with JSON")
    encoded.add(read_answer(group, parsed, positions_known=not takes_audio_from_video(request)))
    return None


def _unreachable(engine: Engine, error: Exception) -> EngineFailure:
    engine.mark(False, str(error) or type(error).__name__)
    return EngineFailure.no_answer("encoder", engine.url, 502, "cannot be reached", error)

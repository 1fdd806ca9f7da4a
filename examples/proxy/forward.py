"""Sends a request to PD and brings back an answer that has really begun."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack
from typing import Any

import aiohttp

from proxy.errors import EngineFailure, read_error_object
from proxy.gate import StreamFailed, hold_until_begun, split_events
from proxy.pool import Engine, Pool

log = logging.getLogger("proxy")

UNREACHABLE = (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError)
CONNECT_TIMEOUT_S = 10.0

# Belong to one connection, or are made anew for the next one.
NOT_FORWARDED = frozenset(
    (
        *("connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection"),
        *("te", "trailer", "transfer-encoding", "upgrade", "expect", "host", "date", "server"),
        *("accept-encoding", "content-encoding", "content-length", "content-type"),
    )
)


def forwarded(headers: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name.lower() not in NOT_FORWARDED}


class PDAnswer:
    """PD's answer with status 200: `body` when it is whole, else `stream()`.

    `aclose` must be called in either case: closing the connection is what makes vLLM abort.
    """

    def __init__(self, engine: Engine, response: aiohttp.ClientResponse, stack: AsyncExitStack) -> None:
        self.engine = engine
        self.content_type = response.headers.get("Content-Type", "application/json")
        self.headers = forwarded(response.headers)
        self.body: bytes | None = None
        self._first = b""
        self._rest: AsyncIterator[bytes] | None = None
        self._stack = stack

    def streams(self) -> bool:
        return self.body is None

    async def begin(self, response: aiohttp.ClientResponse, *, echo: bool) -> None:
        """Read until the answer has begun. Raises StreamFailed and aiohttp's errors."""
        if not self.content_type.startswith("text/event-stream"):
            self.body = await response.read()
            return
        self._rest = hold_until_begun(split_events(response.content.iter_any()), echo=echo)
        self._first = await anext(self._rest)

    async def stream(self) -> AsyncIterator[bytes]:
        """The events. An answer that breaks off ends in an error event: its status is long sent."""
        assert self._rest is not None
        yield self._first
        try:
            async for event in self._rest:
                yield event
        except (aiohttp.ClientError, asyncio.TimeoutError) as error:
            failure = EngineFailure.no_answer("PD", self.engine.url, 502, "broke off its answer", error)
            log.error("%s", failure)
            yield b"data: " + json.dumps(failure.as_error().body()).encode() + b"\n\ndata: [DONE]\n\n"

    async def aclose(self) -> None:
        await self._stack.aclose()


async def send_to_pd(
    session: aiohttp.ClientSession,
    pds: Pool,
    request: Mapping[str, Any],
    headers: Mapping[str, str],
    *,
    timeout_s: float,
) -> PDAnswer:
    """PD's answer, begun. Raises EngineFailure.

    A PD that cannot be reached has seen nothing of the request, so another one gets it as it is.
    """
    unreachable: list[EngineFailure] = []
    while (engine := pds.least_busy(exclude={failure.url for failure in unreachable})) is not None:
        try:
            return await _send(session, engine, request, headers, timeout_s)
        except UNREACHABLE as error:
            engine.mark(False, str(error) or type(error).__name__)
            unreachable.append(
                EngineFailure.no_answer("PD", engine.url, 502, "cannot be reached", error, not_taken=True)
            )
            log.warning("[%s] %s", headers.get("X-Request-Id"), unreachable[-1])
    raise unreachable[-1]


async def _send(
    session: aiohttp.ClientSession,
    engine: Engine,
    request: Mapping[str, Any],
    headers: Mapping[str, str],
    timeout_s: float,
) -> PDAnswer:
    async with AsyncExitStack() as stack:
        stack.enter_context(engine.busy())
        try:
            response = await session.post(
                f"{engine.url}/v1/chat/completions",
                json=request,
                headers=headers,
                timeout=aiohttp.ClientTimeout(
                    total=None, sock_connect=CONNECT_TIMEOUT_S, sock_read=timeout_s
                ),
            )
            stack.callback(response.close)
            if response.status != 200:
                body = await response.read()
                raise EngineFailure.from_answer("PD", engine.url, response.status, body, response.headers)
            answer = PDAnswer(engine, response, stack)
            await answer.begin(response, echo=bool(request.get("echo")))
        except UNREACHABLE:
            raise
        except StreamFailed as error:
            raise _from_stream(engine, error) from error
        except asyncio.TimeoutError as error:
            what = f"said nothing for {timeout_s:g} s"
            raise EngineFailure.no_answer("PD", engine.url, 504, what) from error
        except aiohttp.ClientError as error:
            raise EngineFailure.no_answer(
                "PD", engine.url, 502, "broke off its answer", error, retryable=True
            ) from error
        answer._stack = stack.pop_all()
        return answer
    raise AssertionError("unreachable: the stack does not swallow exceptions")


def _from_stream(engine: Engine, failed: StreamFailed) -> EngineFailure:
    if failed.error is None:
        return EngineFailure.no_answer("PD", engine.url, 502, "broke off its answer", failed, retryable=True)
    message, kind, param = read_error_object(failed.error)
    status = failed.status
    return EngineFailure("PD", engine.url, status, message, kind=kind, param=param, retryable=status >= 500)

"""The routes, and what happens to one request from its arrival to its answer."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import uuid
from collections.abc import AsyncIterator, Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

import aiohttp
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from proxy.encode import encode
from proxy.errors import EngineFailure, ProxyError
from proxy.forward import PDAnswer, forwarded, send_to_pd
from proxy.grouping import Encoded
from proxy.items import brings_embeddings, check_grids, find_items
from proxy.pool import Pool, probe_forever
from proxy.rewrite import pd_request
from proxy.take_back import take_back

log = logging.getLogger("proxy")
CLIENT_CLOSED_REQUEST = 499
RETRY_AFTER_S = "5"  # the time between two probes
T = TypeVar("T")


@dataclass(frozen=True)
class Settings:
    """`reuse_urls`: media named by the same remote URL is taken to be the same in every request."""

    encoders: tuple[str, ...]
    pds: tuple[str, ...]
    rewrite: bool = True
    fallback: bool = True
    reuse_urls: bool = True
    timeout_s: float = 600.0
    probe_every_s: float = 5.0


class Proxy:
    """The state of a running proxy; `session` lives as long as the application."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.encoders = Pool("encoder", settings.encoders)
        self.pds = Pool("PD", settings.pds)
        self.session: aiohttp.ClientSession

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        # A kept connection can be closed by the engine just as it is used again; a POST is then lost,
        # and nobody can tell whether the engine began it. A new one costs little on one node.
        connector = aiohttp.TCPConnector(limit=0, force_close=True)
        async with aiohttp.ClientSession(connector=connector) as self.session:
            probing = asyncio.create_task(
                probe_forever(self.session, (self.encoders, self.pds), self.settings.probe_every_s)
            )
            try:
                yield
            finally:
                probing.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await probing

    async def chat(self, request: dict[str, Any], headers: dict[str, str]) -> PDAnswer:
        """PD's answer. Raises ProxyError.

        A 5xx for a request without media may only mean that an embedding is gone, so its items are
        encoded once more; a request that carries its media is PD's to answer for. Nothing is encoded
        while no PD is up, and what was announced for a request that no PD has taken is taken back.
        """
        check_grids(request)
        salt = None if self.settings.reuse_urls else uuid.uuid4().hex
        items = find_items(request, url_salt=salt)
        again = False
        while True:
            encoded = Encoded()
            if items:
                if not await self.pds.any_up_now(self.session):
                    raise ProxyError(503, down_sentence(self.pds), retry_after=RETRY_AFTER_S)
                try:
                    await encode(
                        self.session,
                        self.encoders,
                        request,
                        items,
                        headers,
                        timeout_s=self.settings.timeout_s,
                        fallback=self.settings.fallback,
                        encoded=encoded,
                    )
                except BaseException:  # also when the client has left
                    await take_back(encoded)
                    raise
            body, bare = pd_request(request, items, encoded, rewrite=self.settings.rewrite)
            try:
                return await send_to_pd(
                    self.session, self.pds, body, headers, timeout_s=self.settings.timeout_s
                )
            except EngineFailure as failure:
                if failure.not_taken:
                    await take_back(encoded)
                if not failure.retryable:
                    raise failure.as_error() from failure
                if not bare:
                    brought = brings_embeddings(request)
                    raise failure.as_error(brought_sentence(failure) if brought else None) from failure
                if again:
                    raise failure.as_error(gone_sentence(failure)) from failure
                log.warning("[%s] %s; encoding again", headers.get("X-Request-Id"), failure)
                again = True


def down_sentence(pds: Pool) -> str:
    reasons = "; ".join(f"{engine.url}: {engine.reason}" for engine in pds.engines)
    return f"No PD is up, so nothing was encoded ({reasons})."


def gone_sentence(failure: EngineFailure) -> str:
    return _blame(
        failure,
        "without pixels: most likely the embedding was not there when it was read (expired, evicted, or "
        "the encoder restarted); re-encoded once, failed again.",
    )


def brought_sentence(failure: EngineFailure) -> str:
    return _blame(
        failure,
        "that came here without pixels: most likely no embedding with its uuid and size is there (never "
        "encoded, expired, or evicted); send the media itself.",
    )


def _blame(failure: EngineFailure, request: str) -> str:
    what = f"answered {failure.status}" if failure.answered else failure.answer
    said = f" PD's answer: {failure.answer}" if failure.answered else ""
    return f"PD {failure.url} {what} for a request {request}{said}"


class EventStream(StreamingResponse):
    """Closes PD's connection however the response ends, also when the client left before its start."""

    def __init__(self, answer: PDAnswer, headers: dict[str, str]) -> None:
        super().__init__(answer.stream(), headers=headers, media_type=answer.content_type)
        self._answer = answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            await self._answer.aclose()


async def unless_client_leaves(request: Request, work: Coroutine[Any, Any, T]) -> T | None:
    """`work`'s result, or None when the client hung up first: then `work` is cancelled, which closes
    its connections to E and PD. The request's body must have been read."""

    async def hung_up() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    working, watching = asyncio.create_task(work), asyncio.create_task(hung_up())
    try:
        await asyncio.wait({working, watching}, return_when=asyncio.FIRST_COMPLETED)
        return working.result() if working.done() else None
    finally:
        for task in (working, watching):
            task.cancel()
        await asyncio.gather(working, watching, return_exceptions=True)


def create_app(settings: Settings) -> FastAPI:
    proxy = Proxy(settings)

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with proxy.running():
            yield

    app = FastAPI(title="EPD proxy", lifespan=lifespan)

    @app.exception_handler(ProxyError)
    async def show(request: Request, error: ProxyError) -> JSONResponse:
        log.warning("%s %s: %d %s", request.method, request.url.path, error.status, error.sentence)
        headers = {"Retry-After": error.retry_after} if error.retry_after else {}
        if request_id := getattr(request.state, "request_id", None):
            headers["X-Request-Id"] = request_id
        return JSONResponse(error.body(), status_code=error.status, headers=headers)

    @app.post("/v1/chat/completions")
    async def chat_completions(request: Request) -> Response:
        headers = forwarded({name.title(): value for name, value in request.headers.items()})
        request_id = request.state.request_id = headers.setdefault("X-Request-Id", uuid.uuid4().hex)
        body = parse_body(await request.body())
        answer = await unless_client_leaves(request, proxy.chat(body, headers))
        if answer is None:
            log.info("[%s] the client left", request_id)
            return Response(status_code=CLIENT_CLOSED_REQUEST)
        shown = {name: value for name, value in answer.headers.items() if name.lower() != "x-request-id"}
        shown["X-Request-Id"] = request_id
        if answer.streams():
            return EventStream(answer, shown)
        await answer.aclose()
        return Response(answer.body, headers=shown, media_type=answer.content_type)

    @app.get("/v1/models")
    async def models(request: Request) -> Response:
        return await from_pd(proxy, "/v1/models", forwarded(request.headers))

    @app.get("/health")
    async def health() -> JSONResponse:
        """200 when at least one encoder and one PD are up."""
        pools = {"encoders": proxy.encoders, "pds": proxy.pds}
        await asyncio.gather(*(pool.probe(proxy.session) for pool in pools.values()))
        listed = {
            name: [
                {"url": engine.url, "healthy": engine.healthy, "in_flight": engine.in_flight}
                | ({} if engine.healthy else {"reason": engine.reason})
                for engine in pool.engines
            ]
            for name, pool in pools.items()
        }
        up = all(pool.any_up() for pool in pools.values())
        return JSONResponse({"healthy": up, **listed}, status_code=200 if up else 503)

    return app


async def from_pd(proxy: Proxy, path: str, headers: dict[str, str]) -> Response:
    """Any PD's answer to a GET."""
    failures: list[EngineFailure] = []
    while (engine := proxy.pds.least_busy(exclude={failure.url for failure in failures})) is not None:
        try:
            timeout = aiohttp.ClientTimeout(total=30)
            async with proxy.session.get(f"{engine.url}{path}", headers=headers, timeout=timeout) as answer:
                body = await answer.read()
                kind = answer.headers.get("Content-Type")
                return Response(body, status_code=answer.status, media_type=kind)
        except (aiohttp.ClientError, asyncio.TimeoutError) as error:
            engine.mark(False, str(error) or type(error).__name__)
            failures.append(EngineFailure.no_answer("PD", engine.url, 502, "cannot be reached", error))
    raise failures[-1].as_error()


def parse_body(raw: bytes) -> dict[str, Any]:
    try:
        body = json.loads(raw)
    except ValueError as error:
        raise ProxyError(400, f"The request body is not JSON: {error}.", kind="BadRequestError") from error
    except RecursionError as error:
        raise ProxyError(400, "The request body is nested too deeply.", kind="BadRequestError") from error
    if not isinstance(body, dict):
        raise ProxyError(400, "The request body is not a JSON object.", kind="BadRequestError")
    return body

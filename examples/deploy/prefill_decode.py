"""Makes a prefill engine P and a decode engine D look like one PD: for e-p-d.sh.

    python examples/deploy/prefill_decode.py --port 8004 --prefill http://... --decode http://...

A request goes to P for one token, then to D with P's ``kv_transfer_params``. What E's embeddings are
needed for is done when P has answered, so D's request carries no announcement of E's: ``ec_transfer_params``
is empty, and D settles nothing a second time.
"""

from __future__ import annotations

import argparse
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.responses import StreamingResponse

PATH = "/v1/chat/completions"
ASK_FOR_KV = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}


def for_prefill(body: dict[str, Any]) -> dict[str, Any]:
    """The request as P gets it: one token, not streamed."""
    request = {**body, "stream": False, "max_tokens": 1, "n": 1, "kv_transfer_params": ASK_FOR_KV}
    for key in ("stream_options", "max_completion_tokens", "min_tokens"):
        request.pop(key, None)
    return request


def for_decode(body: dict[str, Any], prefilled: dict[str, Any]) -> dict[str, Any]:
    """The request as D gets it: with P's KV cache, without E's announcements."""
    request = {**body, "ec_transfer_params": {}}
    if prefilled.get("kv_transfer_params"):
        request["kv_transfer_params"] = prefilled["kv_transfer_params"]
    return request


def create_app(prefill: str, decode: str) -> FastAPI:
    """The server, in front of one P and one D."""

    @asynccontextmanager
    async def life(app: FastAPI) -> AsyncIterator[None]:
        timeout = aiohttp.ClientTimeout(total=None, sock_read=600)
        async with aiohttp.ClientSession(timeout=timeout) as app.state.session:
            yield

    app = FastAPI(lifespan=life)

    @app.get("/health")
    async def health() -> Response:
        for url in (prefill, decode):
            async with app.state.session.get(f"{url}/health") as answer:
                if answer.status != 200:
                    return Response(f"{url} answers {answer.status}", status_code=503)
        return Response()

    @app.get("/v1/models")
    async def models() -> Response:
        async with app.state.session.get(f"{decode}/v1/models") as answer:
            return Response(await answer.read(), answer.status, media_type="application/json")

    @app.post(PATH)
    async def completions(request: Request) -> Response:
        body = await request.json()
        headers = {k: v for k, v in request.headers.items() if k in ("x-request-id", "authorization")}
        async with app.state.session.post(prefill + PATH, json=for_prefill(body), headers=headers) as answer:
            if answer.status != 200:
                return Response(await answer.read(), answer.status, media_type=answer.content_type)
            prefilled = await answer.json()
        answer = await app.state.session.post(
            decode + PATH, json=for_decode(body, prefilled), headers=headers
        )

        async def pieces() -> AsyncIterator[bytes]:
            try:
                async for piece in answer.content.iter_any():
                    yield piece
            finally:
                answer.close()  # a client that hangs up takes D's request along

        # P has read and settled: a refusal (4xx) would tell the proxy to take the announcements back.
        status = 502 if 400 <= answer.status < 500 else answer.status
        return StreamingResponse(pieces(), status, media_type=answer.content_type)

    return app


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--prefill", required=True, metavar="URL")
    parser.add_argument("--decode", required=True, metavar="URL")
    options = parser.parse_args()
    uvicorn.run(create_app(options.prefill, options.decode), host="127.0.0.1", port=options.port)


if __name__ == "__main__":
    main()

"""One request on its way through the proxy, with small HTTP servers in the engines' places."""

# ruff: noqa: E402 - what may be missing is looked for first

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))

web = pytest.importorskip("aiohttp.web", reason="the proxy needs aiohttp, which comes with vLLM")
pytest.importorskip("fastapi", reason="the proxy needs fastapi, which comes with vLLM")

from aiohttp.test_utils import TestServer
from proxy.app import Proxy, Settings, parse_body
from proxy.errors import ProxyError
from proxy.forward import PDAnswer

GRID = {"image_grid_thw": [1, 4, 4]}
ROLE = b'data: {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]}\n\n'
TOKEN = b'data: {"choices": [{"index": 0, "delta": {"content": "a"}}]}\n\n'
ERROR = {"error": {"message": "Internal server error", "type": "InternalServerError", "code": 500}}
Handler = Callable[["Engine", dict[str, Any], Any], Awaitable[Any]]


class Engine:
    """Records what it is asked; `handler` answers. `left` is set when the client of a
    request that hangs has gone."""

    def __init__(self, handler: Handler) -> None:
        self.handler = handler
        self.asked: list[dict[str, Any]] = []
        self.left, self.hangs = asyncio.Event(), False

    async def start(self, stack: AsyncExitStack) -> str:
        app = web.Application()
        app.router.add_post("/v1/chat/completions", self.chat)
        app.router.add_get("/health", self.health)
        server = TestServer(app)
        await server.start_server()
        stack.push_async_callback(server.close)
        return str(server.make_url("")).rstrip("/")

    async def chat(self, request: Any) -> Any:
        body = await request.json()
        self.asked.append(body)
        try:
            return await self.handler(self, body, request)
        except asyncio.CancelledError:
            self.left.set()
            raise

    async def health(self, request: Any) -> Any:
        return web.Response()


async def encodes(engine: Engine, body: dict[str, Any], request: Any) -> Any:
    parts = body["messages"][0]["content"]
    params: dict[str, Any] = {}
    for position, part in enumerate(parts):
        entry = params.setdefault(
            part["uuid"], {"item_indices": [], "metadata": GRID, "token": len(engine.asked)}
        )
        entry["item_indices"].append(position)
    return web.json_response({"ec_transfer_params": params})


async def answers(engine: Engine, body: dict[str, Any], request: Any) -> Any:
    if not body.get("stream"):
        return web.json_response({"choices": [{"message": {"content": "a"}}]})
    return await stream(request, ROLE, TOKEN, b"data: [DONE]\n\n")


async def hangs(engine: Engine, body: dict[str, Any], request: Any) -> Any:
    engine.hangs = True
    await asyncio.sleep(60)


async def stream(request: Any, *events: bytes) -> Any:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    for event in events:
        await response.write(event)
    return response


def fails(times: int) -> Handler:
    """Fails as vLLM does, `times` times, then answers."""

    async def handler(engine: Engine, body: dict[str, Any], request: Any) -> Any:
        if len(engine.asked) > times:
            return await answers(engine, body, request)
        if body.get("stream"):
            return await stream(request, ROLE, b"data: " + json.dumps(ERROR).encode() + b"\n\n")
        return web.json_response(ERROR, status=500)

    return handler


def refuses(status: int) -> Handler:
    async def handler(engine: Engine, body: dict[str, Any], request: Any) -> Any:
        return web.json_response({"error": {"message": "no such thing", "type": "X"}}, status=status)

    return handler


def request(*names: str, **more: Any) -> dict[str, Any]:
    parts = [{"type": "image_url", "image_url": {"url": f"data:,{name}"}} for name in names]
    return {"model": "m", "messages": [{"role": "user", "content": parts}], **more}


def part_types(body: dict[str, Any]) -> list[str]:
    return [part["type"] for part in body["messages"][0]["content"]]


async def content_of(answer: PDAnswer) -> bytes:
    try:
        return answer.body or b"".join([event async for event in answer.stream()])
    finally:
        await answer.aclose()


def run(
    work: Callable[[Proxy], Awaitable[Any]],
    encoders: list[Handler],
    pds: list[Handler],
    **settings: Any,
) -> tuple[Any, list[Engine], list[Engine]]:
    """`work` with a proxy over these engines; an error of the proxy is its result."""

    async def body() -> tuple[Any, list[Engine], list[Engine]]:
        async with AsyncExitStack() as stack:
            engines = [[Engine(handler) for handler in handlers] for handlers in (encoders, pds)]
            urls = [tuple([await engine.start(stack) for engine in role]) for role in engines]
            proxy = Proxy(Settings(encoders=urls[0], pds=urls[1], **settings))
            await stack.enter_async_context(proxy.running())
            try:
                result = await work(proxy)
            except ProxyError as error:
                result = error
            for engine in engines[0] + engines[1]:
                if engine.hangs:
                    await asyncio.wait_for(engine.left.wait(), 30)
            return result, engines[0], engines[1]

    return asyncio.run(body())


def chat(body: dict[str, Any]) -> Callable[[Proxy], Awaitable[Any]]:
    async def work(proxy: Proxy) -> Any:
        return await content_of(await proxy.chat(body, {"X-Request-Id": "r"}))

    return work


@pytest.mark.parametrize("streaming", [False, True])
def test_pd_gets_the_request_without_pixels_and_with_the_encoders_tokens(streaming):
    body, (e,), (pd,) = run(chat(request("a", "a", stream=streaming)), [encodes], [answers])
    assert b'"a"' in body
    assert len(e.asked) == len(pd.asked) == 1
    assert len(part_types(e.asked[0])) == 2
    assert part_types(pd.asked[0]) == ["image_embeds"] * 2
    (entry,) = pd.asked[0]["ec_transfer_params"].values()
    assert entry == {"item_indices": [0, 1], "metadata": GRID, "token": 1}


def test_text_goes_straight_to_pd():
    _, (e,), (pd,) = run(chat({"messages": [{"role": "user", "content": "hi"}]}), [encodes], [answers])
    assert e.asked == []
    assert pd.asked == [{"messages": [{"role": "user", "content": "hi"}]}]


def test_encoders_work_on_one_request_at_the_same_time():
    met = 0

    async def waits_for_the_other(engine: Engine, body: dict[str, Any], request: Any) -> Any:
        nonlocal met
        met += 1
        while met < 2:
            await asyncio.sleep(0.01)
        return await encodes(engine, body, request)

    names = [f"image{i}" for i in range(12)]
    _, es, (pd,) = run(chat(request(*names)), [waits_for_the_other] * 2, [answers])
    assert [len(e.asked) for e in es] == [1, 1]
    assert part_types(pd.asked[0]) == ["image_embeds"] * 12
    indices = [entry["item_indices"] for entry in pd.asked[0]["ec_transfer_params"].values()]
    assert sorted(indices) == [[i] for i in range(12)]


@pytest.mark.parametrize("streaming", [False, True])
def test_one_failure_of_pd_is_cured_by_encoding_again(streaming):
    body, (e,), (pd,) = run(chat(request("a", stream=streaming)), [encodes], [fails(1)])
    assert b'"a"' in body
    assert b"Internal" not in body
    assert len(e.asked) == len(pd.asked) == 2
    tokens = [next(iter(asked["ec_transfer_params"].values()))["token"] for asked in pd.asked]
    assert tokens == [1, 2]


@pytest.mark.parametrize("streaming", [False, True])
def test_a_second_failure_of_pd_is_an_error_that_says_so(streaming):
    error, (e,), (pd,) = run(chat(request("a", stream=streaming)), [encodes], [fails(9)])
    assert error.status == 500
    assert "for a request without pixels" in error.sentence
    assert "re-encoded once, failed again. PD's answer: Internal server error" in error.sentence
    assert len(e.asked) == len(pd.asked) == 2


@pytest.mark.parametrize("body", [request("a"), {"messages": []}])
def test_a_failure_of_pd_that_has_the_pixels_is_not_tried_again(body):
    error, _, (pd,) = run(chat(body), [encodes], [fails(1)], rewrite=False)
    assert (error.status, len(pd.asked)) == (500, 1)
    assert error.sentence.endswith("answered 500: Internal server error")


def test_pds_refusal_is_passed_on_and_not_tried_again():
    error, _, (pd,) = run(chat(request("a")), [encodes], [refuses(422)])
    assert (error.status, len(pd.asked)) == (422, 1)
    assert error.sentence.endswith("answered 422: no such thing")


def test_when_every_encoder_refuses_the_client_gets_the_refusal():
    error, _, (pd,) = run(chat(request("a", "b", "c", "d")), [refuses(400)] * 2, [answers])
    assert error.status == 400
    assert error.sentence.startswith("encoder http://127.0.0.1:")
    assert error.sentence.endswith("answered 400: no such thing")
    assert pd.asked == []


def test_what_a_broken_encoder_should_have_encoded_goes_to_the_other():
    names = [f"image{i}" for i in range(12)]
    _, (broken, e), (pd,) = run(chat(request(*names)), [refuses(500), encodes], [answers])
    assert len(broken.asked) == 1
    assert len(e.asked) == 2
    assert part_types(pd.asked[0]) == ["image_embeds"] * 12


def test_when_all_encoders_are_broken_pd_gets_the_pixels_with_the_uuid():
    _, _, (pd,) = run(chat(request("a")), [refuses(503)] * 2, [answers])
    assert part_types(pd.asked[0]) == ["image_url"]
    assert pd.asked[0]["messages"][0]["content"][0]["uuid"]
    assert "ec_transfer_params" not in pd.asked[0]


def test_without_fallback_a_broken_encoder_is_an_error():
    error, _, (pd,) = run(chat(request("a")), [refuses(503)], [answers], fallback=False)
    assert error.status == 503
    assert "encoder http://127.0.0.1:" in error.sentence
    assert pd.asked == []


def test_an_encoder_that_is_too_slow_leaves_the_work_to_pd():
    _, _, (pd,) = run(chat(request("a")), [hangs], [answers], timeout_s=0.3)
    assert part_types(pd.asked[0]) == ["image_url"]


def test_a_pd_that_is_not_there_is_passed_over_without_encoding_again():
    async def work(proxy: Proxy) -> Any:
        proxy.pds.engines[0].url = "http://127.0.0.1:1"
        return await chat(request("a"))(proxy)

    body, (e,), (_, pd) = run(work, [encodes], [answers, answers])
    assert b'"a"' in body
    assert len(e.asked) == len(pd.asked) == 1


def test_without_a_pd_that_is_up_nothing_is_encoded():
    async def work(proxy: Proxy) -> Any:
        for engine in proxy.pds.engines:
            engine.url = "http://127.0.0.1:1"
        await proxy.pds.probe(proxy.session)
        return await chat(request("a"))(proxy)

    error, (e,), _ = run(work, [encodes], [answers, answers])
    assert (error.status, error.retry_after) == (503, "5")
    assert error.sentence.startswith("No PD is up, so nothing was encoded (http://127.0.0.1:1: ")
    assert e.asked == []


def test_a_pd_that_has_just_come_up_is_not_refused():
    async def work(proxy: Proxy) -> Any:
        proxy.pds.engines[0].mark(False, "was down")
        return await asyncio.gather(*(chat(request(name))(proxy) for name in ("a", "b", "c")))

    bodies, _, (pd,) = run(work, [encodes], [answers])
    assert all(b'"a"' in body for body in bodies)
    assert len(pd.asked) == 3


def test_requests_go_to_the_pd_with_the_fewest_in_flight():
    async def work(proxy: Proxy) -> None:
        await asyncio.gather(*(chat({"messages": []})(proxy) for _ in range(6)))

    _, _, pds = run(work, [encodes], [answers] * 3)
    assert [len(pd.asked) for pd in pds] == [2, 2, 2]


def test_a_pd_that_breaks_off_before_its_answer_is_tried_once_more():
    async def breaks_off(engine: Engine, body: dict[str, Any], http: Any) -> Any:
        if len(engine.asked) > 1:
            return await answers(engine, body, http)
        await stream(http, ROLE)
        http.transport.abort()

    body, (e,), _ = run(chat(request("a", stream=True)), [encodes], [breaks_off])
    assert body.startswith(ROLE + TOKEN)
    assert len(e.asked) == 2


def test_a_pd_that_breaks_off_later_ends_the_stream_with_a_sentence():
    async def breaks_off(engine: Engine, body: dict[str, Any], http: Any) -> Any:
        response = await stream(http, ROLE, TOKEN)
        await asyncio.sleep(0.1)
        http.transport.abort()
        return response

    body, (e,), _ = run(chat(request("a", stream=True)), [encodes], [breaks_off])
    assert body.startswith(ROLE + TOKEN)
    assert b"broke off its answer" in body
    assert body.endswith(b"data: [DONE]\n\n")
    assert len(e.asked) == 1


@pytest.mark.parametrize(("slow", "handlers"), [("E", ([hangs], [answers])), ("PD", ([encodes], [hangs]))])
def test_a_cancelled_request_hangs_up_on_the_engine_that_works_on_it(slow, handlers):
    async def work(proxy: Proxy) -> None:
        task = asyncio.create_task(chat(request("a"))(proxy))
        pool = proxy.encoders if slow == "E" else proxy.pds
        while not pool.engines[0].in_flight:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert pool.engines[0].in_flight == 0

    _, (e,), (pd,) = run(work, *handlers)
    assert (e if slow == "E" else pd).left.is_set()


def test_closing_a_stream_hangs_up_on_pd_and_frees_its_place():
    async def endless(engine: Engine, body: dict[str, Any], http: Any) -> Any:
        await stream(http, ROLE, TOKEN)
        await hangs(engine, body, http)

    async def work(proxy: Proxy) -> None:
        answer = await proxy.chat(request("a", stream=True), {})
        assert proxy.pds.engines[0].in_flight == 1
        await answer.aclose()
        assert proxy.pds.engines[0].in_flight == 0

    _, _, (pd,) = run(work, [encodes], [endless])
    assert pd.left.is_set()


@pytest.mark.parametrize(
    "grid", [[1, 100_000, 100_000], [[1, 4, 4], [1, 2_000, 2_000]], [1, 4, 4, 1, 2_000, 2_000], [1e9]]
)
def test_a_grid_that_would_kill_a_front_end_is_refused(grid):
    part = {"type": "image_embeds", "image_embeds": {"image_grid_thw": grid}, "uuid": "a"}
    body = {"model": "m", "messages": [{"role": "user", "content": [part]}]}
    error, (e,), (pd,) = run(chat(body), [encodes], [answers])
    assert error.status == 400 and "at most 1048576 patches" in error.sentence
    assert not e.asked and not pd.asked


def test_a_body_that_is_nested_too_deeply_is_refused():
    with pytest.raises(ProxyError, match="nested too deeply"):
        parse_body(b'{"a":' + b"[" * 100_000)

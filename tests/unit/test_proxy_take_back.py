"""Announcements for a request that no PD has taken, in a real segment: taken back, and only then."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch

pytest.importorskip("aiohttp.web", reason="the proxy needs aiohttp, which comes with vLLM")
pytest.importorskip("fastapi", reason="the proxy needs fastapi, which comes with vLLM")

from aiohttp import web
from test_proxy_chat import Engine, answers, chat, fails, hangs, refuses, request, run

import ec_ipc
from ec_ipc import Store


@pytest.fixture
def store(namespace: str) -> Iterator[Store]:
    with Store.open(namespace, arena="host", arena_bytes=1 << 20) as opened:
        yield opened


def encodes_into(store: Store) -> Any:
    """An encoder that publishes, with an announcement for each occurrence."""

    async def handler(engine: Engine, body: dict[str, Any], http: Any) -> Any:
        indices: dict[str, list[int]] = {}
        for position, part in enumerate(body["messages"][0]["content"]):
            indices.setdefault(part["uuid"], []).append(position)
        params = {}
        for uuid, positions in indices.items():
            token = store.put(uuid, torch.zeros(8), announce=len(positions))
            params[uuid] = {
                "item_indices": positions,
                "metadata": {"image_grid_thw": [1, 4, 4]},
                "ec_ipc_token": list(token),
            }
        return web.json_response({"ec_transfer_params": params})

    return handler


def announced(store: Store) -> int:
    return sum(entry.announced for entry in store.segment.entries())


async def breaks_off(engine: Engine, body: dict[str, Any], http: Any) -> Any:
    http.transport.abort()


async def refuses_in_a_stream(engine: Engine, body: dict[str, Any], http: Any) -> Any:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(http)
    await response.write(b'data: {"error": {"message": "no", "code": 400}}\n\n')
    return response


@pytest.mark.parametrize("names", [["a"], ["a", "a", "b"]])
@pytest.mark.parametrize("status", [400, 422, 429])
def test_what_pd_refuses_leaves_nothing_announced(store, names, status):
    error, _, (pd,) = run(chat(request(*names)), [encodes_into(store)], [refuses(status)])
    assert (error.status, len(pd.asked)) == (status, 1)
    assert store.segment.entries() == []
    assert store.segment.counters()["late_releases"] == 0


def test_the_announcements_of_another_request_for_the_same_picture_stay(store):
    both = [answers, refuses(400)]

    async def takes_turns(engine: Engine, body: dict[str, Any], http: Any) -> Any:
        return await both[len(engine.asked) - 1](engine, body, http)

    async def work(proxy: Any) -> None:
        await chat(request("a"))(proxy)  # an answer without a read: its announcement stays
        with contextlib.suppress(Exception):
            await chat(request("a", "a"))(proxy)

    run(work, [encodes_into(store)], [takes_turns])
    (entry,) = store.segment.entries()
    assert entry.announced == 1
    store.settle_token(store.token(entry))


def test_a_request_that_reaches_no_pd_leaves_nothing_announced(store):
    async def work(proxy: Any) -> Any:
        for engine in proxy.pds.engines:
            engine.url = "http://127.0.0.1:1"
        return await chat(request("a"))(proxy)

    error, _, pds = run(work, [encodes_into(store)], [answers, answers])
    assert error.status == 502 and not any(pd.asked for pd in pds)
    assert store.segment.entries() == []


@pytest.mark.parametrize(
    ("pd", "tries"),
    [
        (answers, 1),
        (fails(9), 2),
        (refuses(503), 2),
        (refuses(408), 1),
        (breaks_off, 2),
        (hangs, 1),
        (refuses_in_a_stream, 1),
    ],
    ids=["200", "500", "503", "408", "broken", "silent", "stream"],
)
def test_what_pd_may_have_begun_is_left_to_pd(store, pd, tries):
    run(chat(request("a")), [encodes_into(store)], [pd], timeout_s=0.5)
    (entry,) = store.segment.entries()
    assert entry.announced == tries
    store.settle_token(store.token(entry), tries)


def test_a_client_that_leaves_between_two_encoders_leaves_nothing_announced(store):
    async def work(proxy: Any) -> None:
        task = asyncio.create_task(chat(request(*(f"image{i}" for i in range(12))))(proxy))
        while not announced(store) or any(engine.served == 0 for engine in proxy.encoders.engines):
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.2)  # for the first encoder's answer to be read
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert announced(store) == 0

    _, _, (pd,) = run(work, [encodes_into(store), hangs], [answers])
    assert pd.asked == []


def test_what_one_encoder_announced_goes_when_another_one_fails_the_request(store):
    names = [f"image{i}" for i in range(12)]
    error, _, (pd,) = run(
        chat(request(*names)), [encodes_into(store), refuses(400)], [answers], fallback=False
    )
    assert error.status == 400 and pd.asked == []
    assert store.segment.entries() == []


def test_without_ec_ipc_nothing_happens(store, monkeypatch):
    monkeypatch.setitem(sys.modules, "ec_ipc", None)
    error, _, _ = run(chat(request("a")), [encodes_into(store)], [refuses(400)])
    assert error.status == 400
    (entry,) = store.segment.entries()
    assert entry.announced == 1
    store.settle_token(store.token(entry))


@pytest.mark.parametrize("token", ["abc", [1], [0, 0, 2**70], [None, 1, 2], [], {"entry": 1}])
def test_what_is_no_token_changes_nothing(token):
    async def reports(engine: Engine, body: dict[str, Any], http: Any) -> Any:
        uuid = body["messages"][0]["content"][0]["uuid"]
        return web.json_response({"ec_transfer_params": {uuid: {"item_indices": [0], "ec_ipc_token": token}}})

    error, _, _ = run(chat(request("a")), [reports], [refuses(400)])
    assert error.status == 400


def test_a_token_is_settled_from_outside_once_for_each_read(store):
    entry, generation, inode = token = store.put("a", torch.zeros(8), announce=3)
    assert not ec_ipc.settle_token([entry, generation, inode + 1])
    assert not ec_ipc.settle_token([entry, generation + 1, inode])
    assert not ec_ipc.settle_token([1 << 40, generation, inode])
    assert announced(store) == 3
    assert ec_ipc.settle_token(token) and announced(store) == 2
    assert ec_ipc.settle_token(list(token), 2)
    assert store.segment.entries() == []
    assert not ec_ipc.settle_token(token)
    counters = store.segment.counters()
    assert (counters["freed_by_last_reader"], counters["late_releases"]) == (1, 2)
    with pytest.raises(ValueError, match="1 or more"):
        ec_ipc.settle_token(token, 0)
    assert len(store.segment.participants()) == 1, "it does not join"


def test_settling_leaves_the_participants_alone(store, namespace):
    """Closing the visitor's descriptor must not give the lock bytes of this process back."""
    ec_ipc.settle_token(store.put("a", torch.zeros(8), announce=1))
    pid = os.fork()
    if pid == 0:
        from ec_ipc import segment

        other = segment.attach(namespace)
        os._exit(0 if other is not None and other.participants()[0].alive else 1)
    assert os.waitpid(pid, 0)[1] == 0

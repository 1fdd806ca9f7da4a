"""What the scenario tests share: clients that leave, engines' own figures, calls side by side."""

from __future__ import annotations

import http.client
import json
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from examples.demo.chat import PROMPT, Answer, Picture, messages
from examples.demo.deployment import Deployment, Topology, in_use
from examples.demo.engines import MODEL_NAME, EngineSpec, Server

T = TypeVar("T")
Content = Sequence["Picture | dict[str, Any]"]


@dataclass(frozen=True)
class Mixed(Topology):
    """A topology whose engines differ in what they get as ``ec_connector_extra_config``."""

    extra_of: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def specs(self, model: Path, namespace: str) -> list[EngineSpec]:
        specs = super().specs(model, namespace)
        for spec in specs:
            if spec.ec_transfer is not None:
                spec.ec_transfer["ec_connector_extra_config"].update(self.extra_of.get(spec.name, {}))
        return specs


def leave(
    url: str,
    content: Content,
    prompt: str = PROMPT,
    *,
    tokens: int = 0,
    after: float = 0.0,
    max_tokens: int = 200,
    **fields: Any,
) -> int:
    """Ask for a stream, read so many pieces of the answer, wait ``after`` seconds, and hang up.

    Returns the number of pieces that had come.
    """
    where = urlsplit(url)
    body = {
        "model": MODEL_NAME,
        "messages": messages(content, prompt),
        "max_tokens": max_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        **fields,
    }
    connection = http.client.HTTPConnection(where.hostname or "", where.port, timeout=120)
    seen = 0
    try:
        connection.request(
            "POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"}
        )
        if tokens:
            response = connection.getresponse()
            assert response.status == 200, response.read()
            while seen < tokens:
                line = response.readline()
                assert line and b"[DONE]" not in line, "the answer ended before the client could leave"
                seen += line.startswith(b"data: ")
        time.sleep(after)
    finally:
        connection.close()
    return seen


def side_by_side(calls: Sequence[Callable[[], T]]) -> list[T]:
    """All at the same time; their results in order."""
    with ThreadPoolExecutor(len(calls)) as pool:
        return [future.result() for future in [pool.submit(call) for call in calls]]


def metric(server: Server, name: str) -> float:
    """The sum of one of vLLM's own counters."""
    with urllib.request.urlopen(f"{server.url}/metrics", timeout=30) as answer:
        lines = answer.read().decode().splitlines()
    found = [float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith((f"{name}{{", f"{name} "))]
    assert found, f"{server.name} has no metric {name}"
    return sum(found)


def reset_encoder_cache(server: Server) -> None:
    """vLLM's own call after a weight update."""
    request = urllib.request.Request(f"{server.url}/reset_encoder_cache", b"", method="POST")
    with urllib.request.urlopen(request, timeout=60) as answer:
        assert answer.status == 200


def all_tokens(answer: Answer) -> list[tuple[int, ...]]:
    """The tokens of every choice of an answer."""
    return [tuple(choice["token_ids"]) for choice in answer.body["choices"]]


def text_of(length: int, number: int = 0) -> str:
    """A prompt of about so many tokens, another for each number."""
    words = f"{number}: describe the pictures, what is in this image? "
    return (words * (length // len(words) + 1))[:length]


@contextmanager
def changes(deployment: Deployment) -> Iterator[dict[str, int]]:
    """As ``counters_delta``; afterwards every server is checked to be the one that was started."""
    pids = {name: server.pids() for name, server in deployment.servers.items()}
    with deployment.counters_delta() as delta:
        yield delta
    for name, server in deployment.servers.items():
        server.check()
        assert set(server.pids()) >= set(pids[name]), f"a process of {name} has ended"


def used(deployment: Deployment) -> tuple[int, int, int]:
    """(used bytes, holds, announcements)."""
    found = in_use(deployment.quick_status())
    return found["used_bytes"], found["holds"], found["announced"]

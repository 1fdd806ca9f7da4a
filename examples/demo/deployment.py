"""An encoder engine E, a prefill-and-decode engine PD and a proxy, sharing one namespace.

with deploy(make_model("llava")) as deployment:
    answer = deployment.ask([picture(1)])
    deployment.wait_until_idle()
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .chat import PROMPT, Answer, Picture, chat
from .engines import REPO, EngineSpec, Server, ServerSpec, ec_config, start_all, unique_namespace

SHM = Path("/dev/shm")
ARENA_BYTES = 64 << 20
E, PD, PROXY, SINGLE = "E", "PD", "proxy", "single"
Content = Sequence["Picture | dict[str, Any]"]


class StillInUse(AssertionError):
    """Shared memory was not given back in time."""


@dataclass(frozen=True)
class Topology:
    """What to start. ``extra`` goes to both engines' ``ec_connector_extra_config``.

    ``roles`` maps the name of each engine to its EC role; requests go to the first engine
    whose role encodes and the first one that decodes. ``args`` and ``env`` are per engine.
    """

    roles: Mapping[str, str] = field(default_factory=lambda: {E: "ec_producer", PD: "ec_consumer"})
    proxy: bool = True
    proxy_args: Sequence[str] = ()
    single: bool = False  # also a plain engine, named "single"
    extra: Mapping[str, Any] = field(default_factory=dict)
    args: Mapping[str, Sequence[str]] = field(default_factory=dict)
    env: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    max_model_len: int = 1024

    def specs(self, model: Path, namespace: str) -> list[EngineSpec]:
        extra = {"arena": "host", "arena_bytes": ARENA_BYTES, **self.extra}
        roles: dict[str, str | None] = {SINGLE: None} if self.single else {}
        return [
            EngineSpec(
                name,
                model,
                ec_transfer=None if role is None else ec_config(role, namespace, **extra),
                max_model_len=self.max_model_len,
                args=self.args.get(name, ()),
                env=self.env.get(name, {}),
            )
            for name, role in {**self.roles, **roles}.items()
        ]

    def engines(self, *roles: str) -> list[str]:
        return [name for name, role in self.roles.items() if role in roles]


def proxy_spec(encoders: Sequence[str], decoders: Sequence[str], args: Sequence[str] = ()) -> ServerSpec:
    options = [word for url in encoders for word in ("--encoder", url)]
    options += [word for url in decoders for word in ("--pd", url)]
    return ServerSpec(
        PROXY,
        lambda port: [sys.executable, str(REPO / "examples" / "proxy"), "--port", str(port), *options, *args],
    )


class Deployment:
    """Running engines that share a namespace. Made by ``deploy``."""

    def __init__(self, model: Path, namespace: str, topology: Topology, servers: Sequence[Server]) -> None:
        self.model = model
        self.namespace = namespace
        self.topology = topology
        self.servers = {server.name: server for server in servers}
        self.encoder = self.servers[topology.engines("ec_producer", "ec_both")[0]]
        self.decoder = self.servers[topology.engines("ec_consumer", "ec_both")[0]]

    @property
    def proxy(self) -> Server:
        return self.servers[PROXY]

    def ask(self, content: Content = (), prompt: str = PROMPT, **fields: Any) -> Answer:
        """A chat request through the proxy."""
        return chat(self.proxy.url, content, prompt, **fields)

    def encode(self, content: Content, **fields: Any) -> Answer:
        """Only E: encodes the pictures and announces one read of each."""
        return chat(self.encoder.url, content, max_tokens=1, **fields)

    def decode(self, content: Content, params: Any = None, prompt: str = PROMPT, **fields: Any) -> Answer:
        """Only PD. ``params`` is the ``ec_transfer_params`` of E's answer."""
        if params is not None:
            fields["ec_transfer_params"] = params
        return chat(self.decoder.url, content, prompt, **fields)

    def ask_by_hand(self, content: Content, prompt: str = PROMPT, **fields: Any) -> Answer:
        """E, then PD with the pictures and E's answer; no proxy. The answer is PD's."""
        encoded = self.encode(content)
        return self.decode(content, encoded.ec_transfer_params, prompt, **fields) if encoded.ok else encoded

    def status(self) -> dict[str, Any]:
        """What ``ec-ipc status --json`` says of the namespace; empty before anyone joined it."""
        command = [ec_ipc(), "status", "--namespace", self.namespace, "--json"]
        found = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
        return found["namespaces"][0] if found["namespaces"] else {}

    def quick_status(self) -> dict[str, Any]:
        """The same report, made in this process: milliseconds instead of seconds."""
        from ec_ipc.cli import status

        found = status.collect(self.namespace)["namespaces"]
        return found[0] if found else {}

    def counters(self) -> dict[str, int]:
        return dict(self.quick_status().get("counters", {}))

    @contextmanager
    def counters_delta(self) -> Iterator[dict[str, int]]:
        """Yields a dict that says, after the block, by how much each counter grew in it."""
        before = self.counters()
        delta: dict[str, int] = {}
        try:
            yield delta
        finally:
            delta.update({name: value - before.get(name, 0) for name, value in self.counters().items()})

    def wait_until_idle(self, timeout: float = 2.0) -> dict[str, Any]:
        """Until nobody uses or expects shared memory. Returns the status. Raises StillInUse."""
        return wait_for(self.quick_status, is_idle, timeout)

    def wait_until(self, condition: Callable[[dict[str, Any]], bool], timeout: float = 5.0) -> dict[str, Any]:
        """Until ``condition`` of the status holds. Raises StillInUse."""
        return wait_for(self.quick_status, condition, timeout)


def in_use(status: Mapping[str, Any]) -> dict[str, int]:
    """What is held of the namespace: bytes, holds, announcements."""
    return {
        "used_bytes": sum(arena["used_bytes"] for arena in status.get("arenas", ())),
        "holds": status.get("holds", 0),
        "announced": status.get("announced", 0),
    }


def is_idle(status: Mapping[str, Any]) -> bool:
    return not any(in_use(status).values())


def wait_for(
    read: Callable[[], dict[str, Any]], condition: Callable[[dict[str, Any]], bool], timeout: float
) -> dict[str, Any]:
    end = time.monotonic() + timeout
    while True:
        status = read()
        if condition(status):
            return status
        if time.monotonic() > end:
            details = {**in_use(status), **status.get("entries", {}), **status.get("counters", {})}
            raise StillInUse(f"not so within {timeout:g} s: {details}")
        time.sleep(0.02)


def ec_ipc() -> str:
    """The command of this environment."""
    return str(Path(sys.executable).with_name("ec-ipc"))


def segments(namespace: str) -> list[Path]:
    """The namespace's files in /dev/shm: its directory, and ``:<number>`` for each arena."""
    name = f"ec_ipc.{os.geteuid()}.{namespace}"
    return [path for path in SHM.iterdir() if path.name == name or path.name.startswith(f"{name}:")]


def remove_namespace(namespace: str) -> list[Path]:
    """Give back what ended engines left of it. Returns what could not be removed."""
    if segments(namespace):
        subprocess.run([ec_ipc(), "reap", "--namespace", namespace], capture_output=True)
    return segments(namespace)


@contextmanager
def deploy(
    model: Path,
    topology: Topology | None = None,
    *,
    namespace: str | None = None,
    log_dir: Path | None = None,
    tick: Callable[[Sequence[Server]], None] | None = None,
) -> Iterator[Deployment]:
    """Start the engines side by side, then the proxy; at the end stop them and remove the namespace."""
    topology = topology or Topology()
    namespace = namespace or unique_namespace()
    with ExitStack() as stack:
        stack.callback(remove_namespace, namespace)
        specs = topology.specs(model, namespace)
        servers = stack.enter_context(start_all(*specs, log_dir=log_dir, tick=tick))
        if topology.proxy:
            urls = {server.name: server.url for server in servers}
            encoders = [urls[name] for name in topology.engines("ec_producer", "ec_both")]
            decoders = [urls[name] for name in topology.engines("ec_consumer", "ec_both")]
            spec = proxy_spec(encoders, decoders, topology.proxy_args)
            servers = [*servers, *stack.enter_context(start_all(spec, log_dir=log_dir, timeout=60))]
        yield Deployment(model, namespace, topology, servers)

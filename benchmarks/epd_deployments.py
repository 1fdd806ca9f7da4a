"""What bench_epd compares: E and PD with ec_ipc, E and PD with vLLM's ECExampleConnector, one engine.

All of them run at once, from one model, so that their requests can take turns.
"""

from __future__ import annotations

import http.client
import json
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from examples.demo.chat import Picture, messages
from examples.demo.deployment import remove_namespace, segments
from examples.demo.engines import LOOPBACK, MODEL_NAME, EngineSpec, Server, start_all, unique_namespace

from .measure import REPO
from .timed_connectors import FOLDER, read_totals

ARENA_BYTES = 512 << 20
TIMEOUT_S = 300.0
Hooks = dict[str, dict[str, tuple[int, int]]]


@dataclass(frozen=True)
class Timing:
    """Of one request, in seconds from its beginning: E's answer, PD's first token after that, both."""

    encode: float
    ttft: float
    end_to_end: float
    tokens: tuple[int, ...]


class Deployment:
    """One way to serve a picture. ``encoder`` is None for a single engine."""

    def __init__(
        self,
        name: str,
        decoder: Server,
        encoder: Server | None = None,
        hooks: Path | None = None,
        storage: Path | str | None = None,  # a folder, or a namespace of ec_ipc
    ) -> None:
        self.name = name
        self.decoder = decoder
        self.encoder = encoder
        self._hooks = hooks
        self._storage = storage

    def ask(self, pictures: list[Picture]) -> Timing:
        """E, if there is one, then PD; each picture has a uuid that both engines know it by."""
        begin = time.perf_counter()
        params = None
        if self.encoder is not None:
            answer = json.loads(_post(self.encoder.port, {**_body(pictures), "max_tokens": 1}).read())
            params = answer.get("ec_transfer_params")
        encoded = time.perf_counter()
        extra = {"ec_transfer_params": params} if params else {}
        first, tokens = _first_token(self.decoder.port, {**_body(pictures), **extra, "stream": True})
        return Timing(encoded - begin, first - encoded, first - begin, tokens)

    def hooks(self) -> dict[str, Hooks]:
        """Engine -> role -> hook -> nanoseconds and calls so far."""
        if self._hooks is None:
            return {}
        return {folder.name: read_totals(folder) for folder in self._hooks.iterdir()}

    def shared_bytes(self) -> tuple[int, int]:
        """Shared memory that embeddings take now, and that is set apart for them."""
        if isinstance(self._storage, Path):
            files = [path.stat().st_blocks * 512 for path in self._storage.rglob("*") if path.is_file()]
            return sum(files), sum(files)
        if isinstance(self._storage, str):
            from ec_ipc.cli import status

            found = status.collect(self._storage)["namespaces"]
            used = sum(arena["used_bytes"] for arena in found[0]["arenas"]) if found else 0
            return used, sum(path.stat().st_blocks * 512 for path in segments(self._storage))
        return 0, 0

    def resident_bytes(self) -> int:
        """Private memory of all its processes. Shared memory is counted by shared_bytes."""
        servers = [server for server in (self.encoder, self.decoder) if server is not None]
        return sum(_private(pid) for server in servers for pid in server.pids())


def _private(pid: int) -> int:
    try:
        fields = Path(f"/proc/{pid}/statm").read_text().split()
    except OSError:
        return 0
    return (int(fields[1]) - int(fields[2])) * 4096


def _body(pictures: list[Picture]) -> dict[str, Any]:
    return {
        "model": MODEL_NAME,
        "messages": messages(pictures),
        "max_tokens": 2,
        "temperature": 0,
        "return_token_ids": True,
    }


def _post(port: int, body: dict[str, Any]) -> http.client.HTTPResponse:
    connection = http.client.HTTPConnection(LOOPBACK, port, timeout=TIMEOUT_S)
    connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
    response = connection.getresponse()
    if response.status != 200:
        raise RuntimeError(f"HTTP {response.status}: {response.read()[:500]!r}")
    return response


def _first_token(port: int, body: dict[str, Any]) -> tuple[float, tuple[int, ...]]:
    """When the first token arrived, and all of them."""
    first, tokens = 0.0, []
    for line in _post(port, body):
        if not line.startswith(b"data: {"):
            continue
        event = json.loads(line[6:])
        if "error" in event:
            raise RuntimeError(str(event["error"]))
        for choice in event["choices"]:
            if choice.get("token_ids"):
                first = first or time.perf_counter()
                tokens += choice["token_ids"]
    if not tokens:
        raise RuntimeError("an answer without a token")
    return first, tuple(tokens)


@contextmanager
def deployments(model: Path, max_seqs: int = 16) -> Iterator[list[Deployment]]:
    """All of them, started side by side."""
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ec_ipc-bench-")))
        storage = Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix="ec_ipc-bench-", dir="/dev/shm"))
        )
        namespace = unique_namespace("bench")
        stack.callback(remove_namespace, namespace)
        classes = {
            "ec_ipc": (
                "TimedIPC",
                {"namespace": namespace, "arena": "host", "arena_bytes": ARENA_BYTES},
                namespace,
            ),
            "ECExampleConnector": ("TimedExample", {"shared_storage_path": str(storage)}, storage),
        }
        args = ("--no-enable-prefix-caching", "--max-num-seqs", str(max_seqs))
        specs = [EngineSpec("single", model, args=args)]
        for name, (connector, extra, _) in classes.items():
            for engine, role in (("E", "ec_producer"), ("PD", "ec_consumer")):
                folder = scratch / name / engine
                folder.mkdir(parents=True)
                config = {
                    "ec_connector": connector,
                    "ec_connector_module_path": "benchmarks.timed_connectors",
                    "ec_role": role,
                    "ec_connector_extra_config": extra,
                }
                specs.append(
                    EngineSpec(f"{name}-{engine}", model, config, args=args, env={FOLDER: str(folder)})
                )
        servers = {
            server.name: server
            for server in stack.enter_context(
                start_all(*specs, log_dir=REPO / ".cache" / "logs" / "bench_epd", timeout=900)
            )
        }
        found = [
            Deployment(name, servers[f"{name}-PD"], servers[f"{name}-E"], scratch / name, place)
            for name, (_, _, place) in classes.items()
        ]
        yield [*found, Deployment("single engine", servers["single"])]

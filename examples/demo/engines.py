"""Starts vLLM engines (and other servers) on free ports and stops all of them again.

    with start_all(
        EngineSpec("E", model, ec_transfer=ec_config("ec_producer", namespace)),
        EngineSpec("PD", model, ec_transfer=ec_config("ec_consumer", namespace)),
    ) as (encoder, decoder):
        ...

Every server runs under ``supervise.py``, so nothing outlives this process, whatever ends it.
"""

from __future__ import annotations

import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .supervise import descendants

REPO = Path(__file__).resolve().parents[2]
SUPERVISOR = Path(__file__).with_name("supervise.py")
LOOPBACK = "127.0.0.1"
MODEL_NAME = "model"  # what requests call the model, whatever its folder
BOOT_TIMEOUT_S = 400.0
STOP_TIMEOUT_S = 30.0  # the supervisor itself kills sooner
PORT_TAKEN = ("Address already in use", "EADDRINUSE", "errno: 98")

CPU_ENV = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
}
QUIET_ENV = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "PYTHONUNBUFFERED": "1"}
CPU_FLAGS = ("--enforce-eager", "--dtype", "float32")


class ServerFailed(RuntimeError):
    """A server ended or did not answer in time. The message has its last lines."""


def on_cpu() -> bool:
    """Whether the vLLM of this environment is the CPU build."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        version("vllm-cpu")
    except PackageNotFoundError:
        return False
    return True


def unique_namespace(prefix: str = "run") -> str:
    return f"{prefix}-{os.getpid()}-{uuid.uuid4().hex[:8]}"


def ec_config(role: str, namespace: str, **extra: Any) -> dict[str, Any]:
    """The ``--ec-transfer-config`` of an engine that uses our connector."""
    return {
        "ec_connector": "ECIPCConnector",
        "ec_role": role,
        "ec_connector_extra_config": {"namespace": namespace, **extra},
    }


class ReservedPort:
    """A port that no other process gets from the kernel while this object is open.

    Two sockets that both allow address reuse may be bound to one port as long as neither
    listens, and vLLM binds like that. So the reservation stays while the server comes up.
    """

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._socket.bind((LOOPBACK, 0))
        self.number: int = self._socket.getsockname()[1]

    def close(self) -> None:
        self._socket.close()


@dataclass(frozen=True)
class EngineSpec:
    """One vLLM OpenAI server. ``ec_transfer`` is its EC configuration, None for a plain engine."""

    name: str
    model: str | Path
    ec_transfer: Mapping[str, Any] | None = None
    max_model_len: int = 1024
    args: Sequence[str] = ()
    env: Mapping[str, str] = field(default_factory=dict)

    def command(self, port: int) -> list[str]:
        command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server"]
        command += ["--host", LOOPBACK, "--port", str(port), "--model", str(self.model)]
        command += ["--served-model-name", MODEL_NAME, "--max-model-len", str(self.max_model_len)]
        command += CPU_FLAGS if on_cpu() else ()
        if self.ec_transfer is not None:
            command += ["--ec-transfer-config", json.dumps(self.ec_transfer)]
        return [*command, *self.args]


@dataclass(frozen=True)
class ServerSpec:
    """Any other server, such as the proxy. ``command`` makes its command line from a port."""

    name: str
    command: Callable[[int], list[str]]
    env: Mapping[str, str] = field(default_factory=dict)


class Server:
    """A running server. Made by ``start_all``; ``stop`` leaves no process of it behind."""

    def __init__(self, spec: EngineSpec | ServerSpec, log_dir: Path, scratch: Path) -> None:
        self.spec = spec
        self.name = spec.name
        self.log = log_dir / f"{spec.name}.log"
        self.scratch = scratch
        self.boot_s = 0.0
        self._port = ReservedPort()
        self.port = self._port.number
        self.url = f"http://{LOOPBACK}:{self.port}"
        self.log.unlink(missing_ok=True)
        try:
            self._launch()
        except BaseException:
            self._port.close()
            raise

    def _environment(self) -> dict[str, str]:
        environment = {**os.environ, **QUIET_ENV, **(CPU_ENV if on_cpu() else {})}
        environment |= {"TMPDIR": str(self.scratch), "VLLM_CACHE_ROOT": str(REPO / ".cache" / "vllm")}
        path = [str(REPO), *filter(None, [environment.get("PYTHONPATH")])]
        return {**environment, "PYTHONPATH": os.pathsep.join(path), **self.spec.env}

    def _launch(self) -> None:
        self.started = time.monotonic()
        reader, self._control = os.pipe()
        try:
            with self.log.open("ab") as log:
                self._process = subprocess.Popen(
                    [sys.executable, "-I", str(SUPERVISOR), str(reader), *self.spec.command(self.port)],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env=self._environment(),
                    pass_fds=[reader],
                    start_new_session=True,
                )
        except BaseException:
            os.close(self._control)
            raise
        finally:
            os.close(reader)

    def pids(self, title: str = "") -> list[int]:
        """The living processes of the server, or those whose command line has ``title`` in it.

        vLLM gives its processes titles such as ``VLLM::EngineCore`` and ``VLLM::Worker``.
        """
        return [pid for pid in descendants(self._process.pid) if title in command_line(pid)]

    def send_signal(self, number: int, title: str = "") -> None:
        for pid in self.pids(title):
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """All processes of the server stand still meanwhile."""
        self.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.send_signal(signal.SIGCONT)

    def alive(self) -> bool:
        return self._process.poll() is None

    def healthy(self) -> bool:
        connection = http.client.HTTPConnection(LOOPBACK, self.port, timeout=2)
        try:
            connection.request("GET", "/health")
            return connection.getresponse().status == 200
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    def log_tail(self, lines: int = 30) -> str:
        try:
            text = self.log.read_text(errors="replace")
        except OSError:
            return "(no log)"
        return "\n".join(text.splitlines()[-lines:])

    def port_was_taken(self) -> bool:
        return any(sign in self.log_tail(200) for sign in PORT_TAKEN)

    def check(self) -> None:
        if not self.alive():
            raise self._failure(f"ended with status {self._process.returncode}")

    def _failure(self, what: str) -> ServerFailed:
        return ServerFailed(f"{self.name} {what}; its log ends with\n{self.log_tail()}")

    def wait_ready(self, timeout: float = BOOT_TIMEOUT_S, tick: Callable[[], None] | None = None) -> None:
        """Until /health answers. ``tick`` is called several times a second meanwhile."""
        end = self.started + timeout
        while not self.healthy():
            self.check()
            if time.monotonic() > end:
                raise self._failure(f"was not up in {timeout:.0f} s")
            if tick is not None:
                tick()
            time.sleep(0.2)
        self.boot_s = self.boot_s or time.monotonic() - self.started

    def wait_gone(self, timeout: float = STOP_TIMEOUT_S) -> None:
        """Until no process of the server is left, for one that ends or was killed."""
        self._process.wait(timeout)

    def begin_stop(self) -> None:
        """Tell it without waiting, so that several servers end side by side."""
        if self._control >= 0:
            os.close(self._control)
            self._control = -1

    def stop(self) -> None:
        """End the server. Returns when no process of it is left; may be called again."""
        self._end()
        self._port.close()

    def restart(self) -> None:
        """End what is left of it and start it again, on the same port. Does not wait."""
        self._end()
        self.boot_s = 0.0
        self._launch()

    def _end(self) -> None:
        self.begin_stop()
        try:
            self.wait_gone()
        except subprocess.TimeoutExpired:
            self.send_signal(signal.SIGKILL)
            self._process.kill()
            self._process.wait()


def command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def make_scratch() -> Path:
    """A folder for temporary files. Those of processes that were killed are removed.

    The name is short because sockets are made in there.
    """
    for old in Path(tempfile.gettempdir()).glob("ec-[0-9]*-*"):
        if not Path("/proc", old.name.split("-")[1]).exists():
            shutil.rmtree(old, ignore_errors=True)
    return Path(tempfile.mkdtemp(prefix=f"ec-{os.getpid()}-"))


@contextmanager
def start_all(
    *specs: EngineSpec | ServerSpec,
    log_dir: Path | None = None,
    timeout: float = BOOT_TIMEOUT_S,
    tick: Callable[[Sequence[Server]], None] | None = None,
    wait: bool = True,
) -> Iterator[list[Server]]:
    """Start the servers side by side, wait until all answer, and stop them at the end.

    Without ``wait`` they are still coming up when the block begins. Temporary files go to a
    folder that is removed at the end, and so do the logs unless ``log_dir`` is given. ``tick``
    is called with the servers while they come up.
    """
    with ExitStack() as stack:
        scratch = make_scratch()
        stack.callback(shutil.rmtree, scratch, ignore_errors=True)
        if log_dir is not None:
            log_dir.mkdir(parents=True, exist_ok=True)
        servers: list[Server] = []

        def stop_all() -> None:
            for server in servers:
                server.begin_stop()
            for server in servers:
                server.stop()

        def report() -> None:
            for server in servers:
                server.check()
            if tick is not None:
                tick(servers)

        stack.callback(stop_all)
        for spec in specs:
            servers.append(Server(spec, log_dir or scratch, scratch))
        for server in servers if wait else ():
            try:
                server.wait_ready(timeout, report)
            except ServerFailed:
                taken = [each for each in servers if not each.alive() and each.port_was_taken()]
                if not taken:
                    raise
                for each in taken:  # vLLM picks ports of its own, and may lose a race for one
                    each.restart()
                for each in servers:
                    each.wait_ready(timeout, report)
        yield servers

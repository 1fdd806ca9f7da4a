"""Servers of examples/demo: nothing outlives whoever started them, whatever ends it."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

REPO = Path(__file__).parents[2]
sys.path.insert(0, str(REPO))

from examples.demo import engines  # noqa: E402
from examples.demo.engines import ReservedPort, Server, ServerFailed, ServerSpec, start_all  # noqa: E402

# A server with a child in a session of its own, which ignores polite signals if told to.
SERVER = """
import http.server, os, signal, subprocess, sys, time
child = "import signal, time; {ignore}; print('child', flush=True); time.sleep(600)"
subprocess.Popen([sys.executable, "-c", child.format(ignore=sys.argv[2])], start_new_session=True)
class Healthy(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers()
    def log_message(self, *_): pass
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Healthy).serve_forever()
"""
STUBBORN = "signal.signal(signal.SIGTERM, signal.SIG_IGN)"


def spec(name: str = "server", child: str = "pass") -> ServerSpec:
    return ServerSpec(name, lambda port: [sys.executable, "-c", SERVER, str(port), child])


def exists(pid: int) -> bool:
    """Whether the process lives; one that only waits to be reaped does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def eventually(condition: Callable[[], bool], seconds: float = 10.0) -> bool:
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


@pytest.fixture
def server() -> Iterator[Server]:
    with start_all(spec()) as (started,):
        assert eventually(lambda: len(started.pids()) == 2)
        yield started


def test_stop_ends_the_server_and_what_it_started(server: Server) -> None:
    pids = server.pids()
    server.stop()
    assert not any(map(exists, pids))
    assert not server.alive()


def test_a_stopped_process_ends_too(server: Server) -> None:
    pids = server.pids()
    with server.paused():
        server.stop()
    assert not any(map(exists, pids))


def test_a_child_that_ignores_sigterm_is_killed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    quick = tmp_path / "supervise.py"
    quick.write_text(engines.SUPERVISOR.read_text().replace("GRACE_S = 15.0", "GRACE_S = 0.3"))
    monkeypatch.setattr(engines, "SUPERVISOR", quick)
    with start_all(spec(child=STUBBORN)) as (server,):
        assert eventually(lambda: "child" in server.log_tail())
        pids = server.pids()
    assert len(pids) == 2 and not any(map(exists, pids))


def test_restart_keeps_the_port(server: Server) -> None:
    before, url = server.pids(), server.url
    server.send_signal(signal.SIGKILL)
    server.wait_gone()
    server.restart()
    server.wait_ready(30)
    assert server.url == url and server.healthy()
    assert not set(before) & set(server.pids())


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_nothing_outlives_the_process_that_started_it(number: int) -> None:
    starter = (
        "import signal, sys, time\n"
        # A shell's background jobs, of which this may be one, ignore it.
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from examples.demo.engines import ServerSpec, start_all\n"
        f"spec = ServerSpec('server', lambda port: [sys.executable, '-c', {SERVER!r}, str(port), 'pass'])\n"
        "with start_all(spec) as (server,):\n"
        "    while len(server.pids()) < 2: time.sleep(0.02)\n"
        "    print(server._process.pid, *server.pids(), server.scratch, flush=True)\n"
        "    time.sleep(600)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", starter], cwd=REPO, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    *pids, scratch = process.stdout.readline().split()
    process.send_signal(number)
    process.communicate(timeout=30)
    assert eventually(lambda: not any(exists(int(pid)) for pid in pids), 20)
    assert number != signal.SIGINT or not Path(scratch).exists()


def test_the_servers_die_with_their_supervisor(server: Server) -> None:
    first, *_ = server.pids()
    server._process.kill()
    assert eventually(lambda: not exists(first))
    for pid in server.pids():
        os.kill(pid, signal.SIGKILL)


def test_a_server_that_ends_says_why() -> None:
    broken = ServerSpec("broken", lambda port: [sys.executable, "-c", "raise SystemExit('no such model')"])
    with pytest.raises(ServerFailed, match="broken ended with status 1; its log ends with\nno such model"):
        start_all(broken).__enter__()


def test_a_server_that_never_answers_is_given_up() -> None:
    silent = ServerSpec("silent", lambda port: [sys.executable, "-c", "import time; time.sleep(600)"])
    with pytest.raises(ServerFailed, match=r"silent was not up in 1 s"), start_all(silent, timeout=1):
        pass


def test_a_lost_race_for_a_port_is_tried_again(tmp_path: Path) -> None:
    flag = tmp_path / "tried"
    code = (
        f"import os, sys\nif not os.path.exists({str(flag)!r}):\n"
        f"    open({str(flag)!r}, 'w').close(); sys.exit('OSError: Address already in use')\n"
    )
    flaky = ServerSpec("flaky", lambda port: [sys.executable, "-c", code + SERVER, str(port), "pass"])
    with start_all(flaky) as (server,):
        assert server.healthy()


def test_reserved_ports_differ_and_can_be_bound() -> None:
    import socket

    ports = [ReservedPort() for _ in range(50)]
    assert len({port.number for port in ports}) == 50
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", ports[0].number))
        listener.listen()
    for port in ports:
        port.close()

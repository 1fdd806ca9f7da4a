"""What people who run it see: metrics, top, doctor and log lines of real engines, against what was sent."""

from __future__ import annotations

import json
import os
import random
import socket
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from harness import Deployment
from prometheus_client.parser import text_string_to_metric_families

from ec_ipc.connector.metrics import COUNTERS, GAUGES, HISTOGRAMS, PREFIX, TALLIES
from examples.demo.chat import picture
from examples.demo.deployment import ec_ipc, segments
from examples.demo.engines import REPO, Server, command_line
from examples.demo.supervise import descendants


def scrape(server: Server) -> Counter[str]:
    """Our samples in an engine's /metrics, without prefix and labels."""
    text = urllib.request.urlopen(f"{server.url}/metrics", timeout=30).read().decode()
    samples: Counter[str] = Counter()
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name.startswith(PREFIX) and not sample.name.endswith(("_bucket", "_created")):
                samples[sample.name.removeprefix(PREFIX)] += sample.value
    return samples


def growth(servers: list[Server], before: list[Counter[str]]) -> list[dict[str, float]]:
    now = [scrape(server) for server in servers]
    return [{k: v - old[k] for k, v in new.items()} for new, old in zip(now, before, strict=True)]


def settle(engines: Deployment) -> None:
    """An engine reports in its steps: one more for PD after everything has been given back."""
    engines.wait_until_idle()
    assert engines.decode([], prompt="and now?", max_tokens=2).ok


def test_metrics_are_those_of_what_was_sent(llava: Deployment) -> None:
    servers = [llava.encoder, llava.decoder]
    assert llava.ask([picture(700)]).ok
    settle(llava)
    before = [scrape(server) for server in servers]
    for samples in before:
        wanted = {f"{name}_total" for name in [*COUNTERS, *TALLIES]} | {
            f"{name}_count" for name in HISTOGRAMS
        }
        assert wanted | set(GAUGES) <= set(samples), "each metric is there"

    with llava.counters_delta() as delta:
        for request in ([picture(701)], [picture(702), picture(703)], [picture(701)], []):
            assert llava.ask(request).ok
        settle(llava)

    def complete() -> bool:
        of_e, of_pd = growth(servers, before)
        return all(of_e[f"{name}_total"] + of_pd[f"{name}_total"] == delta[name] for name in COUNTERS)

    end = time.monotonic() + 20
    while not complete() and time.monotonic() < end:
        time.sleep(0.2)
    of_e, of_pd = growth(servers, before)
    assert complete(), (delta, of_e, of_pd)
    assert of_pd["reads_total"] == of_pd["hits_total"] == of_pd["load_seconds_count"] == 4
    assert of_e["published_total"] == of_e["publish_seconds_count"] == delta["published"] >= 3
    assert of_e["bytes_published_total"] == delta["bytes_published"] > 0
    assert of_pd["misses_total"] == of_pd["no_producer_total"] == 0
    assert of_pd["published_total"] == of_e["reads_total"] == 0, "each engine reports its own"
    assert 0 < of_e["publish_seconds_sum"] < 60 and 0 < of_pd["load_seconds_sum"] < 60
    for server in servers:
        now = scrape(server)
        assert now["arena_bytes"] == 64 << 20 and now["arena_used_bytes"] == 0


def test_the_gauge_of_an_idle_engine_shows_what_is_there_now(llava: Deployment) -> None:
    answer = llava.encode([picture(710)])
    assert answer.ok
    used = llava.status()["arenas"][0]["used_bytes"]
    assert used > 0
    assert [scrape(server)["arena_used_bytes"] for server in (llava.encoder, llava.decoder)] == [used, used]
    assert llava.decode([picture(710)], answer.ec_transfer_params).ok
    llava.wait_until_idle()
    assert [scrape(server)["arena_used_bytes"] for server in (llava.encoder, llava.decoder)] == [0, 0]


def test_vllms_log_line_has_our_numbers(llava: Deployment) -> None:
    end = time.monotonic() + 40
    while "EC Transfer metrics: " not in llava.decoder.log.read_text() and time.monotonic() < end:
        assert llava.ask([picture(720)]).ok
        time.sleep(1)
    (line, *_) = [
        line for line in llava.decoder.log.read_text().splitlines() if "EC Transfer metrics: " in line
    ]
    assert "reads=" in line and "load_mean_ms=" in line and "arena_used_bytes=" in line


def test_top_and_doctor_of_running_engines(llava: Deployment) -> None:
    assert llava.ask([picture(730)]).ok
    llava.wait_until_idle()
    command = [ec_ipc(), "top", "--once", "--namespace", llava.namespace]
    top = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    counters = llava.counters()
    assert f"({counters['reads']} reads, {counters['misses']} misses)" in top
    assert "0 B of 64.0 MiB" in top
    for role in ("e.scheduler", "e.worker", "pd.scheduler", "pd.worker"):
        assert role in top
    command = [ec_ipc(), "doctor", "--json", "--namespace", llava.namespace, "--arena-bytes", str(64 << 20)]
    done = subprocess.run(command, capture_output=True, text=True)
    findings = json.loads(done.stdout)["findings"]
    assert done.returncode == 0, findings
    ours = [f for f in findings if f["namespace"] == llava.namespace]
    assert {f["check"]: f["level"] for f in ours} == {"segments": "ok", "namespaces": "ok"}
    assert ours[0]["text"].endswith("4 living participants")


def test_the_logs_show_why_engines_meet_and_that_the_hand_over_works(llava: Deployment) -> None:
    assert llava.ask([picture(740)]).ok
    for server, roles in ((llava.encoder, ("e.scheduler", "e.worker")), (llava.decoder, ("pd.scheduler",))):
        log = server.log.read_text()
        for role in roles:
            (line,) = [line for line in log.splitlines() if f"ec_ipc: {role} is slot" in line]
            assert llava.namespace in line and "fingerprint" in line and "dtype float32" in line
    (line,) = [line for line in llava.decoder.log.read_text().splitlines() if "the hand-over works" in line]
    assert llava.namespace in line


def free_ports(count: int) -> int:
    """The first of some neighbouring ports that nobody uses now."""
    for first in random.sample(range(20000, 30000, 10), 100):
        with ExitStack() as stack, suppress(OSError):
            for port in range(first, first + count):
                stack.enter_context(socket.socket()).bind(("127.0.0.1", port))
            return first
    raise AssertionError("no free ports")


@pytest.mark.parametrize(
    ("name", "logs"),
    [
        ("1e-1pd.sh", ["E.log", "PD.log", "proxy.log"]),
        pytest.param(
            "e-p-d.sh", ["D.log", "E.log", "P.log", "prefill-decode.log", "proxy.log"], marks=pytest.mark.long
        ),
        pytest.param(
            "2e-2pd.sh", ["E1.log", "E2.log", "PD1.log", "PD2.log", "proxy.log"], marks=pytest.mark.long
        ),
    ],
)
def test_a_script_works_and_leaves_nothing(
    namespace: str, tmp_path: Path, name: str, logs: list[str]
) -> None:
    port = free_ports(6)
    environ = {"DEVICE": "cpu", "PORT": str(port), "NAMESPACE": namespace, "LOGS": str(tmp_path)}
    script = REPO / "examples" / "deploy" / name
    clean = {name: value for name, value in os.environ.items() if name not in ("MODEL", "ARENA", "PYTHON")}
    done = subprocess.run(
        [script, "--check"],
        capture_output=True,
        text=True,
        env={**clean, **environ, "PYTHON": sys.executable},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 embeddings published, 2 read in place, 0 missed" in done.stdout
    assert f"ready: http://127.0.0.1:{port}/v1" in done.stdout
    assert sorted(log.name for log in tmp_path.glob("*.log")) == logs
    left = [
        pid
        for pid in descendants(1)
        if f"--port {port}" in command_line(pid) or namespace in command_line(pid)
    ]
    assert not left
    assert not segments(namespace)

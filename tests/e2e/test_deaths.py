"""Processes of real engines are stopped and killed under traffic; the others go on, and nothing is held."""

from __future__ import annotations

import http.client
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from harness import Deployment, Deployments, Reference

from examples.demo.chat import Answer, picture
from examples.demo.deployment import Topology, is_idle, segments

# What was announced for a request that died with a process is left to its deadline.
READ_TIMEOUT_S = 8.0


@pytest.fixture(scope="module")
def started(deployments: Deployments) -> Iterator[Deployment]:
    """E, PD and proxy of this file alone. LLaVA's requests keep their pixels, so PD can go on without E."""
    with deployments.private("llava", Topology(extra={"read_timeout_s": READ_TIMEOUT_S})) as deployment:
        yield deployment


@pytest.fixture
def engines(started: Deployment) -> Deployment:
    """All of them up, whatever an earlier test has left."""
    dead = [server for server in started.servers.values() if not server.alive()]
    for server in dead:
        server.restart()
    for server in dead:
        server.wait_ready()
    return started


def served(engines: Deployment, reference: Reference, seed: int) -> None:
    """What the dead left is gone; a request is answered with the right tokens, by reading, and leaves
    nothing."""
    request = [picture(seed)]
    expected = reference(engines, request)  # known before any clock runs
    engines.wait_until(is_idle, READ_TIMEOUT_S + 3)
    with engines.counters_delta() as delta:
        answer = engines.ask(request)
        assert answer.ok, answer.body
        engines.wait_until_idle(timeout=3)
    assert answer.tokens == expected
    assert delta["reads"] == 1 and delta["misses"] == 0


def traffic_during(engines: Deployment, first_seed: int, kill: object) -> list[Answer | None]:
    """Eight requests, four at a time, and a death among them. None for one that got no answer at all."""

    def ask(seed: int) -> Answer | None:
        try:
            return engines.ask([picture(seed)], timeout=60)
        except (OSError, http.client.HTTPException, ValueError):  # cut off before, in or after its head
            return None

    with ThreadPoolExecutor(4) as pool:
        asked = [pool.submit(ask, first_seed + i) for i in range(8)]
        time.sleep(0.3)
        assert callable(kill)
        kill()
        return [each.result() for each in asked]


def right(engines: Deployment, reference: Reference, answers: list[Answer | None], first_seed: int) -> None:
    """Whatever was answered was answered rightly."""
    for seed, answer in enumerate(answers, first_seed):
        if answer is not None and answer.ok:
            assert answer.tokens == reference(engines, [picture(seed)])


def test_pd_reads_while_e_is_stopped(engines: Deployment, reference: Reference) -> None:
    request = [picture(300)]
    expected = reference(engines, request)
    encoded = engines.encode(request)
    with engines.encoder.paused(), engines.counters_delta() as delta:
        answer = engines.decode(request, encoded.ec_transfer_params)
        assert answer.tokens == expected
        engines.wait_until_idle(timeout=3)
    assert delta["reads"] == 1 and delta["misses"] == 0
    served(engines, reference, 301)


def test_the_proxy_is_killed_under_traffic(engines: Deployment, reference: Reference) -> None:
    traffic_during(engines, 310, lambda: engines.proxy.send_signal(signal.SIGKILL))
    engines.proxy.restart()
    engines.proxy.wait_ready()
    engines.wait_until(lambda status: status["holds"] == 0)
    served(engines, reference, 330)


def test_e_is_killed_under_traffic(engines: Deployment, reference: Reference) -> None:
    answers = traffic_during(engines, 340, lambda: engines.encoder.send_signal(signal.SIGKILL))
    assert all(answer is not None and answer.ok for answer in answers), answers
    right(engines, reference, answers, 340)
    assert engines.decoder.healthy()
    request = [picture(350)]
    assert engines.ask(request).tokens == reference(engines, request), "PD encodes itself meanwhile"
    engines.wait_until(lambda status: not status["arenas"] and status["holds"] == status["announced"] == 0)
    engines.encoder.restart()
    engines.encoder.wait_ready()
    served(engines, reference, 351)


@pytest.mark.parametrize("victim", ["Worker", "EngineCore"])
def test_a_process_of_pd_is_killed_under_traffic(
    engines: Deployment, reference: Reference, victim: str
) -> None:
    first = 360 if victim == "Worker" else 370
    assert engines.decoder.pids(victim), "vLLM's processes have other titles now"
    kill = lambda: engines.decoder.send_signal(signal.SIGKILL, victim)  # noqa: E731
    right(engines, reference, traffic_during(engines, first, kill), first)
    engines.wait_until(lambda status: status["holds"] == 0)
    engines.decoder.restart()
    engines.decoder.wait_ready()
    served(engines, reference, first + 9)


def test_the_segment_is_removed_under_running_engines(engines: Deployment, reference: Reference) -> None:
    """As by somebody who tidies up /dev/shm: they meet in its successor, and their metrics go on."""
    served(engines, reference, 390)
    participants = len(engines.quick_status()["participants"])
    for path in segments(engines.namespace):
        path.unlink()
    # An arena is there a little after its owner: until then E publishes into what was removed.
    engines.wait_until(
        lambda status: len(status.get("participants", ())) == participants and bool(status["arenas"])
    )
    for seed in range(391, 395):
        served(engines, reference, seed)
    assert engines.encoder.healthy() and engines.decoder.healthy()

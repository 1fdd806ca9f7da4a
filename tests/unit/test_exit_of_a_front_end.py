"""What the plugin does when a vLLM process ends: namespaces of the dead go, nobody waits for strangers."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ec_ipc import _core, names, segment, shared_memory
from ec_ipc.connector import plugin

PARTICIPANT = """
import sys
from ec_ipc import segment
joined = segment.join(sys.argv[1], fingerprint={}, max_items=16, role="e.worker")
print("joined", flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def participant(
    namespace: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[bool], subprocess.Popen[str]]]:
    """``participant(own_group)`` starts one that is killed like an engine, not let go."""
    monkeypatch.setattr(names, "namespaces", lambda: [namespace])  # and nobody else's
    started = []

    def start(own_group: bool) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", PARTICIPANT, namespace],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            process_group=0 if own_group else None,
        )
        started.append(process)
        assert process.stdout is not None and process.stdout.readline() == "joined\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()
    segment.reap(namespace)


def seconds_at_exit() -> float:
    begin = time.monotonic()
    plugin._remove_abandoned()
    return time.monotonic() - begin


def file_of(namespace: str) -> Path:
    return names.SHARED_MEMORY_DIRECTORY / names.segment_name(namespace).removeprefix("/")


def test_what_a_killed_engine_leaves_is_removed(namespace, participant) -> None:
    participant(False).kill()
    assert seconds_at_exit() < plugin.EXIT_WAIT_S
    assert not file_of(namespace).exists()


def test_engines_of_others_are_not_waited_for(namespace, participant) -> None:
    participant(True)
    assert seconds_at_exit() < plugin.EXIT_WAIT_S / 2
    assert file_of(namespace).exists()


def test_an_engine_of_the_same_group_is_waited_for_but_not_for_long(namespace, participant) -> None:
    participant(False)
    assert plugin.EXIT_WAIT_S <= seconds_at_exit() < 4 * plugin.EXIT_WAIT_S
    assert file_of(namespace).exists()


def test_a_lock_that_is_held_does_not_hold_up_the_end(namespace, participant) -> None:
    process = participant(True)
    fd = shared_memory.open_existing(names.segment_name(namespace))
    assert fd is not None
    _core.lock_creator(fd, 1.0)
    try:
        assert seconds_at_exit() < plugin.EXIT_WAIT_S / 2
        process.kill()
        process.wait()
        assert seconds_at_exit() < plugin.EXIT_WAIT_S / 2
        assert file_of(namespace).exists()
    finally:
        _core.unlock_creator(fd)
        os.close(fd)
    assert seconds_at_exit() < plugin.EXIT_WAIT_S
    assert not file_of(namespace).exists()

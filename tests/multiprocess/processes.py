"""Other processes for tests: a Python program that says what it has done, and does more when told."""

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType

PROLOGUE = """
import os, sys, torch
from ec_ipc import Store
def say(*words): print(*words, flush=True)
def wait(): return sys.stdin.readline()
"""


class Peer:
    """A child process running ``PROLOGUE`` and a program. Killed at the end, whatever happens."""

    def __init__(self, program: str, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROLOGUE + program, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    @property
    def pid(self) -> int:
        return self.process.pid

    def hear(self) -> str:
        """The next line the peer says. Fails when it has ended instead."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"the peer ended with {self.process.wait()} and said nothing"
        return line.strip()

    def tell(self) -> None:
        """Let the peer go on from its ``wait()``."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def kill(self) -> None:
        """SIGKILL, and wait until the kernel is done with it."""
        self.process.kill()
        self.process.wait()

    def join(self) -> None:
        """Wait for its end, which must be an orderly one."""
        assert self.process.wait() == 0

    def __enter__(self) -> "Peer":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                stream.close()


@contextmanager
def peers(*programs: tuple[str, ...]) -> Iterator[list[Peer]]:
    """Several peers at once."""
    started = [Peer(*program) for program in programs]
    try:
        yield started
    finally:
        for peer in started:
            peer.__exit__(None, None, None)


def eventually(condition: Callable[[], bool]) -> None:
    """Wait for what a timer does. Bounded only against a test that would never end."""
    for _ in range(600):
        if condition():
            return
        time.sleep(0.05)
    raise AssertionError("it never happened")

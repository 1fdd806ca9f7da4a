"""A nameless segment, handles on it, and other processes that are participants in it."""

import os
import signal
import subprocess
import sys
from types import TracebackType

from ec_ipc import _core

PATIENCE = 20.0
TTL = 300.0
KILOBYTE = 1 << 10
MEGABYTE = 1 << 20


def key(number: int) -> bytes:
    return number.to_bytes(_core.DIGEST_BYTES, "little")


class SegmentFile:
    """Segment memory without a name: nothing stays behind, whatever happens to the test."""

    def __init__(self, max_items: int = 64) -> None:
        self.fd = os.memfd_create("ec_ipc_test")
        os.ftruncate(self.fd, _core.segment_bytes(max_items))
        _core.initialise_segment(self.fd, max_items, b"f" * _core.FINGERPRINT_BYTES, "a test")

    @property
    def path(self) -> str:
        return f"/proc/{os.getpid()}/fd/{self.fd}"

    def open(self) -> int:
        """Another open file: its lock bytes exclude those of every other one."""
        return os.open(self.path, os.O_RDWR)

    def handle(self) -> _core.Segment:
        return _core.Segment(self.open())

    def reader(self, role: str = "reader", engine: int = 1) -> _core.Segment:
        segment = self.handle()
        segment.join(role, engine, PATIENCE)
        return segment

    def producer(self, arena_bytes: int = MEGABYTE) -> _core.Segment:
        segment = self.reader("producer", 2)
        segment.set_arena(0, arena_bytes, b"", b"", 0, PATIENCE)
        return segment

    def close(self) -> None:
        os.close(self.fd)


def reserve(
    segment: _core.Segment,
    number: int,
    nbytes: int = 1000,
    announce: int = 1,
    ttl: float = TTL,
    deallocate: bool = True,
) -> _core.Placement:
    return segment.reserve(key(number), nbytes, 0, (nbytes,), announce, ttl, deallocate, PATIENCE)


def put(
    segment: _core.Segment,
    number: int,
    nbytes: int = 1000,
    announce: int = 1,
    ttl: float = TTL,
    deallocate: bool = True,
) -> _core.Placement:
    placement = reserve(segment, number, nbytes, announce, ttl, deallocate)
    assert placement.outcome == _core.Outcome.RESERVED, placement.outcome
    assert segment.publish(placement.entry, placement.generation)
    return placement


PRELUDE = """
import os, sys
sys.path.insert(0, {here!r})
from ec_ipc import _core
from core_support import *
segment = _core.Segment(os.open({path!r}, os.O_RDWR))
def here_and_wait(*words):
    print(*words, flush=True)
    sys.stdin.readline()
"""


class OtherProcess:
    """Runs code with `segment`, which says `here_and_wait(...)` when it has come that far."""

    def __init__(self, file: SegmentFile, code: str) -> None:
        program = PRELUDE.format(here=os.path.dirname(__file__), path=file.path) + code
        self.process = subprocess.Popen(
            [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        self.words = self.process.stdout.readline().split()
        if not self.words:
            raise AssertionError(f"the other process ended with {self.process.wait()}")

    def go_on(self) -> int:
        self.process.communicate("\n")
        return self.process.wait()

    def kill(self) -> None:
        """As the kernel's OOM killer does; returns when its locks are released."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def stop(self) -> None:
        self.process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.process.pid, os.WSTOPPED | os.WNOWAIT)

    def __enter__(self) -> "OtherProcess":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.kill()
        for stream in (self.process.stdin, self.process.stdout):
            assert stream is not None
            stream.close()

"""What a producer's workers tell their scheduler: how long publishing took, and what became of each item
that was to be published.

vLLM gives a worker of its V1 runner no way to report on a producer, so this goes by datagrams at the end of
a step, before the worker's answer. The socket is in the abstract namespace: no file, gone with the
process. What cannot be sent is dropped: the scheduler can do without.
"""

import array
import json
import logging
import math
import os
import socket
import struct
from collections import deque
from typing import NamedTuple

from ec_ipc.attachment import Token

logger = logging.getLogger(__name__)

PUBLISH, SAVED = b"P", b"S"
MAX_TIMES = 4096  # of one datagram, and kept until they are asked for
MAX_SAVED = 256
MAX_BYTES = 1 << 17

_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid


class Saved(NamedTuple):
    """What became of an item that step ``step`` was to publish: the token of the entry that has its
    announcements, or None when it was skipped."""

    step: int
    identifier: str
    token: Token | None


def _address(engine: int) -> bytes:
    return b"\0ec_ipc.worker.%016x" % engine


class SideChannelSender:
    """A worker's side: append to ``publish`` (seconds) or ``saved``, and flush at the end of a step."""

    def __init__(self, engine: int) -> None:
        self.publish: list[float] = []
        self.saved: list[Saved] = []
        self._address = _address(engine)
        self._socket: socket.socket | None = None

    def flush(self) -> None:
        """Send what was appended since. Never raises, never waits."""
        if not (self.publish or self.saved):
            return
        try:
            if self._socket is None:
                self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
            for start in range(0, len(self.saved), MAX_SAVED):
                text = json.dumps(self.saved[start : start + MAX_SAVED])
                self._socket.sendto(SAVED + text.encode(), self._address)
            if self.publish:
                times = array.array("d", self.publish[:MAX_TIMES])
                self._socket.sendto(PUBLISH + times.tobytes(), self._address)
        except OSError as error:
            logger.debug("this step is not reported to the scheduler: %s", error)
        self.publish.clear()
        self.saved.clear()


class SideChannelReceiver:
    """The scheduler's side. Takes only what processes of this user send."""

    def __init__(self, engine: int) -> None:
        self._times: deque[float] = deque(maxlen=MAX_TIMES)  # vLLM before 0.32 never asks
        self._saved: list[Saved] = []
        self._buffer = bytearray(MAX_BYTES)
        self._socket: socket.socket | None = None
        receiver = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        try:
            receiver.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
            receiver.bind(_address(engine))
        except OSError as error:
            receiver.close()
            logger.warning("times of publishing are not in the metrics: %s", error)
        else:
            self._socket = receiver

    def take_times(self) -> list[float]:
        """The times of publishing that have come in since, in seconds."""
        self._receive()
        taken = list(self._times)
        self._times.clear()
        return taken

    def take_saved(self) -> list[Saved]:
        """What has become of items since."""
        self._receive()
        taken, self._saved = self._saved, []
        return taken

    def _receive(self) -> None:
        while self._socket is not None:
            try:
                size, ancillary, flags, _ = self._socket.recvmsg_into(
                    [self._buffer], socket.CMSG_SPACE(_CREDENTIALS.size)
                )
            except OSError:  # nothing more, usually
                break
            if flags & socket.MSG_TRUNC or not _is_of_this_user(ancillary):
                continue
            kind, content = bytes(self._buffer[:1]), bytes(self._buffer[1:size])
            if kind == SAVED:
                self._saved += _decode_saved(content)
            elif kind == PUBLISH and len(content) % 8 == 0:
                self._times += [s for s in array.array("d", content) if math.isfinite(s) and s >= 0]

    def close(self) -> None:
        """Take no more."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def _is_of_this_user(ancillary: list[tuple[int, int, bytes]]) -> bool:
    senders = [_CREDENTIALS.unpack(data)[1] for _, kind, data in ancillary if kind == socket.SCM_CREDENTIALS]
    return senders == [os.geteuid()]


def _decode_saved(content: bytes) -> list[Saved]:
    try:
        return [
            Saved(int(step), str(identifier), None if token is None else Token(*map(int, token)))
            for step, identifier, token in json.loads(content)
        ]
    except (ValueError, TypeError):
        return []

"""How long publishing and loading took, from an engine's workers to its scheduler.

vLLM gives a worker of its V1 runner no way to report on a producer, so the times go by a datagram at the
end of a step, before the worker's answer. The socket is in the abstract namespace: no file, gone with
the process. What cannot be sent is dropped: these are statistics.
"""

import array
import logging
import math
import os
import socket
import struct

logger = logging.getLogger(__name__)

PUBLISH, LOAD = b"P", b"L"
MAX_TIMES = 4096  # of one datagram

_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid


def _address(engine: int) -> bytes:
    return b"\0ec_ipc.times.%016x" % engine


class TimesSender:
    """A worker's side: append seconds to ``publish`` or ``load``, and flush at the end of a step."""

    def __init__(self, engine: int) -> None:
        self.publish: list[float] = []
        self.load: list[float] = []
        self._address = _address(engine)
        self._socket: socket.socket | None = None

    def flush(self) -> None:
        """Send what was appended since. Never raises, never waits."""
        if not (self.publish or self.load):
            return
        try:
            if self._socket is None:
                self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
            for kind, times in ((PUBLISH, self.publish), (LOAD, self.load)):
                if times:
                    self._socket.sendto(kind + array.array("d", times[:MAX_TIMES]).tobytes(), self._address)
        except OSError as error:
            logger.debug("times of this step are not reported: %s", error)
        self.publish.clear()
        self.load.clear()


class TimesReceiver:
    """The scheduler's side. Takes only what processes of this user send."""

    def __init__(self, engine: int) -> None:
        self._socket: socket.socket | None = None
        receiver = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        try:
            receiver.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
            receiver.bind(_address(engine))
        except OSError as error:
            receiver.close()
            logger.warning("times of publishing and loading are not in the metrics: %s", error)
        else:
            self._socket = receiver

    def take(self) -> dict[bytes, list[float]]:
        """The times that have come in since, by PUBLISH and LOAD."""
        taken: dict[bytes, list[float]] = {}
        while self._socket is not None:
            try:
                message, ancillary, flags, _ = self._socket.recvmsg(
                    1 + 8 * MAX_TIMES, socket.CMSG_SPACE(_CREDENTIALS.size)
                )
            except OSError:  # nothing more, usually
                break
            times = _decode(message, ancillary)
            if times and not flags & socket.MSG_TRUNC:
                taken.setdefault(message[:1], []).extend(times)
        return taken

    def close(self) -> None:
        """Take no more."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def _decode(message: bytes, ancillary: list[tuple[int, int, bytes]]) -> list[float]:
    senders = [_CREDENTIALS.unpack(data)[1] for _, kind, data in ancillary if kind == socket.SCM_CREDENTIALS]
    if senders != [os.geteuid()] or message[:1] not in (PUBLISH, LOAD) or len(message) % 8 != 1:
        return []
    times = array.array("d", message[1:])
    return [seconds for seconds in times if math.isfinite(seconds) and seconds >= 0]

"""Runs one command and sees to it that nothing of it outlives whoever asked for it.

    python -I supervise.py CONTROL_FD COMMAND ...

CONTROL_FD is the reading end of a pipe that the asker holds open. When the asker closes
it or dies, however it dies, the command is stopped: SIGTERM to its first process, some
seconds to leave by itself, then SIGKILL to everything that is left. This process is a
"child subreaper", so grandchildren whose parent died, and those that made a session of
their own, still count as its own. Exits with the command's status.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import sys
import time
from collections.abc import Callable

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
GRACE_S = 15.0  # for the first process, from SIGTERM to SIGKILL
CHILD_GRACE_S = 1.0  # for its children, once it has ended
QUIET = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # here only the pipe counts
TRACKER_GRACE_S = 3.0  # for Python's resource trackers, which unlink shared memory


def _prctl(option: int, value: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")


def _parent_of(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:
            return int(stat.read().rpartition(b")")[2].split()[1])
    except (OSError, IndexError, ValueError):
        return 0


def descendants(root: int) -> list[int]:
    """All living processes below ``root``, also those in other sessions."""
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            children.setdefault(_parent_of(int(entry)), []).append(int(entry))
    found: list[int] = []
    queue = [root]
    while queue:
        below = children.get(queue.pop(), [])
        found += below
        queue += below
    return found


def _is_resource_tracker(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as cmdline:
            return b"resource_tracker" in cmdline.read()
    except OSError:
        return False


def _send(pids: list[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


class Supervisor:
    def __init__(self, control: int, command: list[str]) -> None:
        self.control = control
        self.status: int | None = None  # of the command's first process
        self.first = self._spawn(command)

    def _spawn(self, command: list[str]) -> int:
        parent = os.getpid()
        pid = os.fork()
        if pid:
            return pid
        try:
            _prctl(PR_SET_PDEATHSIG, signal.SIGTERM)  # for the case that the supervisor is killed
            if os.getppid() == parent:
                os.setsid()
                for number in QUIET:
                    signal.signal(number, signal.SIG_DFL)
                signal.pthread_sigmask(signal.SIG_SETMASK, [])
                os.close(self.control)
                os.execvp(command[0], command)
        except OSError as error:
            print(f"cannot start {command[0]}: {error}", file=sys.stderr, flush=True)
        os._exit(127)

    def reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self.first:
                self.status = os.waitstatus_to_exitcode(status)

    def within(self, seconds: float, condition: Callable[[], bool]) -> bool:
        end = time.monotonic() + seconds
        while True:
            self.reap()
            if condition():
                return True
            if time.monotonic() > end:
                return False
            time.sleep(0.02)

    def watch(self) -> None:
        """Until the command ended or was told to."""
        poller = select.poll()
        poller.register(self.control, select.POLLIN | select.POLLHUP)
        while self.status is None:
            self.reap()
            if poller.poll(100):
                return

    def end(self) -> None:
        def victims() -> list[int]:
            return [pid for pid in descendants(os.getpid()) if not _is_resource_tracker(pid)]

        if self.status is None:
            _send([self.first], signal.SIGTERM)
            _send(descendants(os.getpid()), signal.SIGCONT)  # one that stands still would not notice
            self.within(GRACE_S, lambda: self.status is not None)
        self.within(CHILD_GRACE_S, lambda: not victims())
        while not self.within(0.2, lambda: not victims()):
            _send(victims(), signal.SIGKILL)
        if not self.within(TRACKER_GRACE_S, lambda: not descendants(os.getpid())):
            _send(descendants(os.getpid()), signal.SIGKILL)
            self.within(1.0, lambda: not descendants(os.getpid()))


def main() -> int:
    for number in QUIET:
        signal.signal(number, signal.SIG_IGN)
    _prctl(PR_SET_CHILD_SUBREAPER, 1)
    supervisor = Supervisor(int(sys.argv[1]), sys.argv[2:])
    supervisor.watch()
    supervisor.end()
    status = supervisor.status
    return 1 if status is None else status if status >= 0 else 128 - status


if __name__ == "__main__":
    sys.exit(main())

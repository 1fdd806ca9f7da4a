"""What is to happen when the GPU has got so far: publish a copy, drop a hold.

A fixed pool of events for the life of the process, and one thread that waits on them in order,
without the GIL. Whoever queues work never waits and makes no event.
"""

import atexit
import ctypes
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from ec_ipc import cuda_runtime
from ec_ipc.errors import ECIPCError

logger = logging.getLogger(__name__)

EVENTS = 256
END_TIMEOUT_S = 2.0  # how long the end of the process waits for what the GPU does just then
# An event that cannot be recorded proves nothing: kernels may still read what an action would give
# back. So the action stays until an event can be, or until the process ends. One that was recorded and
# cannot be waited for is tried WAITS times; an error that stays is the context's, which is lost.
RETRY_S = 0.05
MAX_RETRY_S = 5.0
WAITS = 5

Action = Callable[[ECIPCError | None], None]


def keep_for_ever(*owners: object) -> None:
    """Let nothing be given back of what the GPU may still use: it ends with this process, and a hold
    with its lock byte."""
    for owner in owners:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(owner))


@dataclass
class _Unrecorded:
    """What waits for an event on one stream, and when to try again after that failed."""

    actions: list[Action] = field(default_factory=list)
    due: float = 0.0
    pause_s: float = RETRY_S


@dataclass
class _Recorded:
    """An event on its way, and what to do when it has completed."""

    event: int
    actions: list[Action]


class CompletionQueue:
    """Calls actions once what was queued on a stream before them has completed.

    An action gets None, or the error that kept its event from completing. When the interpreter ends,
    actions that still wait are never called: CUDA must not be, and what they would give back is
    given back by the kernel, with the participant's lock byte.
    """

    def __init__(self, device: int, events: int = EVENTS) -> None:
        self._device = device
        self._free: list[int] = []
        with cuda_runtime.on_device(device):
            try:
                while len(self._free) < events:
                    self._free.append(cuda_runtime.create_event())
            except ECIPCError:  # whoever asked may try again
                for event in self._free:
                    cuda_runtime.destroy_event(event)
                raise
        self._recorded: deque[_Recorded] = deque()
        self._unrecorded: dict[int, _Unrecorded] = {}  # by stream
        self._said: set[str] = set()
        self._unfinished = 0
        # Views die in any thread, also inside a garbage collection that runs while this is held.
        self._changed = threading.Condition(threading.RLock())
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="ec_ipc-completions", daemon=True)
        self._thread.start()
        atexit.register(self._end)

    def after_now(self, stream: int, action: Action) -> None:
        """Call the action after everything queued on the stream so far. The event is recorded here and
        now, so that later work does not delay the action."""
        with self._changed:
            if self._stopped or not self._free:
                self.after(stream, action)
                return
            event = self._free.pop()
            try:
                with cuda_runtime.on_device(self._device):  # stream 0 is the current device's
                    cuda_runtime.record_event(event, stream)
            except ECIPCError as error:
                self._free.append(event)
                self._say(error)
                self.after(stream, action)
                return
            self._recorded.append(_Recorded(event, [action]))
            self._unfinished += 1
            self._changed.notify_all()

    def after(self, stream: int, action: Action) -> bool:
        """The same from any thread, without a call to CUDA: this queue's thread records the event, one
        for all that wait. False when the queue has stopped, and the action will not be called."""
        with self._changed:
            if self._stopped or cuda_runtime.shutting_down():
                return False
            self._unrecorded.setdefault(stream, _Unrecorded()).actions.append(action)
            self._unfinished += 1
            self._changed.notify_all()
            return True

    def drain(self, timeout_s: float) -> bool:
        """Wait until every action so far has been called. False when the time was not enough."""
        end = time.monotonic() + timeout_s
        with self._changed:
            while self._unfinished and not self._stopped:
                left = end - time.monotonic()
                if left <= 0:
                    return False
                self._changed.wait(left)
        return True

    def stop(self) -> None:
        """Call no action any more."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def _end(self) -> None:
        """When the interpreter ends, no thread of ours may be in the middle of an action."""
        self.stop()
        self._thread.join(END_TIMEOUT_S)

    def _run(self) -> None:
        while not self._keep_on_device():
            time.sleep(MAX_RETRY_S)
        while True:
            with self._changed:
                while not self._recorded and not self._stopped:
                    pause_s = self._pause()
                    if pause_s == 0:
                        break
                    self._changed.wait(pause_s)
                if self._stopped:
                    return
                self._record_all()
                due = self._recorded.popleft() if self._recorded else None
            if due is not None:
                self._finish(due)
                del due  # an action owns what it releases: it must not live on while we wait

    def _keep_on_device(self) -> bool:
        try:
            cuda_runtime.keep_on_device(self._device)
        except ECIPCError as error:
            self._say(error)
        else:
            return True
        return self._stopped

    def _pause(self) -> float | None:
        """How long until there is an event to record; None: until somebody says so."""
        due = min((waiting.due for waiting in self._unrecorded.values()), default=None)
        return None if due is None else max(0.0, due - time.monotonic())

    def _record_all(self) -> None:
        """One event for each stream that has work without one, as far as the pool goes."""
        now = time.monotonic()
        for stream in [stream for stream, waiting in self._unrecorded.items() if waiting.due <= now]:
            if not self._free:
                return
            event = self._free.pop()
            # Taken out first: a view that dies in a garbage collection during the call is not covered.
            waiting = self._unrecorded.pop(stream)
            try:
                cuda_runtime.record_event(event, stream)
            except ECIPCError as error:
                self._free.append(event)
                self._say(error)
                if stream in self._unrecorded:
                    waiting.actions += self._unrecorded.pop(stream).actions
                waiting.due = time.monotonic() + waiting.pause_s
                waiting.pause_s = min(2 * waiting.pause_s, MAX_RETRY_S)
                self._unrecorded[stream] = waiting
            else:
                self._recorded.append(_Recorded(event, waiting.actions))

    def _say(self, error: ECIPCError) -> None:
        """Once for each reason."""
        if str(error) not in self._said:
            self._said.add(str(error))
            logger.warning(
                "what the GPU may still use is kept until it is known to be done, at the latest until this "
                "process ends: %s",
                error,
            )

    def _finish(self, due: _Recorded) -> None:
        self._call(due.actions, self._wait(due.event))
        with self._changed:
            self._free.append(due.event)

    def _wait(self, event: int) -> ECIPCError | None:
        """Until an event has completed; else the error that stayed."""
        failure: ECIPCError | None = None
        for turn in range(WAITS):
            if failure is not None:
                time.sleep(RETRY_S * turn)
            try:
                cuda_runtime.wait_for_event(event)
            except ECIPCError as error:
                failure = error
                self._say(error)
            else:
                return None
        return failure

    def _call(self, actions: list[Action], failure: ECIPCError | None) -> None:
        while actions:
            action = actions.pop(0)
            try:
                action(failure)
            except ECIPCError as error:
                logger.warning("after an event: %s", error)
            finally:
                del action
                with self._changed:
                    self._unfinished -= 1
                    self._changed.notify_all()

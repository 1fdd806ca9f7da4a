"""What is to happen when the GPU has got so far: publish a copy, drop a hold.

A fixed pool of events for the life of the process, and one thread that waits on them in order,
without the GIL. Whoever queues work never waits and makes no event.
"""

import atexit
import logging
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass

from ec_ipc import cuda_runtime
from ec_ipc.errors import ECIPCError

logger = logging.getLogger(__name__)

EVENTS = 256
END_TIMEOUT_S = 2.0  # how long the end of the process waits for what the GPU does just then

Action = Callable[[ECIPCError | None], None]


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
        with cuda_runtime.on_device(device):
            self._free = [cuda_runtime.create_event() for _ in range(events)]
        self._recorded: deque[_Recorded] = deque()
        self._unrecorded: list[tuple[int, Action]] = []
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
            except ECIPCError:
                self._free.append(event)
                raise
            self._recorded.append(_Recorded(event, [action]))
            self._unfinished += 1
            self._changed.notify_all()

    def after(self, stream: int, action: Action) -> bool:
        """The same from any thread, without a call to CUDA: this queue's thread records the event, one
        for all that wait. False when the queue has stopped, and the action will not be called."""
        with self._changed:
            if self._stopped or cuda_runtime.shutting_down():
                return False
            self._unrecorded.append((stream, action))
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
        cuda_runtime.use_device(self._device)
        while True:
            with self._changed:
                while not (self._recorded or self._unrecorded or self._stopped):
                    self._changed.wait()
                if self._stopped:
                    return
                self._record_all()
                due = self._recorded.popleft() if self._recorded else None
            if due is not None:
                self._finish(due)
                del due  # an action owns what it releases: it must not live on while we wait

    def _record_all(self) -> None:
        """One event for each stream that has work without one, as far as the pool goes."""
        waiting, self._unrecorded = self._unrecorded, []
        by_stream: defaultdict[int, list[Action]] = defaultdict(list)
        for stream, action in waiting:
            by_stream[stream].append(action)
        for stream, actions in by_stream.items():
            if not self._free:
                self._unrecorded += [(stream, action) for action in actions]
                continue
            event = self._free.pop()
            try:
                cuda_runtime.record_event(event, stream)
            except ECIPCError as error:
                self._free.append(event)
                self._call(actions, error)
            else:
                self._recorded.append(_Recorded(event, actions))

    def _finish(self, due: _Recorded) -> None:
        failure: ECIPCError | None = None
        try:
            cuda_runtime.wait_for_event(due.event)
        except ECIPCError as error:
            failure = error
        self._call(due.actions, failure)
        with self._changed:
            self._free.append(due.event)

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

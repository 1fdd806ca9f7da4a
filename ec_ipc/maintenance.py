"""The timer of a participant: an idle process frees what the dead held and what nobody read.

The thread holds its store by a weak reference, so a store that is forgotten can be collected.
"""

import atexit
import logging
import os
import threading
import weakref
from typing import TYPE_CHECKING

from ec_ipc import _core, segment
from ec_ipc.errors import ECIPCError, ForkedHandle, LockTimeout

if TYPE_CHECKING:
    from ec_ipc.store import Store

logger = logging.getLogger(__name__)

PERIOD_S = 0.5

_open_stores: "weakref.WeakSet[Store]" = weakref.WeakSet()
_leaving: "weakref.WeakSet[threading.Thread]" = weakref.WeakSet()
_ending = threading.Event()  # set when the interpreter ends


class Maintenance:
    """Calls ``store.maintain()`` every PERIOD_S seconds until stopped."""

    def __init__(self, store: "Store") -> None:
        self._store = weakref.ref(store)
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        store = self._store()
        if store is None:
            return
        _open_stores.add(store)
        weakref.finalize(store, self._stop.set)
        self._thread = threading.Thread(
            target=_run, args=(self._store, self._stop), name="ec_ipc-maintenance", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        thread, self._thread = self._thread, None
        if thread is not None and thread is not threading.current_thread():
            thread.join()


def _run(reference: "weakref.ref[Store]", stop: threading.Event) -> None:
    said: set[str] = set()
    while not stop.wait(PERIOD_S):
        store = reference()
        if store is None:
            return
        try:
            store.maintain()
        except ForkedHandle:
            return
        except LockTimeout as error:
            logger.debug("maintenance of namespace %s: %s", store.namespace, error)
        except Exception as error:  # torch's too: without this thread nothing of the dead is taken back
            if str(error) not in said:
                said.add(str(error))
                logger.warning("maintenance of namespace %s: %s", store.namespace, error)
        del store


def leave_later(directory: _core.Segment, namespace: str) -> None:
    """For a participant that was closed while views of it live, or while another one held a lock byte:
    whoever leaves last unlinks, and that may be this one."""

    def wait() -> None:
        try:
            while not _ending.is_set() and not _leave(directory, namespace):
                _ending.wait(PERIOD_S)
        except ForkedHandle:
            pass
        except ECIPCError as error:
            logger.warning("leaving namespace %s: %s", namespace, error)

    if not _ending.is_set():  # else the kernel takes the lock byte back in a moment
        thread = threading.Thread(target=wait, name="ec_ipc-leaving", daemon=True)
        thread.start()
        _leaving.add(thread)


def _leave(directory: _core.Segment, namespace: str) -> bool:
    try:
        return segment.leave(directory, namespace)
    except LockTimeout:
        return False


@atexit.register
def _end_all_threads() -> None:
    """No thread of ours may be inside the core when the interpreter ends: it would be unwound by force
    through frames of C++ that cannot be, which aborts the process."""
    _ending.set()
    for store in list(_open_stores):
        store.close()
    for thread in list(_leaving):
        thread.join()


def _forget_open_stores() -> None:
    """A forked child has neither the timers nor whoever holds a mutex: it must not close what is its
    parent's."""
    for store in list(_open_stores):
        store.forget()


os.register_at_fork(after_in_child=_forget_open_stores)

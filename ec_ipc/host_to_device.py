"""From a host arena to a GPU: one asynchronous copy out of page-locked memory.

Without CuPy, or where the block cannot be page-locked, the copy is synchronous.
"""

import logging
import weakref

import torch

from ec_ipc import _core, cuda_runtime
from ec_ipc.cuda_events import keep_for_ever
from ec_ipc.errors import ArenaUnavailable, ECIPCError

logger = logging.getLogger(__name__)

_page_locked: "weakref.WeakKeyDictionary[_core.Mapping, bool]" = weakref.WeakKeyDictionary()


def copy(view: torch.Tensor, device: torch.device, mapping: _core.Mapping) -> torch.Tensor:
    """A copy on the device, queued on the current stream. The view, and so its hold, is kept until the
    copy has completed."""
    ordinal = cuda_runtime.current_device() if device.index is None else device.index
    if not _lock_pages(mapping, ordinal):
        return view.to(device)
    from ec_ipc.cuda_arena import completions

    result = _queue_copy(view, device)
    completions(ordinal).after_now(cuda_runtime.current_stream(ordinal), lambda failure: _done(view, failure))
    return result


def _queue_copy(view: torch.Tensor, device: torch.device) -> torch.Tensor:
    return view.to(device, non_blocking=True)


def _done(view: torch.Tensor, failure: ECIPCError | None) -> None:
    """The view, which the action has kept alive until now, may die."""
    if failure is not None:
        keep_for_ever(view)


def _lock_pages(mapping: _core.Mapping, device: int) -> bool:
    """Page-lock a mapped block, once. Whether it is."""
    locked = _page_locked.get(mapping)
    if locked is None:
        try:
            with cuda_runtime.on_device(device):
                cuda_runtime.lock_pages(mapping.address, mapping.nbytes)
            locked = True
        except ArenaUnavailable as error:
            locked = False
            logger.warning("copies to the GPU are synchronous: %s", error)
        _page_locked[mapping] = locked
        if locked:
            # Not when the interpreter ends: copies may still be queued, and the kernel does it.
            weakref.finalize(mapping, _unlock_pages, mapping.address, device).atexit = False
    return locked


def _unlock_pages(address: int, device: int) -> None:
    try:
        cuda_runtime.unlock_pages(address, device)
    except ArenaUnavailable as error:
        logger.warning("unlocking the pages of a host arena: %s", error)

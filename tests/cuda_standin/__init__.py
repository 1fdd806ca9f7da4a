"""A stand-in for the CUDA runtime, for machines without a GPU. The product knows nothing of it.

It takes the place of the few parts of CuPy that ``ec_ipc.cuda_runtime`` uses, over shared host memory,
and keeps CUDA's rules where they have broken others:

* a handle names a whole block, whatever address it was taken of;
* the process that exported a handle cannot open it, and no process can open it twice;
* a thread's first call makes a context on its device, 0 if it has chosen none, as choosing one does;
* while another thread captures a graph, calls fail unless the thread's capture mode is relaxed;
* devices have an order of their own in each process, and an identity (UUID) that is the same in all;
* without peer access a block of another device cannot be opened;
* events complete when they are told to, and there is a limit to them;
* any function can be made to fail.

``install()`` puts it in place in this process, ``uninstall()`` takes it away again.
"""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import torch

from ec_ipc import cuda_runtime

from . import memory, runtime
from .runtime import CUDARuntimeError, State, state

__all__ = ["CUDARuntimeError", "State", "install", "state", "uninstall"]

_originals: dict[str, Any] = {}


class _Stream:
    """torch's current stream, as far as its handle goes."""

    @property
    def cuda_stream(self) -> int:
        return state.current_stream


def install(**settings: Any) -> State:
    """Put the stand-in in the place of CuPy and of torch's questions about CUDA.

    ``settings`` are attributes of the state: ``devices``, ``peer_access``, ``fail`` and so on.
    """
    state.reset()
    for name, value in settings.items():
        setattr(state, name, value)
    cupy, cuda, functions = (ModuleType(name) for name in ("cupy", "cupy.cuda", "cupy.cuda.runtime"))
    for name in runtime.__all__:
        setattr(functions, name, getattr(runtime, name))
    cuda.runtime = functions  # type: ignore[attr-defined]
    cuda.driver = SimpleNamespace(  # type: ignore[attr-defined]
        ctxGetCurrent=runtime.ctxGetCurrent,
        ctxSetCurrent=runtime.ctxSetCurrent,
        CUDADriverError=runtime.CUDADriverError,
    )
    cuda.UnownedMemory = memory.UnownedMemory  # type: ignore[attr-defined]
    cuda.MemoryPointer = memory.MemoryPointer  # type: ignore[attr-defined]
    cupy.cuda = cuda  # type: ignore[attr-defined]
    cupy.ndarray = memory.ndarray  # type: ignore[attr-defined]
    sys.modules.update({"cupy": cupy, "cupy.cuda": cuda, "cupy.cuda.runtime": functions})
    if not _originals:
        for name in ("is_available", "current_device", "current_stream"):
            _originals[name] = getattr(torch.cuda, name)
        _originals["_driver"] = cuda_runtime._driver
    library = SimpleNamespace(cuThreadExchangeStreamCaptureMode=runtime.cuThreadExchangeStreamCaptureMode)
    cuda_runtime._driver = lambda: library  # type: ignore[assignment]
    torch.cuda.is_available = lambda: True
    torch.cuda.current_device = lambda: state.device.torch
    torch.cuda.current_stream = lambda device=None: _Stream()  # type: ignore[assignment]
    return state


def uninstall() -> None:
    """Take it away again, with what this process still has of it."""
    for name in ("cupy", "cupy.cuda", "cupy.cuda.runtime"):
        sys.modules.pop(name, None)
    for name, original in _originals.items():
        setattr(cuda_runtime if name == "_driver" else torch.cuda, name, original)
    state.let_all_events_complete()

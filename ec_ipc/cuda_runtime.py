"""The one place that calls CUDA, through CuPy but for one function, and only when a CUDA arena is used.

CuPy is imported on the first call, in a worker process: importing it earlier would initialise CUDA
before vLLM forks.
"""

import contextlib
import ctypes
import functools
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import torch
import torch.utils.dlpack

from ec_ipc.errors import ArenaUnavailable


def _cupy() -> ModuleType:
    try:
        import cupy
    except ImportError as error:
        raise ArenaUnavailable(
            f"the cuda arena needs CuPy, which cannot be imported ({error}); install ec-ipc[cuda12] or "
            "ec-ipc[cuda13], or set arena to 'host'"
        ) from error
    return cupy  # type: ignore[no-any-return]


def _call(name: str, *arguments: Any) -> Any:
    """A runtime function by name. ArenaUnavailable, with CUDA's own words, when it fails."""
    runtime = _cupy().cuda.runtime
    try:
        return getattr(runtime, name)(*arguments)
    except runtime.CUDARuntimeError as error:
        raise ArenaUnavailable(f"CUDA: {name} failed: {error}") from error


def shutting_down() -> bool:
    """Whether the interpreter ends: CUDA may be gone already, and must not be called any more."""
    return sys.is_finalizing()


def device_count() -> int:
    """How many GPUs this process sees."""
    return int(_call("getDeviceCount"))


def have_peers() -> bool:
    """Whether any two of the GPUs that this process sees can read each other's memory, or it sees one."""
    devices = range(device_count())
    pairs = [(one, other) for one in devices for other in devices if one != other]
    return not pairs or any(_call("deviceCanAccessPeer", *pair) for pair in pairs)


def current_device() -> int:
    """The ordinal of this thread's GPU, as torch has it; another process may call it otherwise."""
    return int(torch.cuda.current_device())


def keep_on_device(device: int) -> None:
    """Make a GPU this thread's for good. For threads of ours."""
    _call("setDevice", device)
    _exchange_capture_mode(_RELAXED)


@contextlib.contextmanager
def on_device(device: int) -> Iterator[None]:
    """Let a GPU be this thread's for a while: a call may come from any thread, with any GPU, while another
    thread captures a graph.

    The thread's context is restored, be it none. ``cudaSetDevice`` of the GPU that it would have had next
    makes a context there, of hundreds of MiB, on a GPU that this process may never have used.
    """
    mode = _exchange_capture_mode(_RELAXED)
    try:
        now = int(_call("getDevice"))
        context = _context()
        if context and now == device:
            yield
            return
        _call("setDevice", device)
        try:
            yield
        finally:
            _cupy().cuda.driver.ctxSetCurrent(context)
    finally:
        if mode is not None:
            _exchange_capture_mode(mode)


def _context() -> int:
    """The driver's context of this thread; 0: none."""
    driver = _cupy().cuda.driver
    try:
        return int(driver.ctxGetCurrent())
    except driver.CUDADriverError:
        return 0  # the driver is not initialised


# Calls such as cudaMalloc, cudaIpcOpenMemHandle and cudaEventSynchronize, from any thread, fail while another
# captures a CUDA graph in the global mode (torch's default), and the capture is lost with them. None of
# ours has to do with a capture, so they are made in the relaxed mode. It is the driver's, per thread,
# so that it is one for torch's CUDA runtime and CuPy's; CuPy has no name for it.
_RELAXED = 2


@functools.cache
def _driver() -> Any:
    """The driver's library, which CuPy and torch have loaded; None where there is none."""
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None


def _exchange_capture_mode(mode: int) -> int | None:
    """Give this thread another capture mode. The one before; None when that could not be done."""
    driver = _driver()
    value = ctypes.c_int(mode)
    if driver is None or driver.cuThreadExchangeStreamCaptureMode(ctypes.byref(value)) != 0:
        return None
    return value.value


def device_uuid(device: int) -> bytes:
    """At most 16 bytes that name a GPU in every process. CuPy ends them at a zero byte."""
    return bytes(_call("getDeviceProperties", device)["uuid"])[:16]


def current_stream(device: int) -> int:
    """The stream on which torch runs this thread's kernels, as the runtime's handle."""
    return int(torch.cuda.current_stream(device).cuda_stream)


def allocate(nbytes: int) -> int:
    """A block of its own by cudaMalloc, outside every pool: only such a block has an IPC handle."""
    return int(_call("malloc", nbytes))


def free(address: int, device: int) -> None:
    """Give a block back to its device."""
    if not shutting_down():
        with on_device(device):
            _call("free", address)


def export(address: int) -> bytes:
    """The IPC handle of a block of this process."""
    return bytes(_call("ipcGetMemHandle", address))


def open_handle(handle: bytes) -> int:
    """Map another process's block on the current device, with peer access where it is needed."""
    return int(_call("ipcOpenMemHandle", handle, _cupy().cuda.runtime.cudaIpcMemLazyEnablePeerAccess))


def close_handle(address: int, device: int) -> None:
    """Unmap another process's block from the device on which it was opened."""
    if not shutting_down():
        with on_device(device):
            _call("ipcCloseMemHandle", address)


# Not through tensors: a program may have made the GPU torch's default device.


def write_bytes(address: int, data: bytes) -> None:
    """Copy a few bytes to the GPU. Returns when they are there."""
    source = ctypes.create_string_buffer(data, len(data))
    _call("memcpy", address, ctypes.addressof(source), len(data), _cupy().cuda.runtime.memcpyHostToDevice)


def read_bytes(address: int, nbytes: int) -> bytes:
    """Copy a few bytes from the GPU."""
    target = ctypes.create_string_buffer(nbytes)
    _call("memcpy", ctypes.addressof(target), address, nbytes, _cupy().cuda.runtime.memcpyDeviceToHost)
    return target.raw


def lock_pages(address: int, nbytes: int) -> None:
    """Page-lock host memory, so that copies out of it can be asynchronous."""
    _call("hostRegister", address, nbytes, 0)


def unlock_pages(address: int, device: int) -> None:
    """Undo ``lock_pages``, before the memory is unmapped."""
    if not shutting_down():
        with on_device(device):
            _call("hostUnregister", address)


def create_event() -> int:
    """An event without timing, on which a thread can wait without spinning."""
    runtime = _cupy().cuda.runtime
    return int(_call("eventCreateWithFlags", runtime.eventBlockingSync | runtime.eventDisableTiming))


def destroy_event(event: int) -> None:
    """Give an event back."""
    _call("eventDestroy", event)


def record_event(event: int, stream: int) -> None:
    """Let the event complete when everything queued on the stream so far has."""
    _call("eventRecord", event, stream)


def wait_for_event(event: int) -> None:
    """Wait, without the GIL, until the event has completed."""
    _call("eventSynchronize", event)


def as_tensor(address: int, nbytes: int, device: int, owner: object) -> torch.Tensor:
    """The bytes at an address as a tensor, without a copy and without synchronising anything.

    ``owner`` lives exactly as long as the tensor's storage.
    """
    cupy = _cupy()
    memory = cupy.cuda.UnownedMemory(address, nbytes, owner, device)
    array = cupy.ndarray((nbytes,), dtype="uint8", memptr=cupy.cuda.MemoryPointer(memory, 0))
    # -1: DLPack's word for "the producer need not synchronise". Order is kept by events.
    return torch.utils.dlpack.from_dlpack(array.__dlpack__(stream=-1))

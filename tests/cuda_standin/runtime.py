"""``cupy.cuda.runtime``, as far as it is used. See the package for the rules it keeps."""

from __future__ import annotations

import ctypes
import itertools
import mmap
import os
import threading
from pathlib import Path
from typing import Any

__all__ = [
    "CUDARuntimeError",
    "cudaIpcMemLazyEnablePeerAccess",
    "deviceCanAccessPeer",
    "eventBlockingSync",
    "eventCreateWithFlags",
    "eventDestroy",
    "eventDisableTiming",
    "eventRecord",
    "eventSynchronize",
    "free",
    "getDevice",
    "getDeviceCount",
    "getDeviceProperties",
    "hostRegister",
    "hostUnregister",
    "ipcCloseMemHandle",
    "ipcGetMemHandle",
    "ipcOpenMemHandle",
    "malloc",
    "memcpy",
    "memcpyDeviceToHost",
    "memcpyHostToDevice",
    "setDevice",
]

DIRECTORY = Path("/dev/shm")
PREFIX = "cuda_standin."
HANDLE_BYTES = 64
GLOBAL = 0  # cudaStreamCaptureModeGlobal

cudaIpcMemLazyEnablePeerAccess = 1
eventBlockingSync = 1
eventDisableTiming = 2
memcpyHostToDevice = 1
memcpyDeviceToHost = 2


class CUDARuntimeError(RuntimeError):
    """An error of the runtime, by name."""


class CUDADriverError(RuntimeError):
    """An error of the driver."""


class _Thread(threading.local):
    """What CUDA keeps for each thread."""

    def __init__(self) -> None:
        self.number = 0  # the runtime's device, in CuPy; torch has a runtime of its own
        self.torch = 0
        self.context: int | None = None  # the device whose primary context is current
        self.capture_mode = GLOBAL


class _Block:
    """A mapped file in shared memory: a cudaMalloc block, here or elsewhere."""

    def __init__(self, path: Path, nbytes: int | None) -> None:
        self.path = path
        flags = os.O_RDWR | (os.O_CREAT | os.O_EXCL if nbytes else 0)
        fd = os.open(path, flags, 0o600)
        try:
            if nbytes:
                os.posix_fallocate(fd, 0, nbytes)
            self.map = mmap.mmap(fd, 0)
        finally:
            os.close(fd)
        self.nbytes = len(self.map)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.map))


class State:
    """What the GPU and the driver of this process do. Tests change it."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.devices = ["gpu-0"]  # as this process sees them; a name is an identity
        self.peer_access = True
        self.device = _Thread()
        self.contexts: set[int] = set()  # devices on which this process has one, for its whole life
        self.capturing = False  # another thread captures a graph, in the global mode
        self.captures_lost = 0
        self.current_stream = 7  # torch's, of this thread
        self.fail: dict[str, str] = {}  # function -> CUDA's error
        self.calls: list[str] = []
        self.blocks: dict[int, _Block] = {}  # own
        self.opened: dict[int, _Block] = {}  # other processes'
        self.event_limit = 10_000
        self.events = 0
        self.bad_streams: set[int] = set()  # on which no event can be recorded
        self.recorded: list[tuple[int, int]] = []  # (event, stream)
        self.recorded_on: list[int] = []  # the thread's device at that time
        self._gate = threading.Event()
        self._gate.set()
        self._numbers = itertools.count(1)

    def hold_events(self) -> None:
        """From now on no event completes."""
        self._gate.clear()

    def let_all_events_complete(self) -> None:
        self._gate.set()

    def begin(self, function: str) -> None:
        """A call: counted, and failed when told so."""
        self.calls.append(function)
        if function in self.fail:
            raise CUDARuntimeError(self.fail[function])

    def begin_on_device(self, function: str) -> None:
        """A call that needs a context, and must not be made while a graph is captured."""
        self.begin(function)
        if self.device.context is None:
            self.make_context(self.device.number)
        if self.capturing and self.device.capture_mode == GLOBAL:
            self.captures_lost += 1
            raise CUDARuntimeError(
                "cudaErrorStreamCaptureUnsupported: operation not permitted when stream is capturing"
            )

    def make_context(self, device: int) -> None:
        self.device.context = device
        self.contexts.add(device)

    def new_path(self) -> Path:
        return DIRECTORY / f"{PREFIX}{os.getpid()}.{next(self._numbers)}"


state = State()


def getDeviceCount() -> int:
    state.begin("getDeviceCount")
    return len(state.devices)


def getDevice() -> int:
    context = state.device.context
    return state.device.number if context is None else context


def setDevice(device: int) -> None:
    """Makes a context there, as it does since CUDA 12."""
    state.begin("setDevice")
    if not 0 <= device < len(state.devices):
        raise CUDARuntimeError("cudaErrorInvalidDevice: invalid device ordinal")
    state.device.number = device
    state.make_context(device)


def ctxGetCurrent() -> int:
    context = state.device.context
    return 0 if context is None else 1 + context


def ctxSetCurrent(ctx: int) -> None:
    state.device.context = ctx - 1 if ctx else None


def cuThreadExchangeStreamCaptureMode(mode: Any) -> int:
    value = mode._obj
    state.device.capture_mode, value.value = value.value, state.device.capture_mode
    return 0


def deviceCanAccessPeer(device: int, peerDevice: int) -> int:
    state.begin("deviceCanAccessPeer")
    return int(state.peer_access)


def getDeviceProperties(device: int) -> dict[str, bytes]:
    return {"uuid": state.devices[device].encode().ljust(16, b"\0")}


def malloc(size: int) -> int:
    state.begin_on_device("malloc")
    block = _Block(state.new_path(), size)
    state.blocks[block.address] = block
    return block.address


def free(ptr: int) -> None:
    state.begin_on_device("free")
    block = state.blocks.pop(ptr)
    block.path.unlink(missing_ok=True)


def ipcGetMemHandle(devPtr: int) -> bytes:
    """The block's handle, whatever address in it was given: the offset is lost."""
    state.begin_on_device("ipcGetMemHandle")
    for block in state.blocks.values():
        if block.address <= devPtr < block.address + block.nbytes:
            name = f"{block.path.name} {state.devices[getDevice()]}"
            return name.encode().ljust(HANDLE_BYTES, b"\0")
    raise CUDARuntimeError("cudaErrorInvalidValue: invalid argument")


def ipcOpenMemHandle(handle: bytes, flags: int) -> int:
    state.begin_on_device("ipcOpenMemHandle")
    assert flags == cudaIpcMemLazyEnablePeerAccess
    name, device = handle.rstrip(b"\0").decode().split(" ")
    path = DIRECTORY / name
    if any(block.path == path for block in state.blocks.values()):
        raise CUDARuntimeError("cudaErrorInvalidContext: invalid device context")
    if any(block.path == path for block in state.opened.values()):
        raise CUDARuntimeError("cudaErrorAlreadyMapped: resource already mapped")
    if not state.peer_access and device != state.devices[getDevice()]:
        raise CUDARuntimeError("cudaErrorPeerAccessUnsupported: peer access is not supported")
    if not path.exists():
        raise CUDARuntimeError("cudaErrorMapBufferObjectFailed: mapping of buffer object failed")
    block = _Block(path, None)
    state.opened[block.address] = block
    return block.address


def ipcCloseMemHandle(devPtr: int) -> None:
    state.begin_on_device("ipcCloseMemHandle")
    del state.opened[devPtr]


def memcpy(dst: int, src: int, size: int, kind: int) -> None:
    state.begin_on_device("memcpy")
    ctypes.memmove(dst, src, size)


def hostRegister(ptr: int, size: int, flags: int) -> None:
    state.begin_on_device("hostRegister")


def hostUnregister(ptr: int) -> None:
    state.begin_on_device("hostUnregister")


def eventCreateWithFlags(flags: int) -> int:
    state.begin_on_device("eventCreateWithFlags")
    state.events += 1
    if state.events > state.event_limit:
        state.events -= 1
        raise CUDARuntimeError("cudaErrorMemoryAllocation: out of memory")
    return next(state._numbers)


def eventDestroy(event: int) -> None:
    state.begin("eventDestroy")
    state.events -= 1


def eventRecord(event: int, stream: int) -> None:
    state.begin("eventRecord")
    if stream in state.bad_streams:
        raise CUDARuntimeError("cudaErrorInvalidResourceHandle: invalid resource handle")
    state.recorded.append((event, stream))
    state.recorded_on.append(getDevice())


def eventSynchronize(event: int) -> None:
    state.begin_on_device("eventSynchronize")
    state._gate.wait()

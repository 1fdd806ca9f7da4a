"""``cupy.cuda.runtime``, as far as it is used. See the package for the rules it keeps."""

from __future__ import annotations

import ctypes
import itertools
import mmap
import os
import threading
from pathlib import Path

__all__ = [
    "CUDARuntimeError",
    "cudaIpcMemLazyEnablePeerAccess",
    "eventBlockingSync",
    "eventCreateWithFlags",
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

cudaIpcMemLazyEnablePeerAccess = 1
eventBlockingSync = 1
eventDisableTiming = 2
memcpyHostToDevice = 1
memcpyDeviceToHost = 2


class CUDARuntimeError(RuntimeError):
    """An error of the runtime, by name."""


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
        self.device = threading.local()
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

    def new_path(self) -> Path:
        return DIRECTORY / f"{PREFIX}{os.getpid()}.{next(self._numbers)}"


state = State()


def getDeviceCount() -> int:
    state.begin("getDeviceCount")
    return len(state.devices)


def getDevice() -> int:
    return getattr(state.device, "number", 0)


def setDevice(device: int) -> None:
    state.begin("setDevice")
    state.device.number = device


def getDeviceProperties(device: int) -> dict[str, bytes]:
    return {"uuid": state.devices[device].encode().ljust(16, b"\0")}


def malloc(size: int) -> int:
    state.begin("malloc")
    block = _Block(state.new_path(), size)
    state.blocks[block.address] = block
    return block.address


def free(ptr: int) -> None:
    state.begin("free")
    block = state.blocks.pop(ptr)
    block.path.unlink(missing_ok=True)


def ipcGetMemHandle(devPtr: int) -> bytes:
    """The block's handle, whatever address in it was given: the offset is lost."""
    state.begin("ipcGetMemHandle")
    for block in state.blocks.values():
        if block.address <= devPtr < block.address + block.nbytes:
            name = f"{block.path.name} {state.devices[getDevice()]}"
            return name.encode().ljust(HANDLE_BYTES, b"\0")
    raise CUDARuntimeError("cudaErrorInvalidValue: invalid argument")


def ipcOpenMemHandle(handle: bytes, flags: int) -> int:
    state.begin("ipcOpenMemHandle")
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
    state.begin("ipcCloseMemHandle")
    del state.opened[devPtr]


def memcpy(dst: int, src: int, size: int, kind: int) -> None:
    state.begin("memcpy")
    ctypes.memmove(dst, src, size)


def hostRegister(ptr: int, size: int, flags: int) -> None:
    state.begin("hostRegister")


def hostUnregister(ptr: int) -> None:
    state.begin("hostUnregister")


def eventCreateWithFlags(flags: int) -> int:
    state.begin("eventCreateWithFlags")
    state.events += 1
    if state.events > state.event_limit:
        raise CUDARuntimeError("cudaErrorMemoryAllocation: out of memory")
    return state.events


def eventRecord(event: int, stream: int) -> None:
    state.begin("eventRecord")
    if stream in state.bad_streams:
        raise CUDARuntimeError("cudaErrorInvalidResourceHandle: invalid resource handle")
    state.recorded.append((event, stream))
    state.recorded_on.append(getDevice())


def eventSynchronize(event: int) -> None:
    state.begin("eventSynchronize")
    state._gate.wait()

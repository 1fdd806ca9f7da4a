"""CuPy's memory objects, over host memory."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np


class UnownedMemory:
    """Memory of somebody else, and an owner that lives as long as whoever uses it."""

    def __init__(self, ptr: int, size: int, owner: object, device_id: int = -1) -> None:
        self.ptr, self.size, self.owner, self.device_id = ptr, size, owner, device_id


class MemoryPointer:
    """A place in a memory object."""

    def __init__(self, mem: UnownedMemory, offset: int) -> None:
        self.mem, self.ptr = mem, mem.ptr + offset


class ndarray:
    """An array of bytes that can be handed on by DLPack."""

    def __init__(self, shape: tuple[int, ...], dtype: str, memptr: MemoryPointer) -> None:
        assert dtype == "uint8" and len(shape) == 1
        buffer = (ctypes.c_uint8 * shape[0]).from_address(memptr.ptr)
        buffer.memory = memptr.mem  # type: ignore[attr-defined] # the array's base keeps its owner
        self._array = np.frombuffer(buffer, dtype=np.uint8)

    def __dlpack__(self, *, stream: int | None = None) -> Any:
        assert stream == -1, "a view must not synchronise"
        return self._array.__dlpack__()

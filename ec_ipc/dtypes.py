"""Torch dtypes as the small numbers that an entry stores. The order is part of the layout."""

import math

import torch

from ec_ipc import _core
from ec_ipc.errors import SegmentError, UnsupportedTensor

_DTYPES = (
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.float64,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
)
_CODES = {dtype: code for code, dtype in enumerate(_DTYPES)}


def _in_dlpack(dtype: torch.dtype) -> tuple[int, int]:
    """Type code and bits. Not every torch takes an 8-bit float from DLPack: that goes as bytes."""
    int_, uint, float_, bfloat = 0, 1, 2, 4
    bits = 8 * dtype.itemsize
    if dtype.is_floating_point and bits > 8:
        return (bfloat if dtype is torch.bfloat16 else float_), bits
    return (int_ if dtype.is_signed and not dtype.is_floating_point else uint), bits


DLPACK = tuple(map(_in_dlpack, _DTYPES))  # by code


def encode(tensor: torch.Tensor) -> int:
    """The code of a tensor's dtype. UnsupportedTensor for what no arena can hold."""
    code = _CODES.get(tensor.dtype)
    if code is None:
        raise UnsupportedTensor(
            f"a tensor of {tensor.dtype} cannot be shared; convert it to one of "
            f"{', '.join(str(dtype) for dtype in _DTYPES)}"
        )
    if tensor.numel() == 0:
        raise UnsupportedTensor(f"a tensor of shape {tuple(tensor.shape)} has no bytes to share")
    if tensor.dim() > _core.MAX_RANK:
        raise UnsupportedTensor(
            f"a tensor of {tensor.dim()} dimensions cannot be shared; reshape it to at most {_core.MAX_RANK}"
        )
    return code


def of_code(code: int) -> torch.dtype:
    """The dtype behind a code that came from shared memory. SegmentError for one that is unknown."""
    if not 0 <= code < len(_DTYPES):
        raise SegmentError(f"an entry has dtype code {code}; expected 0 to {len(_DTYPES) - 1}")
    return _DTYPES[code]


def decode(code: int, shape: tuple[int, ...], nbytes: int) -> torch.dtype:
    """The dtype behind a code, checked against the shape and size that came with it."""
    dtype = of_code(code)
    expected = math.prod(shape) * dtype.itemsize
    if expected != nbytes:
        raise SegmentError(f"an entry of shape {shape} and {dtype} has {nbytes} bytes; expected {expected}")
    return dtype

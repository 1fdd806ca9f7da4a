"""Everything that can go wrong, as one closed set of exceptions under ``ECIPCError``."""

from ec_ipc._core import ECIPCError, ForkedHandle, LockTimeout, NoFreeSlot, SegmentError

__all__ = [
    "ArenaFull",
    "ArenaUnavailable",
    "ConfigurationError",
    "ECIPCError",
    "ForkedHandle",
    "LockTimeout",
    "NoFreeSlot",
    "OutOfSharedMemory",
    "SegmentError",
    "UnsupportedTensor",
]


class ConfigurationError(ECIPCError):
    """A setting that cannot be honoured. Raised at start, never later."""


class ArenaUnavailable(ECIPCError):
    """An arena that cannot be made or mapped by this process."""


class ArenaFull(ECIPCError):
    """No extent, or no entry, is free, and nothing may be evicted."""


class OutOfSharedMemory(ECIPCError):
    """The operating system has fewer bytes of shared memory left than are needed."""


class UnsupportedTensor(ECIPCError):
    """A tensor that an arena cannot hold: empty, of an unknown dtype, or of too many dimensions."""

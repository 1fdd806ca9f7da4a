"""Whether this process can use a CUDA arena, and if not, why."""

from pathlib import Path

import torch

from ec_ipc import cuda_runtime
from ec_ipc.errors import ArenaUnavailable

_SELF_TEST_BYTES = 1 << 12


def obstacle(device: int | None = None) -> str | None:
    """None when a CUDA arena works here, else the reason, as the rest of a sentence.

    Tries what the arena will do: allocate, and export, on a device or the thread's. Only in a process
    that may initialise CUDA.
    """
    if not torch.cuda.is_available():
        return "torch finds no CUDA device"
    if is_wsl():
        return "CUDA IPC is not supported under WSL2"
    try:
        if cuda_runtime.device_count() == 0:
            return "this process sees no GPU"
        device = cuda_runtime.current_device() if device is None else device
        with cuda_runtime.on_device(device):
            address = cuda_runtime.allocate(_SELF_TEST_BYTES)
            try:
                cuda_runtime.export(address)
            finally:
                cuda_runtime.free(address, device)
    except ArenaUnavailable as error:
        return str(error)
    return None


def no_peers() -> str | None:
    """Why others could not map the arena, as far as can be known here: which GPU a reader uses cannot.
    None where nothing speaks against it."""
    try:
        if cuda_runtime.have_peers():
            return None
    except ArenaUnavailable as error:
        return str(error)
    return "no two of the GPUs here have peer access; where all engines share one GPU, set arena to 'cuda'"


def is_wsl() -> bool:
    """Whether the kernel is that of the Windows Subsystem for Linux."""
    try:
        return "microsoft" in Path("/proc/version").read_text().lower()
    except OSError:
        return False

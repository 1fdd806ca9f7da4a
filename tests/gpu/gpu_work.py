"""Work for a GPU that can be checked: contents that name their number, and kernels that are slow.

Nothing here waits for the GPU unless it says so. Imported by the tests and by the processes they start.
"""

import functools
import time
from collections.abc import Callable
from typing import Any

import torch

from ec_ipc import Lease, Store

WORDS = 1 << 16  # of 4 bytes: a small embedding
CYCLES_PER_MS = 2_000_000  # of a fast card; a slow one takes longer


@functools.cache
def ramp(words: int) -> torch.Tensor:
    return torch.arange(words, dtype=torch.int32, device="cuda")


def content(number: int, words: int = WORDS) -> torch.Tensor:
    """What embedding ``number`` consists of: no two agree in any word."""
    return ramp(words) * 1009 + number


def wrong_words(tensor: torch.Tensor, number: int) -> torch.Tensor:
    """How many words are not those of embedding ``number``, as a tensor that the GPU will fill."""
    return (tensor != content(number, tensor.numel())).sum()


def slow(milliseconds: float) -> None:
    """Keep the current stream busy at least that long."""
    torch.cuda._sleep(int(milliseconds * CYCLES_PER_MS))


def mark() -> torch.cuda.Event:
    """An event that completes with everything queued on the current stream so far."""
    event = torch.cuda.Event()
    event.record()
    return event


def warm_up(store: Store, reader: Store | None = None, words: int = WORDS) -> None:
    """Do everything once: CUDA loads each kernel when it is first launched, and may wait to do so."""
    store.put("warm-up", content(0, words))
    lease = get(reader or store, "warm-up")
    assert wrong_words(lease.tensor, 0).item() == 0
    lease.release()
    slow(1)
    torch.cuda.synchronize()
    assert store.drain() and (reader or store).drain()


def warm_stream(words: int = WORDS) -> torch.cuda.Stream:
    """A stream of its own on which the reading kernels have their memory already."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        wrong_words(content(0, words), 0)
    torch.cuda.synchronize()
    return stream


def get(store: Store, key: str) -> Lease:
    lease = store.get(key)
    assert lease is not None, f"{key!r} is not there"
    return lease


def used(store: Store) -> int:
    """Bytes of all arenas that an entry covers, now."""
    return sum(store.segment.arena_used(arena.slot) for arena in store.segment.arenas())


def free_bytes() -> int:
    """Of the GPU's memory, whoever has the rest."""
    return torch.cuda.mem_get_info()[0]


def eventually(condition: Callable[[], Any], otherwise: Callable[[], str] = lambda: "") -> None:
    """Wait for what a timer or the driver does. Bounded only against a test that would never end."""
    for _ in range(600):
        if condition():
            return
        time.sleep(0.05)
    raise AssertionError(f"it never happened {otherwise()}")

"""What an engine reports through vLLM's metrics, collected in its scheduler at the end of each step.

An engine reports what its own participants have counted, so that the sum over engines is the whole.
The two gauges are of the namespace and the same from each of its engines: the front end reads them from
the directory when it is asked, as they cost a walk over all entries.
"""

import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ec_ipc._core import MAX_PARTICIPANTS
from ec_ipc.connector.side_channel import MAX_TIMES, SideChannelReceiver
from ec_ipc.store import Store

# The directory's counters, by name, and what they count.
COUNTERS = {
    "published": "Embeddings written into the arena and made readable.",
    "republished": "Embeddings published again from the encoder's own cache, after they had been freed.",
    "reads": "Embeddings that a worker has put into vLLM's encoder cache.",
    "bytes_published": "Bytes written into the arena.",
    "freed_by_last_reader": "Embeddings freed by the release of their last reader.",
    "evicted": "Embeddings evicted for space, least recently used first.",
    "expired": "Announced reads that did not come before their deadline.",
    "reclaimed": "Holds and writes taken back from participants that died.",
    "localised": "Views replaced by copies, because an arena was short of space.",
    "publish_skipped": "Encoded items that were not published: the arena full, or too small for them.",
    "late_releases": "Reads settled after their embedding was gone.",
    "misses": "Items that a request asked for and the namespace did not have.",
}
# Counted in this process.
TALLIES = {
    "hits": "Items found in the namespace: by PD to read, by E so as not to encode again.",
    "no_producer": "Misses while the namespace had no producer at all.",
}
GAUGES = {
    "arena_bytes": "Size of all arenas of the namespace.",
    "arena_used_bytes": "Bytes of the namespace's arenas that hold an embedding.",
}
HISTOGRAMS = {
    "publish_seconds": "Time that a worker of E spent on publishing an embedding (CUDA: until it is queued).",
    "load_seconds": "Time that a worker of PD spent on getting the view of an embedding.",
}
TIMED = {"published", "republished"}  # what workers time by the side channel
BUCKETS = [1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 2e-2, 5e-2, 0.1, 0.2, 0.5, 1.0, 5.0]
PREFIX = "vllm:ec_ipc_"

LOOK_AGAIN_S = 1.0


@dataclass
class Tally:
    """What the scheduler itself counts, and what its workers have reported since the last step."""

    hits: int = 0
    no_producer: int = 0
    load_seconds: deque[float] = field(default_factory=lambda: deque(maxlen=MAX_TIMES))


class Collector:
    """The growth of this engine's counters since the last call."""

    def __init__(
        self, store: Store, engine: int, tally: Tally, workers: int, channel: SideChannelReceiver
    ) -> None:
        self._store = store
        self._engine = engine
        self._tally = tally
        self._expected = workers + 1
        self._channel = channel
        # A slot's counters outlive its participant: the growth counts from what they are now.
        self._begin([store.segment.counters_of([slot]) for slot in range(MAX_PARTICIPANTS)])
        self._last_tally = (tally.hits, tally.no_producer)

    def _begin(self, first: list[tuple[int, ...]]) -> None:
        """In a directory whose slots have counted so much before."""
        self._directory = self._store.segment
        self._own: list[int] = []
        self._looked = 0.0
        self._first = first
        self._last = (0,) * len(COUNTERS)  # of all that are in own

    def collect(self) -> dict[str, Any] | None:
        """Plain data for vLLM's stats; None when nothing has happened. Called once a step, which is often."""
        if self._store.segment is not self._directory:
            self._begin([(0,) * len(COUNTERS)] * MAX_PARTICIPANTS)  # a successor, with nothing reported of it
        if len(self._own) < self._expected:
            self._find_own()
        grown = self._growth()
        # With steps in flight a time may come a step after its read was counted.
        load_seconds = list(self._tally.load_seconds)
        self._tally.load_seconds.clear()
        if not (grown or load_seconds):
            return None
        return {
            "namespace": self._store.namespace,
            "counters": grown,
            # A worker sends its times after it has counted and before its step ends.
            "publish_seconds": self._channel.take_times() if TIMED & grown.keys() else [],
            "load_seconds": load_seconds,
        }

    def _growth(self) -> dict[str, int]:
        """What has grown since the last call, and by how much."""
        grown: dict[str, int] = {}
        now = self._directory.counters_of(self._own)
        if now != self._last:
            add_growth(grown, COUNTERS, now, self._last)
            self._last = now
        tally = (self._tally.hits, self._tally.no_producer)
        if tally != self._last_tally:
            add_growth(grown, TALLIES, tally, self._last_tally)
            self._last_tally = tally
        return grown

    def _find_own(self) -> None:
        now = time.monotonic()
        if now - self._looked < LOOK_AGAIN_S:
            return
        self._looked = now
        for slot in [p.slot for p in self._directory.participants() if p.engine == self._engine]:
            if slot not in self._own:
                self._own.append(slot)
                self._last = tuple(a + b for a, b in zip(self._last, self._first[slot], strict=True))

    def close(self) -> None:
        """Collect no more."""
        self._channel.close()


def add_growth(grown: dict[str, int], names: Iterable[str], now: Sequence[int], last: Sequence[int]) -> None:
    for name, new, old in zip(names, now, last, strict=True):
        if new > old:  # a damaged counter may go back, and vLLM's metrics must not
            grown[name] = grown.get(name, 0) + new - old

"""The engines of one role: which are up, which is least busy."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import aiohttp

log = logging.getLogger("proxy")
PROBE_TIMEOUT_S = 5.0


@dataclass
class Engine:
    role: str
    url: str
    healthy: bool = True
    reason: str = ""
    in_flight: int = 0
    served: int = 0

    def mark(self, healthy: bool, reason: str = "") -> None:
        if healthy != self.healthy:
            log.warning("%s %s is %s", self.role, self.url, "up" if healthy else f"down: {reason}")
        self.healthy, self.reason = healthy, reason

    @contextmanager
    def busy(self) -> Iterator[None]:
        self.in_flight += 1
        self.served += 1
        try:
            yield
        finally:
            self.in_flight -= 1


class Pool:
    def __init__(self, role: str, urls: Sequence[str]) -> None:
        self.engines = [Engine(role, url) for url in urls]
        self._asking: asyncio.Task[None] | None = None

    def candidates(self, exclude: Collection[str] = ()) -> list[Engine]:
        """The healthy engines; when none is, all: what a probe said may be out of date."""
        left = [engine for engine in self.engines if engine.url not in exclude]
        return [engine for engine in left if engine.healthy] or left

    def least_busy(self, exclude: Collection[str] = ()) -> Engine | None:
        """Least in flight; in turn where that is equal. None when all are excluded."""
        return min(self.candidates(exclude), key=lambda e: (e.in_flight, e.served), default=None)

    def any_up(self) -> bool:
        return any(engine.healthy for engine in self.engines)

    async def any_up_now(self, session: aiohttp.ClientSession) -> bool:
        """Whether one is up. Asks them before it says no: one may just have come up. Callers at the same
        time ask together."""
        if not self.any_up():
            if self._asking is None or self._asking.done():
                self._asking = asyncio.create_task(self.probe(session))
            await asyncio.shield(self._asking)
        return self.any_up()

    async def probe(self, session: aiohttp.ClientSession) -> None:
        await asyncio.gather(*(_probe(session, engine) for engine in self.engines))


async def _probe(session: aiohttp.ClientSession, engine: Engine) -> None:
    timeout = aiohttp.ClientTimeout(total=PROBE_TIMEOUT_S)
    try:
        async with session.get(f"{engine.url}/health", timeout=timeout) as answer:
            engine.mark(answer.status == 200, f"/health answered {answer.status}")
    except asyncio.TimeoutError:
        engine.mark(False, f"/health did not answer within {PROBE_TIMEOUT_S:.0f} s")
    except aiohttp.ClientError as error:
        engine.mark(False, str(error) or type(error).__name__)


async def probe_forever(session: aiohttp.ClientSession, pools: Sequence[Pool], every_s: float) -> None:
    while True:
        await asyncio.gather(*(pool.probe(session) for pool in pools))
        await asyncio.sleep(every_s)

"""The worker half on E: copies each encoder output into the arena, once, and publishes it."""

import logging
import time
from typing import TYPE_CHECKING

from ec_ipc._core import Outcome
from ec_ipc.connector.side_channel import Saved

if TYPE_CHECKING:
    import torch

    from ec_ipc.connector.metadata import StepMetadata
    from ec_ipc.connector.side_channel import SideChannelSender
    from ec_ipc.store import Store

logger = logging.getLogger(__name__)

_REASONS = {
    Outcome.ARENA_FULL: "the arena is full of embeddings that are still to be read",
    Outcome.TOO_LARGE: "it is larger than the arena",
    Outcome.DIRECTORY_FULL: "all max_items entries of the directory are in use",
    Outcome.WRITING_ELSEWHERE: "another engine is writing it",
    Outcome.WRITING_HERE: "it is being written already",
}

_ANNOUNCED = (Outcome.RESERVED, Outcome.ANNOUNCED, Outcome.SATURATED)


class ProducerWorker:
    """Publishes what the scheduler asks for. Never raises into vLLM: an item that cannot be published
    is left out, with a warning once per reason, and counted as ``publish_skipped``."""

    def __init__(self, store: "Store", channel: "SideChannelSender") -> None:
        self._store = store
        self._channel = channel
        self._said_first = False
        self._step = 0
        self._saves: dict[str, int] = {}
        self._said: set[str] = set()

    def start_save_caches(self, meta: "StepMetadata", encoder_cache: dict[str, "torch.Tensor"]) -> None:
        """Publish again what this step needs, is cached here, and has been freed meanwhile."""
        for identifier in self._saves:  # of the last step, and never encoded
            self._channel.saved.append(Saved(self._step, identifier, None))
        self._step, self._saves = meta.step, dict(meta.saves)
        for identifier in [i for i in self._saves if i in encoder_cache]:
            if self._publish(identifier, encoder_cache) is Outcome.RESERVED:
                self._store.segment.count("republished")

    def save_caches(self, encoder_cache: dict[str, "torch.Tensor"], identifier: str) -> None:
        """Publish an item that has just been encoded."""
        if identifier in self._saves:
            self._publish(identifier, encoder_cache)

    def _publish(self, identifier: str, encoder_cache: dict[str, "torch.Tensor"]) -> Outcome | None:
        announce = self._saves.pop(identifier)
        begin = time.perf_counter()
        outcome = token = None
        try:
            outcome, token = self._store.publish(identifier, encoder_cache[identifier], announce)
        except RuntimeError as error:  # ours, and torch's
            self._skip(identifier, str(error))
        if announce:
            self._channel.saved.append(
                Saved(self._step, identifier, token if outcome in _ANNOUNCED else None)
            )
        if outcome is None:
            return None
        if outcome is Outcome.RESERVED:
            self._channel.publish.append(time.perf_counter() - begin)
            if not self._said_first:
                self._said_first = True
                logger.info(
                    "ec_ipc: the first embedding is published in namespace %s: item %s, shape %s",
                    self._store.namespace,
                    identifier,
                    tuple(encoder_cache[identifier].shape),
                )
        reason = _REASONS.get(outcome)
        if reason is not None:
            self._skip(identifier, reason)
        return outcome

    def _skip(self, identifier: str, reason: str) -> None:
        self._store.segment.count("publish_skipped")
        self._store.raise_pressure()
        if reason not in self._said:
            self._said.add(reason)
            logger.warning(
                "item %s is not published (publish_skipped): %s; said once for this reason",
                identifier,
                reason,
            )

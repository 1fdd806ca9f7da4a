"""Our manager of vLLM's encoder cache, in every role.

vLLM's own keeps an encoder output after its last request until the space is needed, so on a quiet
engine a zero-copy view would stay for ever. And it believes that every item it has admitted is a
tensor in the worker, which is not so on a producer that only announced one.
"""

import itertools
import weakref
from typing import TYPE_CHECKING, Protocol

from vllm.v1.core.encoder_cache_manager import EncoderCacheManager

from ec_ipc.connector.support import MANAGER_CLASS

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.request import Request


class CacheObserver(Protocol):
    """The scheduler half of the connector, as its encoder-cache manager sees it."""

    eager: bool

    def cache_created(self, manager: "ECIPCEncoderCacheManager") -> None:
        """The scheduler has built its manager."""

    def may_allocate(self, request: "Request", index: int) -> bool:
        """False for an item that can neither be read nor encoded: it must not be scheduled."""

    def only_announced(self, identifier: str) -> bool:
        """Whether an item that is about to be allocated has no tensor in this engine's worker."""

    def cache_reset(self) -> None:
        """The weights have changed: nothing encoded before may be read after."""


# The manager is built by vLLM from its configuration, which can carry a name but no object.
_observers: "weakref.WeakValueDictionary[str, CacheObserver]" = weakref.WeakValueDictionary()
_names = itertools.count()


def install(vllm_config: "VllmConfig", observer: CacheObserver) -> None:
    """Make the scheduler that is being built use our manager, and let it find the connector."""
    name = f"observer-{next(_names)}"
    _observers[name] = observer
    vllm_config.ec_manager_config.encoder_cache_manager_cls = MANAGER_CLASS
    vllm_config.ec_manager_config.manager_config = {"observer": name}


class ECIPCEncoderCacheManager(EncoderCacheManager):
    """vLLM's manager, which lets go of an item as soon as no request refers to it (eager)."""

    def __init__(self, cache_size: int, observer: CacheObserver) -> None:
        super().__init__(cache_size)
        self._observer = observer
        observer.cache_created(self)

    @classmethod
    def create_manager(cls, *, cache_size: int, vllm_config: "VllmConfig") -> "ECIPCEncoderCacheManager":
        """Called by vLLM's scheduler, right after it has built the connector."""
        return cls(cache_size, _observers[vllm_config.ec_manager_config.manager_config["observer"]])

    def holds(self, identifier: str) -> bool:
        """Whether the workers have, or are about to have, the item's tensor."""
        return identifier in self.cached

    def can_allocate(
        self, request: "Request", input_id: int, encoder_compute_budget: int, num_embeds_to_schedule: int
    ) -> bool:
        """As vLLM's, and never for an item that the worker could not get."""
        return self._observer.may_allocate(request, input_id) and super().can_allocate(
            request, input_id, encoder_compute_budget, num_embeds_to_schedule
        )

    def allocate(self, request: "Request", input_id: int) -> None:
        """As vLLM's, except for an item that a producer announced without encoding it."""
        if not self._observer.only_announced(request.mm_features[input_id].identifier):
            super().allocate(request, input_id)

    def free_encoder_input(self, request: "Request", input_id: int) -> None:
        """As vLLM's; when eager, the last reference takes the item out of the cache."""
        super().free_encoder_input(request, input_id)
        identifier = request.mm_features[input_id].identifier
        if self._observer.eager and identifier in self.freeable:
            self.num_free_slots += self.freeable.pop(identifier)
            del self.cached[identifier]
            # vLLM before 0.31 has no such table.
            getattr(self, "num_embeds_by_hash", {}).pop(identifier, None)
            self.freed.append(identifier)

    def reset(self) -> None:
        """As vLLM's; called when the weights have changed."""
        super().reset()
        self._observer.cache_reset()

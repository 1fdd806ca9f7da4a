"""Which encoder gets which items, what it is asked, and how its answer is read."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from proxy.items import MediaItem

# What changes the embedding or whether the chat template accepts the request. `temperature` goes
# along with `n`, because vLLM refuses several choices under greedy sampling.
PASSED_TO_ENCODER = (
    "model",
    "n",
    "temperature",
    "mm_processor_kwargs",
    "media_io_kwargs",
    "chat_template",
    "chat_template_kwargs",
)


@dataclass
class Encoded:
    """What the encoders said: `params` is PD's ec_transfer_params, `metadata` is by item index."""

    params: dict[str, Any] = field(default_factory=dict)
    metadata: dict[int, dict[str, Any]] = field(default_factory=dict)

    def add(self, other: Encoded) -> None:
        self.params.update(other.params)
        self.metadata.update(other.metadata)


def choose_encoder(uuid: str, urls: Sequence[str]) -> str:
    """Rendezvous hashing: one item always meets the same encoder's cache, and when an encoder
    comes or goes only its own items move."""
    return max(
        urls, key=lambda url: hashlib.sha256(f"{uuid}\0{url}".encode("utf-8", "surrogatepass")).digest()
    )


def group_items(items: Sequence[MediaItem], urls: Sequence[str]) -> dict[str, list[MediaItem]]:
    """Items by encoder. All occurrences of one item are together, because E announces one read per
    occurrence and PD settles them against a single entry."""
    groups: dict[str, list[MediaItem]] = {}
    for item in items:
        groups.setdefault(choose_encoder(item.uuid, urls), []).append(item)
    return groups


def encoder_request(request: Mapping[str, Any], group: Sequence[MediaItem]) -> dict[str, Any]:
    """One user message with the group's media and nothing to say about it."""
    body: dict[str, Any] = {
        name: request[name] for name in PASSED_TO_ENCODER if request.get(name) is not None
    }
    body["messages"] = [{"role": "user", "content": [item.part for item in group]}]
    body["max_tokens"] = 1
    body["max_completion_tokens"] = 1
    body["stream"] = False
    return body


def read_answer(group: Sequence[MediaItem], answer: Any, *, positions_known: bool = True) -> Encoded:
    """E's `ec_transfer_params`, with `item_indices` counted through PD's request.

    Everything else in an entry (a connector's token, an address) stays as it is. An entry belongs to
    the items whose uuid is its key; where processor options are folded into the key, to those at its
    `item_indices`. `positions_known` is False when E may see more items than it was sent.
    """
    encoded = Encoded()
    params = answer.get("ec_transfer_params") if isinstance(answer, dict) else None
    for key, entry in (params if isinstance(params, dict) else {}).items():
        encoded.params[key] = entry
        if not isinstance(entry, dict):
            continue
        members = [item for item in group if item.uuid == key]
        if not members and positions_known:
            members = _members_at(group, entry.get("item_indices"))
        members = [item for item in members if entry.get("modality") in (None, item.modality)]
        if not members:
            continue
        if "item_indices" in entry:
            encoded.params[key] = {**entry, "item_indices": [item.index for item in members]}
        if is_metadata(entry.get("metadata")):
            encoded.metadata.update({item.index: entry["metadata"] for item in members})
    return encoded


def is_metadata(value: Any) -> bool:
    """Whether PD would take this in place of the media: flat arrays of numbers, and at least one."""
    return isinstance(value, dict) and bool(value) and all(_is_numbers(array) for array in value.values())


def _is_numbers(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(type(number) in (int, float) for number in value)


def _members_at(group: Sequence[MediaItem], indices: Any) -> list[MediaItem]:
    """The items at these positions of E's request; none if a position is not in it."""
    if not isinstance(indices, list) or not all(type(i) is int and 0 <= i < len(group) for i in indices):
        return []
    uuids = {group[i].uuid for i in indices}
    return [item for item in group if item.uuid in uuids]

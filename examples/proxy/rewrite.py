"""PD's request: the client's, with keys on every item and, where possible, without the media."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from proxy.grouping import Encoded
from proxy.items import MediaItem, takes_audio_from_video


def pd_request(
    request: Mapping[str, Any], items: Sequence[MediaItem], encoded: Encoded, *, rewrite: bool
) -> tuple[dict[str, Any], list[MediaItem]]:
    """The request for PD, and the items whose media it no longer carries.

    Every item that keeps its media carries the uuid that E was given, so that the keys agree.
    """
    if not items:
        return dict(request), []
    bare = bare_items(request, items, encoded) if rewrite else []
    dropped = {item.index for item in bare}
    messages = list(request["messages"])
    for item in items:
        part = without_media(item, encoded.metadata[item.index]) if item.index in dropped else item.part
        message = messages[item.message]
        if message is request["messages"][item.message]:
            message = messages[item.message] = {**message, "content": list(message["content"])}
        message["content"][item.position] = part
    body = {**request, "messages": messages}
    if encoded.params:
        own = request.get("ec_transfer_params")
        body["ec_transfer_params"] = {**(own if isinstance(own, dict) else {}), **encoded.params}
    return body, bare


def bare_items(request: Mapping[str, Any], items: Sequence[MediaItem], encoded: Encoded) -> list[MediaItem]:
    """The items that can go without their media.

    vLLM refuses a request that mixes media and embeddings of one modality, and one whose embeddings
    have different fields, so a modality goes without media as a whole or not at all. Beam search
    reads an item again for every step, long after its announced reads; audio taken from a video needs
    the video. Both keep everything.
    """
    if request.get("use_beam_search") or takes_audio_from_video(request):
        return []
    fields: dict[str, set[frozenset[str]]] = {}
    for item in items:
        fields.setdefault(item.modality, set()).add(frozenset(encoded.metadata.get(item.index, ())))
    bare = {modality for modality, seen in fields.items() if len(seen) == 1 and all(seen)}
    return [item for item in items if item.modality in bare]


def without_media(item: MediaItem, metadata: Mapping[str, Any]) -> dict[str, Any]:
    """The part that stands for an item whose embedding comes through the connector. Fields that
    vLLM does not know go to the chat template, so they are kept."""
    kept = {name: value for name, value in item.part.items() if name not in ("type", "detail", item.field)}
    kind = f"{item.modality}_embeds"
    return {**kept, "type": kind, kind: dict(metadata), "uuid": item.uuid}

"""The media items of a chat request, and the key (`uuid`) by which E and PD both know each."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from proxy.errors import ProxyError

# The order matters: it is the order in which vLLM looks for these fields in a part with a uuid.
MODALITY_OF_FIELD = {"image_url": "image", "audio_url": "audio", "input_audio": "audio", "video_url": "video"}
PROCESSOR_OPTIONS = ("mm_processor_kwargs", "media_io_kwargs")
LARGEST_GRID = 1 << 20  # patches of one item: a picture of 14,000 x 14,000 pixels has as many


@dataclass(frozen=True)
class MediaItem:
    """One occurrence of an image, video or audio clip in the request.

    `index` counts the occurrences through the whole request, in order: the order of vLLM's
    `mm_features`. `part` is a copy of the content part, with the uuid.
    """

    index: int
    message: int
    position: int
    field: str
    modality: str
    uuid: str
    part: dict[str, Any]


def find_items(request: Mapping[str, Any], *, url_salt: str | None = None) -> list[MediaItem]:
    """Every media item, each with a uuid: the user's own, or one made from the content.

    With `url_salt`, media named by a remote URL gets a key of this request only, because what is
    behind a URL can change while the URL stays.
    """
    options = {name: request[name] for name in PROCESSOR_OPTIONS if request.get(name)}
    items: list[MediaItem] = []
    for message, position, part in _parts(request):
        field = next((name for name in MODALITY_OF_FIELD if name in part), None)
        if field is None:
            continue
        modality = MODALITY_OF_FIELD[field]
        uuid = part.get("uuid")
        if uuid is None:
            uuid = content_uuid(modality, media_of(part[field]), options, url_salt=url_salt)
        items.append(
            MediaItem(
                index=len(items),
                message=message,
                position=position,
                field=field,
                modality=modality,
                uuid=str(uuid),
                part={**part, "uuid": str(uuid)},
            )
        )
    return items


def brings_embeddings(request: Mapping[str, Any]) -> bool:
    """Whether the client itself sent media without its content, as vLLM's `image_embeds` and the like."""
    return any(str(part.get("type", "")).endswith("_embeds") for _, _, part in _parts(request))


def check_grids(request: Mapping[str, Any]) -> None:
    """ProxyError for a grid that nobody's media could have: vLLM's front end makes a placeholder for
    every patch before it compares the request with its limits, and dies of it."""
    for message, position, part in _parts(request):
        kind = str(part.get("type", ""))
        fields = part.get(kind) if kind.endswith("_embeds") else None
        for name, value in fields.items() if isinstance(fields, dict) else ():
            if "grid" in name and any(_patches(grid) > LARGEST_GRID for grid in _grids(value)):
                raise ProxyError(
                    400,
                    f"messages[{message}].content[{position}] has {name} {str(value)[:80]}; "
                    f"an item has at most {LARGEST_GRID} patches.",
                    kind="BadRequestError",
                    param="messages",
                )


def _grids(value: Any) -> Iterator[list[Any]]:
    """The (time, height, width) triples of a grid, flat or nested."""
    if not isinstance(value, list):
        return
    if any(isinstance(part, list) for part in value):
        for part in value:
            yield from _grids(part)
    else:
        yield from (value[start : start + 3] for start in range(0, len(value), 3))


def _patches(grid: list[Any]) -> float:
    return math.prod(max(1.0, abs(size)) for size in grid if isinstance(size, (int, float)))


def takes_audio_from_video(request: Mapping[str, Any]) -> bool:
    """Whether vLLM makes an audio item of every video, so that the engines see more than was sent."""
    options = request.get("mm_processor_kwargs")
    return isinstance(options, dict) and bool(options.get("use_audio_in_video"))


def media_of(value: Any) -> Any:
    """What tells one item from another: the URL, or the inline data with its format."""
    if isinstance(value, dict):
        if "url" in value:
            return value["url"]
        return {name: value.get(name) for name in ("data", "format")}
    return value


def content_uuid(
    modality: str, media: Any, options: Mapping[str, Any], *, url_salt: str | None = None
) -> str:
    """The same media with the same options has the same key; any difference gives another key."""
    remote = isinstance(media, str) and not media.startswith("data:")
    described = [modality, media, dict(options), url_salt if remote else None]
    return hashlib.sha256(json.dumps(described, sort_keys=True, ensure_ascii=True).encode()).hexdigest()


def _parts(request: Mapping[str, Any]) -> Iterator[tuple[int, int, dict[str, Any]]]:
    """Every content part that is an object. A malformed request is PD's to refuse, not ours."""
    messages = request.get("messages")
    for message_index, message in enumerate(messages if isinstance(messages, list) else []):
        content = message.get("content") if isinstance(message, dict) else None
        for part_index, part in enumerate(content if isinstance(content, list) else []):
            if isinstance(part, dict):
                yield message_index, part_index, part

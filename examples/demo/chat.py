"""Chat requests with pictures, sent to a vLLM server or the proxy; and pictures to send."""

from __future__ import annotations

import base64
import io
import json
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .engines import MODEL_NAME

PROMPT = "what is in this image?"


@dataclass(frozen=True)
class Picture:
    """An encoded picture file. ``uuid``, if given, names it towards vLLM."""

    data: bytes
    mime: str
    label: str = ""
    uuid: str | None = None

    def part(self) -> dict[str, Any]:
        url = f"data:{self.mime};base64,{base64.b64encode(self.data).decode()}"
        part: dict[str, Any] = {"type": "image_url", "image_url": {"url": url}}
        return part if self.uuid is None else {**part, "uuid": self.uuid}


def picture(
    seed: int, size: tuple[int, int] = (96, 96), kind: str = "PNG", uuid: str | None = None
) -> Picture:
    """A picture that depends on ``seed`` only: a gradient with some shapes on it."""
    import random

    from PIL import Image, ImageDraw

    draw_from = random.Random(seed)
    image = Image.linear_gradient("L").resize(size).convert("RGB")
    tint = Image.new("RGB", size, tuple(draw_from.randrange(256) for _ in range(3)))
    image = Image.blend(image, tint, 0.5)
    draw = ImageDraw.Draw(image)
    for _ in range(6):
        x, y = draw_from.randrange(size[0]), draw_from.randrange(size[1])
        width, height = draw_from.randrange(8, size[0]), draw_from.randrange(8, size[1])
        colour = tuple(draw_from.randrange(256) for _ in range(3))
        shape = draw_from.choice([draw.ellipse, draw.rectangle])
        shape((x - width // 2, y - height // 2, x + width // 2, y + height // 2), fill=colour)
    out = io.BytesIO()
    image.save(out, kind)
    return Picture(out.getvalue(), f"image/{kind.lower()}", f"{kind} {size[0]}x{size[1]}", uuid)


def picture_file(path: str | Path) -> Picture:
    """A picture of the user's. Raises OSError if it is none that PIL reads."""
    from PIL import Image

    path = Path(path)
    with Image.open(path) as image:
        mime = Image.MIME.get(image.format or "", "image/png")
        label = f"{path.name} {image.width}x{image.height}"
    return Picture(path.read_bytes(), mime, label)


@dataclass(frozen=True)
class Answer:
    """What came back. ``status`` is the HTTP status; the rest is empty unless it is 200."""

    status: int
    tokens: tuple[int, ...]
    text: str
    finish_reason: str | None
    ec_transfer_params: dict[str, Any] | None
    seconds: float
    body: dict[str, Any] = field(repr=False)

    @property
    def ok(self) -> bool:
        return self.status == 200


def messages(pictures: Sequence[Picture | dict[str, Any]], prompt: str = PROMPT) -> list[dict[str, Any]]:
    """One user turn. A dict among the pictures is a ready-made content part."""
    parts = [item.part() if isinstance(item, Picture) else item for item in pictures]
    return [{"role": "user", "content": [*parts, {"type": "text", "text": prompt}]}]


def post(url: str, body: dict[str, Any], timeout: float = 120.0) -> tuple[int, dict[str, Any]]:
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # never through a web proxy
    try:
        with opener.open(request, timeout=timeout) as response:
            return response.status, json.loads(response.read())
    except urllib.error.HTTPError as error:
        text = error.read().decode(errors="replace")
        try:
            parsed = json.loads(text)
        except ValueError:
            parsed = None
        return error.code, parsed if isinstance(parsed, dict) else {"error": text}


def chat(
    url: str,
    pictures: Sequence[Picture | dict[str, Any]] = (),
    prompt: str = PROMPT,
    *,
    max_tokens: int = 8,
    timeout: float = 120.0,
    **fields: Any,
) -> Answer:
    """Send one greedy chat request to the server at ``url`` (its root). Not streamed."""
    body: dict[str, Any] = {
        "model": MODEL_NAME,
        "messages": messages(pictures, prompt),
        "max_tokens": max_tokens,
        "temperature": 0,
        "return_token_ids": True,
        **fields,
    }
    begin = time.monotonic()
    status, answer = post(f"{url}/v1/chat/completions", body, timeout)
    seconds = time.monotonic() - begin
    if status != 200:
        return Answer(status, (), "", None, None, seconds, answer)
    choice = answer["choices"][0]
    return Answer(
        status,
        tuple(choice.get("token_ids") or ()),
        choice["message"].get("content") or "",
        choice.get("finish_reason"),
        answer.get("ec_transfer_params"),
        seconds,
        answer,
    )

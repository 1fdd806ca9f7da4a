"""Takes back what encoders announced for a request that no PD has taken.

Otherwise the embeddings would fill the encoder's arena until `read_timeout_s` has passed. Never to be
used when PD may have begun: PD settles by itself, and a second time takes other requests' announcements.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from proxy.grouping import Encoded

log = logging.getLogger("proxy")
TOKEN = "ec_ipc_token"  # where the ec_ipc connector puts the token of an item


def announcements(encoded: Encoded) -> list[tuple[list[int], int]]:
    """The token of each item and how many reads were announced for it: one per occurrence."""
    found = []
    for entry in encoded.params.values():
        token = entry.get(TOKEN) if isinstance(entry, dict) else None
        if isinstance(token, list):
            indices: Any = entry.get("item_indices")
            found.append((token, max(1, len(indices)) if isinstance(indices, list) else 1))
    return found


async def take_back(encoded: Encoded) -> None:
    """Settle in a thread, and to the end even when the caller is cancelled. Without ec_ipc here, or
    with the encoder on another node, nothing happens: the announcements end at their deadline."""
    if found := announcements(encoded):
        await asyncio.shield(asyncio.to_thread(_settle, found))


def _settle(found: list[tuple[list[int], int]]) -> None:
    try:
        from ec_ipc import settle_token
    except ImportError as error:
        log.debug("announcements are left to their deadline: %s", error)
        return
    for token, n in found:
        try:
            settle_token(token, n)
        except Exception as error:  # PD's answer is what the client must get
            log.warning("an announcement could not be taken back: %s", error)

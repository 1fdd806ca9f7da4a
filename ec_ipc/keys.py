"""Keys: any string, kept as a digest that is bound to what produced the embeddings."""

import functools
import hashlib
import json
from collections.abc import Mapping

from ec_ipc import _core


def fingerprint_digest(fingerprint: Mapping[str, object]) -> bytes:
    """32 bytes that stand for the facts which make embeddings comparable."""
    text = json.dumps(dict(fingerprint), sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.blake2b(text.encode(), digest_size=_core.FINGERPRINT_BYTES).digest()


def key_digest(key: str, fingerprint: bytes) -> bytes:
    """32 bytes of BLAKE2b over the key, keyed by the fingerprint.

    Keys come from users, so two of them must not be able to collide on purpose.
    """
    hasher = _keyed(fingerprint).copy()
    hasher.update(key.encode("utf-8", "surrogatepass"))
    return hasher.digest()


@functools.lru_cache(maxsize=64)
def _keyed(fingerprint: bytes) -> "hashlib.blake2b":
    """A hasher that has taken in the fingerprint: a process has few of those, and many keys."""
    return hashlib.blake2b(key=fingerprint, digest_size=_core.DIGEST_BYTES)

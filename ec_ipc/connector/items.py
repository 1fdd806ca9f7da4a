"""What the schedulers ask of a request's multimodal items. Items are named by vLLM's identifier."""

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ec_ipc.attachment import Token
from ec_ipc.tokens import is_token

if TYPE_CHECKING:
    from vllm.distributed.ec_transfer.ec_connector.utils import PlaceholderMetadataResolver
    from vllm.multimodal.inputs import MultiModalFeatureSpec
    from vllm.v1.request import Request

TOKEN = "ec_ipc_token"  # key of an item's token in ec_transfer_params

# vLLM's stand-in for a hash when neither cache needs one: a counter of this process.
_REQUEST_SCOPED = re.compile(r"(?:.*:)?renderer\d+-mm-\d+-.*")


def is_request_scoped(identifier: str) -> bool:
    """Whether an identifier was made from a request id, and so can never be asked for again."""
    return _REQUEST_SCOPED.fullmatch(identifier) is not None


def needed(
    request: "Request", computed: int, end: int | None = None
) -> Iterator[tuple[int, "MultiModalFeatureSpec"]]:
    """(index, item) for each item with a token at or after ``computed``, and before ``end`` if given."""
    for index, feature in enumerate(request.mm_features):
        start = feature.mm_position.offset
        if start + feature.mm_position.length > computed and (end is None or start < end):
            yield index, feature


def last_position(request: "Request") -> int:
    """The number of tokens after which no item of the request is needed any more."""
    return max((f.mm_position.offset + f.mm_position.length for f in request.mm_features), default=0)


def has_pixels(feature: "MultiModalFeatureSpec", resolver: "PlaceholderMetadataResolver") -> bool:
    """Whether an engine could encode the item itself.

    Without pixels its data is None, or holds nothing but what the placeholders are computed from.
    """
    data = feature.data
    if data is None:
        return False
    carried = {key for key, value in data.get_data().items() if value is not None}
    return not carried <= resolver.fields_for(feature.modality)


def token_of(request: "Request", identifier: str) -> Token | None:
    """The token that E returned for an item, as it reached this engine with the request.

    It comes from the client, so anything that is no token counts as none.
    """
    params: Any = request.ec_transfer_params
    entry = params.get(identifier) if isinstance(params, dict) else None
    token = entry.get(TOKEN) if isinstance(entry, dict) else None
    return Token(*token) if isinstance(token, (list, tuple)) and is_token(token) else None

"""A read in progress: the tensor, and what to do when it is no longer needed."""

from types import TracebackType

import torch


class Lease:
    """A tensor that lies in an arena and stays valid as long as it, or anything that shares its
    storage, is alive.

    The hold belongs to the storage, not to this object: ``release()`` gives up this object's
    reference, and the hold ends when torch frees the storage.
    """

    def __init__(self, tensor: torch.Tensor, key: str, token: tuple[int, int, int]) -> None:
        self._tensor: torch.Tensor | None = tensor
        self.key = key
        self.token = token

    @property
    def tensor(self) -> torch.Tensor:
        """The embedding, in place: shared with every other reader, so never write into it."""
        if self._tensor is None:
            raise ValueError(f"the lease on {self.key!r} has been released; get the key again")
        return self._tensor

    def release(self) -> None:
        """Give the embedding back, unless a tensor that shares its storage lives on. Idempotent."""
        self._tensor = None

    def __enter__(self) -> "Lease":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def __repr__(self) -> str:
        state = "released" if self._tensor is None else f"{tuple(self._tensor.shape)}, {self._tensor.dtype}"
        return f"Lease({self.key!r}, {state})"

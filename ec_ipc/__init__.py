"""Encoder outputs shared between the engines of one node: zero copies, freed by the last reader.

``Store`` and ``Lease`` are imported on first use: they need torch, which the ``ec-ipc`` command does not.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ec_ipc.lease import Lease
    from ec_ipc.store import Store

__all__ = ["Lease", "Store"]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name in __all__:
        from importlib import import_module

        return getattr(import_module(f"ec_ipc.{name.lower()}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

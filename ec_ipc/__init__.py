"""Encoder outputs shared between the engines of one node: zero copies, freed by the last reader.

All names are imported on first use: ``Store`` and ``Lease`` need torch, which the ``ec-ipc`` command and
``settle_token`` do not.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ec_ipc.lease import Lease
    from ec_ipc.store import Store
    from ec_ipc.tokens import settle_token

_MODULES = {"Lease": "lease", "Store": "store", "settle_token": "tokens"}

__all__ = ["Lease", "Store", "settle_token"]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        from importlib import import_module

        return getattr(import_module(f"ec_ipc.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

"""Encoder outputs shared between the engines of one node: zero copies, freed by the last reader."""

from ec_ipc.lease import Lease
from ec_ipc.store import Store

__all__ = ["Lease", "Store"]
__version__ = "0.1.0"

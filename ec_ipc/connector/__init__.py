"""The vLLM connector. Nothing outside this package imports vLLM.

``ECIPCConnector`` is imported on first use: vLLM loads the plugin in every process, early.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ec_ipc.connector.connector import ECIPCConnector

__all__ = ["ECIPCConnector"]


def __getattr__(name: str) -> Any:
    if name == "ECIPCConnector":
        from ec_ipc.connector.connector import ECIPCConnector

        return ECIPCConnector
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

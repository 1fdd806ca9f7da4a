"""The ``vllm.general_plugins`` entry point: makes the name ``ECIPCConnector`` known to vLLM."""

import atexit
import time

NAME = "ECIPCConnector"

EXIT_WAIT_S = 0.5

_registered = False


def register() -> None:
    """Register the connector. vLLM calls this in every process, sometimes more than once."""
    from vllm.distributed.ec_transfer.ec_connector.factory import ECConnectorFactory

    if NAME not in ECConnectorFactory._registry:
        ECConnectorFactory.register_connector(NAME, "ec_ipc.connector", NAME)
    global _registered
    if not _registered:
        _registered = True
        atexit.register(_remove_abandoned)


def _remove_abandoned() -> None:
    """vLLM's front end ends an engine with SIGKILL, so no participant of it can leave; the front end
    itself ends in order. Namespaces in which nobody lives, proved by kernel locks, go with it."""
    from ec_ipc import segment

    end = time.monotonic() + EXIT_WAIT_S  # a killed process may still be on its way out
    while segment.remove_abandoned() and time.monotonic() < end:
        time.sleep(0.02)

"""The ``vllm.general_plugins`` entry point: makes the name ``ECIPCConnector`` known to vLLM."""

import atexit
import os
import time

NAME = "ECIPCConnector"

EXIT_WAIT_S = 0.5
EXIT_LOCK_S = 0.01  # somebody who holds a lock byte is there to remove what is to be removed

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
    itself ends in order. Namespaces in which nobody lives, proved by kernel locks, go with it. Nothing
    tells every front end whether its engine has this connector, so this costs others little: only a
    process of its own group, which may be on its way out after a kill, is waited for."""
    from ec_ipc import segment

    end = time.monotonic() + EXIT_WAIT_S
    while any(map(_is_of_this_group, segment.remove_abandoned(EXIT_LOCK_S))) and time.monotonic() < end:
        time.sleep(0.02)


def _is_of_this_group(pid: int) -> bool:
    try:
        return os.getpgid(pid) == os.getpgrp()
    except OSError:
        return False

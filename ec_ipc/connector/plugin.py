"""The ``vllm.general_plugins`` entry point: makes the name ``ECIPCConnector`` known to vLLM."""

NAME = "ECIPCConnector"


def register() -> None:
    """Register the connector. vLLM calls this in every process, sometimes more than once."""
    from vllm.distributed.ec_transfer.ec_connector.factory import ECConnectorFactory

    if NAME not in ECConnectorFactory._registry:
        ECConnectorFactory.register_connector(NAME, "ec_ipc.connector", NAME)

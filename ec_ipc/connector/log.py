"""Our log lines beside vLLM's: vLLM configures its own logger only."""

import logging


def use_vllm_handlers() -> None:
    """Send what ``ec_ipc`` logs to where vLLM's lines go, at vLLM's level, unless the user set it up."""
    ours, theirs = logging.getLogger("ec_ipc"), logging.getLogger("vllm")
    if ours.handlers or not theirs.handlers:
        return
    for handler in theirs.handlers:
        ours.addHandler(handler)
    ours.setLevel(theirs.level)
    ours.propagate = False

"""Processes end with views and threads of ours alive: cleanly, whatever our threads are doing just then."""

import subprocess
import sys

import pytest

PROGRAM = """
import sys, torch
from ec_ipc import Store, maintenance
maintenance.PERIOD_S = 0.0  # its threads are in the core nearly always
store = Store.open(sys.argv[1], arena="host", arena_bytes=1 << 16)
store.put("k", torch.ones(10), announce=2)
lease = store.get("k")
view = lease.tensor
if sys.argv[2] == "closed":
    store.close()
"""


@pytest.mark.parametrize("store", ["open", "closed"])
def test_a_process_ends_cleanly_with_a_view_alive(namespace: str, store: str) -> None:
    for _ in range(4):
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, namespace, store], capture_output=True, text=True
        )
        assert (done.returncode, done.stderr) == (0, "")

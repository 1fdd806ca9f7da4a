"""``python -m ec_ipc.cli``: the ``ec-ipc`` command of exactly this interpreter."""

from ec_ipc.cli.main import app

app(prog_name="ec-ipc")

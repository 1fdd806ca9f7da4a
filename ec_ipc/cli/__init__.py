"""The ``ec-ipc`` command."""

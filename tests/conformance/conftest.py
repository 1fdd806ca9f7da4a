"""The arenas over which the conformance suite runs. A new kind is one more name here."""

import pytest


@pytest.fixture(params=["host"])
def kind(request: pytest.FixtureRequest) -> str:
    """The kind of arena."""
    return str(request.param)

"""Fixtures of the tests with real engines. See harness.py for what they give."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # for the package "examples"

if importlib.util.find_spec("vllm") is None:
    collect_ignore_glob = ["test_*.py"]
else:
    from harness import Deployment, Deployments, Reference

SHARED = ("llava", "qwen3vl")  # the fixtures of shared deployments


left_out: list[str] = []


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--scenarios", action="store_true", help="also the tests that are marked long")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "long: starts engines for one scenario; needs --scenarios")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """What was left out is said by name."""
    for name in left_out:
        terminalreporter.write_line(f"NOT RUN without --scenarios: {name}")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests that share engines run one after the other: those are started once."""
    here = Path(__file__).parent
    if not config.getoption("--scenarios", default=False):
        long = [item for item in items if item.get_closest_marker("long")]
        left_out.extend(item.nodeid for item in long)
        config.hook.pytest_deselected(items=long)
        items[:] = [item for item in items if item not in long]
    places = [place for place, item in enumerate(items) if here in item.path.parents]
    ordered = sorted((items[place] for place in places), key=_group)
    for place, item in zip(places, ordered, strict=True):
        items[place] = item


def _group(item: pytest.Item) -> int:
    names = getattr(item, "fixturenames", ())
    shared = [number for number, name in enumerate(SHARED) if name in names]
    return shared[0] if shared else len(SHARED)


@pytest.fixture(scope="session")
def deployments(reference: Reference) -> Iterator[Deployments]:
    """Starts deployments: ``get`` a shared one, or a ``private`` one."""
    all_of_them = Deployments(reference)
    try:
        yield all_of_them
    finally:
        all_of_them.close()
    assert not all_of_them.left_behind()


@pytest.fixture(scope="session")
def reference() -> Iterator[Reference]:
    """``reference(deployment, request)``: the tokens of one ordinary engine."""
    engine = Reference()
    yield engine
    engine.close()


@pytest.fixture
def llava(deployments: Deployments) -> Deployment:
    """E, PD and proxy with the LLaVA model; shared, idle when the test begins."""
    return idle(deployments.get("llava"))


@pytest.fixture
def qwen3vl(deployments: Deployments) -> Deployment:
    """E, PD and proxy with the Qwen3-VL model; shared, idle when the test begins."""
    return idle(deployments.get("qwen3vl"))


def idle(deployment: Deployment) -> Deployment:
    deployment.wait_until_idle()
    return deployment

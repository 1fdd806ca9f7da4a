"""The documents: every block is run or says that it is not; what they name exists."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main
from documents import DOCS, NAMING_COMMANDS, REPO, Block, NotMarked, blocks

from ec_ipc import names, segment
from ec_ipc.cli.main import app
from ec_ipc.connector import config
from ec_ipc.connector.metrics import COUNTERS, GAUGES, HISTOGRAMS, PREFIX, TALLIES

ALL = [block for path in DOCS for block in blocks(path)]
SOURCES = [
    *(REPO / "ec_ipc").rglob("*.py"),
    *(REPO / "csrc").glob("*"),
    *(REPO / "examples" / "proxy").glob("*.py"),
]


@pytest.fixture
def inhabited(namespace: str) -> Iterator[str]:
    """The namespace of a living participant, as the blocks find it."""
    joined = segment.join(namespace, fingerprint={"model": "m"}, max_items=16, role="e.worker")
    yield namespace
    segment.leave(joined, namespace)


@pytest.mark.parametrize("block", [b for b in ALL if b.exits], ids=str)
def test_a_documented_block_runs(block: Block, inhabited: str) -> None:
    commands = {"bash": ["bash", "-euo", "pipefail", "-c"], "python": [sys.executable, "-c"]}
    bin_folder = str(Path(sys.executable).parent)
    environ = {**os.environ, "NAMESPACE": inhabited, "PATH": f"{bin_folder}:{os.environ['PATH']}"}
    environ.pop("MAKEFLAGS", None)
    done = subprocess.run(
        [*commands[block.language], block.text], cwd=REPO, env=environ, capture_output=True, text=True
    )
    assert done.returncode in block.exits, f"{block} ended with {done.returncode}\n{done.stdout}{done.stderr}"
    if block.language == "python" and "arena_bytes(tokens" in block.text:
        check_table(done.stdout)


def check_table(printed: str) -> None:
    """The table of arena sizes is what the block prints."""
    table = (REPO / "docs" / "operations.md").read_text()
    for line in printed.splitlines():
        model, _, sizes = line.partition(": ")
        one, hundred = sizes.split(", ")
        assert re.search(rf"\| {re.escape(model)} \|.*\| {one} \| {hundred} \|", table), line


def test_some_blocks_are_run_and_some_are_not() -> None:
    assert {block.language for block in ALL if block.exits} == {"bash", "python"}
    assert any(not block.exits for block in ALL)


def test_a_block_without_a_mark_is_found(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("Text.\n\n```bash\ntrue\n```\n")
    with pytest.raises(NotMarked, match=r"a\.md:3"):
        blocks(tmp_path / "a.md")
    (tmp_path / "a.md").write_text("<!-- run: exits 0 or 1 -->\n```bash\nfalse\n```\n\n```json\n{}\n```\n")
    (block,) = blocks(tmp_path / "a.md")
    assert block.exits == {0, 1}


@pytest.mark.parametrize("path", NAMING_COMMANDS, ids=lambda p: str(p.relative_to(REPO)))
def test_the_commands_that_a_document_names_exist(path: Path) -> None:
    commands: dict[str, Any] = vars(typer.main.get_command(app))["commands"]
    for name, rest in re.findall(
        r"\bec-ipc ([a-z]+)((?: +(?:--[a-z-]+|[A-Z.]+|\"?\$?\w+\"?))*)", path.read_text()
    ):
        assert name in commands, f"ec-ipc {name}"
        known = {option for parameter in commands[name].params for option in parameter.opts}
        unknown = set(re.findall(r"--[a-z-]+", rest)) - known
        assert not unknown, f"ec-ipc {name} {unknown}"
    targets = re.findall(r"^([a-z0-9-]+):", (REPO / "Makefile").read_text(), re.MULTILINE)
    for target in re.findall(r"`make ([a-z0-9-]+)", path.read_text()):
        assert target in targets, f"make {target}"


@pytest.mark.parametrize("path", DOCS, ids=lambda p: p.name)
def test_the_files_that_a_document_names_exist(path: Path) -> None:
    for name in re.findall(r"`((?:ec_ipc|csrc|tests|examples|docs|connector)/[\w./*-]+)`", path.read_text()):
        inside = f"ec_ipc/{name}" if name.startswith("connector/") else name
        assert list(REPO.glob(inside.rstrip("/"))), name
    for name in re.findall(r"\b([\w-]+\.md)\b", path.read_text()):
        assert (REPO / name).exists() or (REPO / "docs" / name).exists(), name


def test_the_table_of_metrics_is_complete() -> None:
    text = (REPO / "docs" / "operations.md").read_text()
    there = {f"{name}_total" for name in {**COUNTERS, **TALLIES}} | set(GAUGES) | set(HISTOGRAMS)
    assert set(re.findall(rf"^\| `{PREFIX}(\w+)`", text, re.MULTILINE)) == there


def test_the_messages_that_troubleshooting_quotes_are_said() -> None:
    """What stands in quotes in a first column is a part of a message in the sources, "..." being anything."""
    said = "\n".join(re.sub(r'"\s*\n\s*f?"', "", path.read_text(errors="replace")) for path in SOURCES)
    rows = re.findall(r"^\| (.*?) \|", (REPO / "docs" / "troubleshooting.md").read_text(), re.MULTILINE)
    quoted = [quote for row in rows for quote in re.findall(r'"([^"]+)"', row)]
    assert len(quoted) > 10
    for quote in quoted:
        for part in filter(None, (part.strip(" ():") for part in quote.split("..."))):
            assert part in said, f"nothing says {part!r}"


def test_the_keys_of_the_configuration_in_the_readme_are_all_there() -> None:
    text = (REPO / "README.md").read_text()
    assert set(re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE)) == set(config._TYPES)
    assert names.segment_name("x").startswith("/ec_ipc.")


def test_the_tests_that_promises_name_exist() -> None:
    design = (REPO / "DESIGN.md").read_text()
    table = "\n".join(line for line in design.splitlines() if re.match(r"\| \d+ \|", line))
    named = {name.strip("`") for name in re.findall(r"`[^`]+`", table)}
    assert len(named) > 30
    sources = [path.read_text() for kind in ("*.py", "*.cpp") for path in (REPO / "tests").rglob(kind)]
    makefile = (REPO / "Makefile").read_text()
    for name in named:
        if name.startswith("make "):
            assert re.search(rf"^{name.removeprefix('make ')}: ", makefile, re.MULTILINE), name
        elif "/" in name:
            assert (REPO / name).exists(), name
        else:
            assert any(re.search(rf"\b(test_)?{name}\b", source) for source in sources), name

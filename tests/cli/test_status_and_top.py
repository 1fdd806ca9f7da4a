"""``status`` and ``top``: what they show, and that one bad segment does not hide the others."""

import json
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from cli_support import Participants, run
from typer.testing import CliRunner

import ec_ipc
from ec_ipc import Store, names
from ec_ipc.cli import status
from ec_ipc.cli.main import app
from ec_ipc.cli.top_frames import RATES, Look, _rates, growth, hit_ratio
from ec_ipc.errors import SegmentError


@pytest.fixture
def unreadable(namespace: str, cleared: Callable[[str], Path], participants: Participants) -> str:
    """A namespace of another layout version."""
    name = f"{namespace}.old"
    path = cleared(name)
    participants(name)
    with path.open("r+b") as file:
        file.seek(8)
        file.write(struct.pack("=Q", 99))
    return name


def test_no_namespace_is_no_error(namespace: str) -> None:
    done = run("status", "--namespace", namespace, "--json")
    assert (done.code, json.loads(done.out)) == (0, {"namespaces": []})
    assert "no namespace" in run("status", "--namespace", namespace).out
    assert "no namespace" in run("top", "--once", "--namespace", namespace, "--interval", "0.1").out


def test_why_nothing_is_shown_is_true(
    namespace: str, unreadable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(names, "namespaces", lambda: [unreadable])  # and nobody else's
    for command in (["status"], ["top", "--once", "--interval", "0.1"]):
        done = CliRunner().invoke(app, command)
        assert done.exit_code == 0
        assert "no namespace of this user can be read" in done.output and "exists" not in done.output
        done = CliRunner().invoke(app, [*command, "--namespace", unreadable])
        assert f"namespace {unreadable} cannot be read" in done.output
        done = CliRunner().invoke(app, [*command, "--namespace", namespace])
        assert f"no namespace {namespace} exists now" in done.output and "left out" not in done.output


def test_status_is_for_people(namespace: str) -> None:
    with Store.open(namespace, arena="host", arena_bytes=1 << 20) as store:
        store.put("a", torch.zeros(1 << 18, dtype=torch.uint8), announce=1)
        done = run("status", "--namespace", namespace)
        fingerprint = store.segment.fingerprint.hex()[:16]
        assert f"{fingerprint}..., layout {store.segment.layout_version}" in done.out
        assert "host on cpu, 256 KiB of 1.0 MiB used" in done.out
        (line,) = [line for line in done.out.splitlines() if "bytes_published" in line]
        assert line.strip(" │").split() == ["bytes_published", "│", "256", "KiB"]
        store.settle("a")


def test_a_segment_that_cannot_be_read_is_named_and_left_out(
    namespace: str, unreadable: str, participants: Participants
) -> None:
    participants(namespace)
    for command in (("status", "--json"), ("status",), ("top", "--once", "--interval", "0.1")):
        done = run(*command)
        assert done.code == 0, done.err
        assert f"namespace {unreadable} is left out" in done.err and "99" in done.err
        assert namespace in done.out and unreadable not in done.out
    report = json.loads(run("status", "--json").out)
    assert namespace in [found["name"] for found in report["namespaces"]]


def test_asking_for_a_segment_that_cannot_be_read_fails(unreadable: str) -> None:
    done = run("status", "--namespace", unreadable, "--json")
    assert (done.code, json.loads(done.out)) == (1, {"namespaces": []})
    with pytest.raises(SegmentError):
        status.collect(unreadable)


def test_top_shows_arena_holds_entries_and_hit_ratio(namespace: str) -> None:
    with Store.open(namespace, arena="host", arena_bytes=1 << 20, role="e.worker") as store:
        store.put("a", torch.zeros(1 << 18, dtype=torch.uint8), announce=2)
        lease = store.get("a")
        assert lease is not None and store.get("b") is None
        done = run("top", "--once", "--namespace", namespace, "--interval", "0.1", COLUMNS="120")
        assert done.code == 0, done.err
        words = done.out
        assert f"namespace {namespace}" in words
        assert "256 KiB of 1.0 MiB, 25 %" in words
        assert "entries 1 ready, 0 writing" in words and "holds 1, announced 1" in words
        assert "hit ratio - now, 50 % since the start (1 reads, 1 misses)" in words
        (line,) = [line for line in words.splitlines() if "e.worker" in line]
        assert line.split()[-2:] == ["alive", "1"]
        lease.release()
        store.settle("a")


def test_rates_are_the_growth_between_two_looks() -> None:
    def look(published: int, misses: int, at: float) -> Look:
        return Look({"counters": {"published": published, "reads": 0, "misses": misses}}, {}, at)

    assert growth(look(3, 1, 0), look(5, 1, 1)) == {"published": 2, "reads": 0, "misses": 0}
    assert growth(look(30, 1, 0), look(5, 2, 1))["published"] == 5, "the namespace was made anew"
    assert hit_ratio({"reads": 3, "misses": 1}) == "75 %" and hit_ratio({"reads": 0, "misses": 0}) == "-"


def test_the_rates_fit_a_terminal_of_80_columns() -> None:
    counters = dict.fromkeys((*(counter for counter, _ in RATES), "bytes_published"), 0)
    grown = {name: 12_345_678 for name in counters}
    lines = _rates(Look({"counters": counters}, {}, 0), Look({"counters": grown}, {}, 100)).plain.splitlines()
    assert len(lines) == 2 and max(map(len, lines)) <= 80
    assert lines[0].startswith("published 123456.8/s, reads") and lines[1].startswith("freed 123456.8/s")


def test_reap_goes_on_after_a_namespace_that_it_cannot_read(
    namespace: str, unreadable: str, participants: Participants, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = participants(namespace)
    process.kill()
    process.wait()
    monkeypatch.setattr(names, "namespaces", lambda: [unreadable, namespace])  # and nobody else's
    done = CliRunner().invoke(app, ["reap"])
    assert done.exit_code == 1 and unreadable in done.output
    assert f"{namespace}: nobody lived in it; removed" in done.output


@pytest.mark.parametrize("command", ["status", "top", "doctor", "reap", "reset"])
def test_each_command_says_what_its_exit_codes_mean(command: str) -> None:
    assert "Exit codes" in run(command, "--help").out


def test_the_help_is_plain_text_and_the_version_is_known() -> None:
    assert "`" not in run("--help").out
    assert "Exit codes" in run("--help").out
    done = run("--version")
    assert (done.code, done.out) == (0, f"ec-ipc {ec_ipc.__version__}\n")


def test_a_wrong_command_line_ends_with_2() -> None:
    assert run("reset").code == 2 and run("nothing").code == 2


def test_shell_completion_is_there() -> None:
    done = run("--show-completion", "bash", _TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION="1")
    assert done.code == 0 and "complete" in done.out

"""tools/gpu_check.py where there is no GPU: what it says, and how it reads what its stages leave."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

REPO = Path(__file__).parents[2]

REPORT = """<testsuites><testsuite>
<testcase classname="tests.gpu.test_a" name="passes"/>
<testcase classname="tests.gpu.test_a" name="fails"><failure message="no"/></testcase>
<testcase classname="tests.gpu.test_a" name="is left out"><skipped message="needs two GPUs"/></testcase>
</testsuite></testsuites>"""


@pytest.fixture
def gpu_check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("OUT", str(tmp_path))
    spec = importlib.util.spec_from_file_location("gpu_check", REPO / "tools" / "gpu_check.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "gpu_check", module)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "WORK", tmp_path)
    return module


def test_all_stages_together_end_within_eight_minutes(gpu_check: Any) -> None:
    build_and_facts_s = 90 + 40
    assert build_and_facts_s + sum(stage.limit_s for stage in gpu_check.stages()) <= 480


def test_every_file_that_a_stage_runs_is_there(gpu_check: Any) -> None:
    for stage in gpu_check.stages():
        for word in stage.command:
            if word.startswith("tests/"):
                assert (REPO / word).exists(), word


def test_what_was_not_run_is_said_and_what_failed_fails(gpu_check: Any, tmp_path: Path) -> None:
    (tmp_path / "streams.xml").write_text(REPORT)
    outcome = gpu_check.tests_outcome("streams", 1.0, 1, "")
    assert not outcome.ok
    assert (outcome.passed, outcome.failed) == (1, ["test_a::fails"])
    assert outcome.not_run == ["test_a::is left out: needs two GPUs"]
    text = gpu_check.summary({"date": "2026-01-01", "gpu": "card"}, [outcome])
    assert "**not run**: test_a::is left out: needs two GPUs" in text and "failed: test_a::fails" in text


def test_a_stage_of_which_nothing_ran_has_failed(gpu_check: Any, tmp_path: Path) -> None:
    skipped = REPORT.replace('<failure message="no"/>', "<skipped/>").replace(
        'name="passes"/>', 'name="p"><skipped/></testcase>'
    )
    for name, ok in (("streams", False), ("two_gpus", True)):
        (tmp_path / f"{name}.xml").write_text(skipped)
        assert gpu_check.tests_outcome(name, 1.0, 0, "").ok is ok


def test_a_stage_at_its_time_limit_says_what_it_had(gpu_check: Any) -> None:
    output = "tests/gpu/test_a.py::one PASSED [ 50%]\ntests/gpu/test_a.py::two "
    outcome = gpu_check.tests_outcome("load", 60.0, None, output)
    assert not outcome.ok and outcome.passed == 1
    assert outcome.said == "the time limit, in tests/gpu/test_a.py::two"


def test_without_a_gpu_the_gpu_tests_are_left_out_by_name() -> None:
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", "tests/gpu/test_load.py"]
    done = subprocess.run(command, cwd=REPO, capture_output=True, text=True)
    assert "not run: " in done.stdout or " passed" in done.stdout


def test_where_nothing_can_be_checked_the_results_are_not_ok(
    gpu_check: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def build(check: Any) -> None:
        check.note(gpu_check.Outcome("build", True, 1.0, "ec_ipc can be imported"))

    monkeypatch.setattr(gpu_check, "build", build)
    monkeypatch.setattr(gpu_check, "facts", lambda check: "there is no GPU")
    assert gpu_check.main() == gpu_check.NOTHING_TO_CHECK
    results = json.loads((tmp_path / "results.json").read_text())
    assert results["ok"] is False and results["facts"]["obstacle"] == "there is no GPU"
    assert "there is no GPU" in (tmp_path / "summary.md").read_text()

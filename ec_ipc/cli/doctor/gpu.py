"""The GPUs: driver, peer access, MIG, CuPy. Asked in a process of its own."""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from ec_ipc.cli.doctor.finding import Finding, Level
from ec_ipc.cli.doctor.software import cupy_majors, installed

if TYPE_CHECKING:
    from ec_ipc.cli.doctor.host import Host

HOST_ARENA = "set arena to 'host' in ec_connector_extra_config (auto does so by itself)"

# The driver's own library, without a context on any GPU.
PROBE = """
import ctypes, json
answer = {"driver": 0, "names": [], "peers": []}
try:
    cuda = ctypes.CDLL("libcuda.so.1")
except OSError as error:
    answer["absent"] = str(error)
else:
    number = ctypes.c_int()
    code = cuda.cuInit(0)
    if code:
        answer["error"] = f"cuInit failed with error {code}"
    elif cuda.cuDriverGetVersion(ctypes.byref(number)) == 0:
        answer["driver"] = number.value
        cuda.cuDeviceGetCount(ctypes.byref(number))
        devices = []
        for ordinal in range(number.value):
            device, name = ctypes.c_int(), ctypes.create_string_buffer(128)
            cuda.cuDeviceGet(ctypes.byref(device), ordinal)
            cuda.cuDeviceGetName(name, 128, device)
            devices.append(device)
            answer["names"].append(name.value.decode(errors="replace"))
        for one in devices:
            row = []
            for other in devices:
                can = ctypes.c_int(1)
                if one.value != other.value:
                    cuda.cuDeviceCanAccessPeer(ctypes.byref(can), one, other)
                row.append(bool(can.value))
            answer["peers"].append(row)
print(json.dumps(answer))
"""

# What the CUDA arena will do, tried: CuPy is imported there and nowhere else.
ARENA_PROBE = """
import json
from ec_ipc import cuda_probe
print(json.dumps({"obstacle": cuda_probe.obstacle()}))
"""


def check(
    host: "Host",
    probe: Callable[[str], dict[str, Any]] | None = None,
    version_of: Callable[[str], str | None] = installed,
) -> Iterator[Finding]:
    """What a CUDA arena needs. Without a GPU the host arena is used, and nothing of it matters."""
    ask = probe or host.probe
    found = ask(PROBE)
    if "absent" in found:
        yield Finding("gpu", Level.INFO, "no CUDA driver here: only the host arena can be used")
        return
    if "unasked" in found:
        yield Finding(
            "gpu",
            Level.WARNING,
            f"whether there is a GPU could not be asked: {found['error']}",
            "run 'ec-ipc doctor' as the user of the engines, with their Python; the host arena needs no GPU",
        )
        return
    if "error" in found or not found.get("names"):
        reason = found.get("error", "the driver sees no GPU")
        yield Finding(
            "gpu",
            Level.WARNING,
            f"the CUDA driver is there but cannot be used: {reason}",
            "check nvidia-smi and CUDA_VISIBLE_DEVICES (docker: --gpus all); the host arena works without",
        )
        return
    driver = divmod(found["driver"], 1000)[0], found["driver"] % 1000 // 10
    yield Finding(
        "gpu", Level.OK, f"driver for CUDA {driver[0]}.{driver[1]}; GPUs: {', '.join(found['names'])}"
    )
    yield from _mig(host, found["names"])
    yield from _peers(found["peers"])
    matches = list(_cupy(driver[0], cupy_majors(version_of)))
    yield from matches
    if all(finding.level is Level.OK for finding in matches):
        yield from _arena(ask(ARENA_PROBE))


def _mig(host: "Host", names: list[str]) -> Iterator[Finding]:
    visible = host.environ.get("CUDA_VISIBLE_DEVICES", "")
    if any(" MIG " in name for name in names) or "MIG-" in visible:
        yield Finding(
            "gpu", Level.WARNING, "MIG slices are in use, between which there is no CUDA IPC", HOST_ARENA
        )


def _peers(matrix: list[list[bool]]) -> Iterator[Finding]:
    if len(matrix) < 2:
        return
    rows = "; ".join(
        f"{i}: " + " ".join("yes" if can else "no" for can in row) for i, row in enumerate(matrix)
    )
    apart = [f"{i} and {j}" for i, row in enumerate(matrix) for j, can in enumerate(row) if i < j and not can]
    if apart:
        yield Finding(
            "gpu",
            Level.WARNING,
            f"no peer access between GPUs {', '.join(apart)} (matrix {rows}): a CUDA arena on one cannot be "
            "read on the other",
            f"place E and PD on GPUs that reach each other, or {HOST_ARENA}",
        )
    else:
        yield Finding("gpu", Level.OK, f"peer access between all GPUs ({rows})")


def _cupy(driver: int, majors: dict[int, str]) -> Iterator[Finding]:
    extra = f"pip install 'ec-ipc[cuda{driver}]'" if driver >= 12 else "update the driver to CUDA 12 or newer"
    if not majors:
        yield Finding(
            "cupy",
            Level.WARNING,
            "CuPy is not installed, so there is no CUDA arena",
            f"{extra}, or {HOST_ARENA}",
        )
    elif len(majors) > 1:
        names = ", ".join(f"cupy-cuda{major}x {version}" for major, version in majors.items())
        yield Finding(
            "cupy",
            Level.PROBLEM,
            f"several builds of CuPy overwrite each other: {names}",
            "uninstall all but one",
        )
    else:
        ((major, version),) = majors.items()
        if major > driver:
            yield Finding(
                "cupy",
                Level.PROBLEM,
                f"cupy-cuda{major}x {version} needs a driver for CUDA {major}, this one is for CUDA {driver}",
                f"pip uninstall cupy-cuda{major}x; {extra}",
            )
        else:
            yield Finding("cupy", Level.OK, f"cupy-cuda{major}x {version} fits the driver")


def _arena(answer: dict[str, Any]) -> Iterator[Finding]:
    obstacle = answer.get("obstacle", answer.get("error"))
    if "unasked" in answer:
        text = f"whether a CUDA arena works here could not be tried: {obstacle}"
        yield Finding("gpu", Level.WARNING, text, HOST_ARENA)
    elif obstacle:
        yield Finding("gpu", Level.WARNING, f"a CUDA arena does not work here: {obstacle}", HOST_ARENA)
    else:
        yield Finding("gpu", Level.OK, "a CUDA arena works here: allocation and export were tried")

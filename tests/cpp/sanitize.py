"""Every C++ test and fuzz program under sanitizers; the last line says how many ran.

    python tests/cpp/sanitize.py [JOBS]

AddressSanitizer and UndefinedBehaviourSanitizer over all of them. ThreadSanitizer over all that have no
sanitizer of their own: what matters to it are test_threads, which shares one handle, and test_one_mapping,
where participants share one mapping, for it sees neither other processes nor the kernel's locks.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILDS = {"asan": "address,undefined", "tsan": "thread"}


def run(*command: str) -> str:
    """The output, shown as well; ends everything when the command fails."""
    print("$", *command, flush=True)
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT)
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line)
        print(line, end="", flush=True)
    if process.wait() != 0:
        sys.exit(f"{command[0]} ended with {process.returncode}")
    return "".join(lines)


def programs_under(name: str, sanitizers: str, jobs: str) -> tuple[int, int]:
    """Builds and runs everything; the number of programs and of corruptions."""
    build = f"build/{name}"
    options = ("-DEC_IPC_PYTHON=OFF", "-DEC_IPC_TESTS=ON", f"-DEC_IPC_SANITIZE={sanitizers}")
    run("cmake", "-S", ".", "-B", build, *options)
    run("cmake", "--build", build, "-j", jobs)
    output = run("ctest", "--test-dir", build, "--verbose", "-j", jobs)
    programs = re.search(r"100% tests passed(?:, 0 tests failed)? out of (\d+)", output)
    if programs is None:
        sys.exit("ctest does not say how many programs it ran")
    return int(programs[1]), sum(map(int, re.findall(r"corruptions tried: (\d+)", output)))


def main() -> None:
    jobs = sys.argv[1] if len(sys.argv) > 1 else "2"
    programs, corruptions = {}, 0
    for name, sanitizers in BUILDS.items():
        programs[name], tried = programs_under(name, sanitizers, jobs)
        corruptions += tried
    print(
        f"clean: {programs['asan']} programs under ASan and UBSan, {programs['tsan']} under TSan, "
        f"{corruptions} corruptions tried"
    )


if __name__ == "__main__":
    main()

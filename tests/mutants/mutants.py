"""Faults put into a copy of the core, one at a time; the C++ suites must notice each of them.

    python tests/mutants/mutants.py [--jobs N] [--folder BUILD] [--list] [NAME...]

A mutant is one or more replacements of text that must be there exactly once. Its copy of `csrc/` is
built with the interleaving explorer, or with the C++ unit tests where the fault is in a single function,
and what it was expected to fail at is run first. A mutant that nothing notices is a hole in the tests.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from mutant import Mutant
from rules import MUTANTS

ROOT = Path(__file__).resolve().parents[2]
CSRC = ROOT / "csrc"
TESTS = ROOT / "tests" / "cpp"
COMPILER = os.environ.get("CXX", "g++")
FLAGS = ["-std=c++20", "-O1", "-DNDEBUG", "-U_FORTIFY_SOURCE", "-w", "-pthread", f"-I{TESTS}"]
# The parts of the explorer that use nothing of the core but its layout: built once, and linked last, so
# that an inline function that both have is the mutant's.
FIXED = ["fiber", "world", "main", "truth", "scenarios_of_two", "scenarios_of_three"]
# Every suite but the explorer, for what was not noticed where it was expected.
UNITS = ["test_entry_word", "test_extents", "test_directory", "test_swap", "test_participant", "test_threads"]
# These include headers of the core only.
HEADERS_ONLY = ["test_entry_word", "test_extents"]


class Broken(Exception):
    """A mutant that says nothing: its text is not there, or it does not compile."""


@dataclass
class Result:
    mutant: Mutant
    caught_by: str = ""
    why: str = ""
    broken: str = ""
    tried: list[str] = field(default_factory=list)


def compile_to(target: Path, source: Path, csrc: Path) -> None:
    run = subprocess.run(
        [COMPILER, *FLAGS, f"-I{csrc}", "-c", str(source), "-o", str(target)], capture_output=True, text=True
    )
    if run.returncode != 0:
        raise Broken(f"{source.name} does not compile:\n{run.stderr[:2000]}")


def link(target: Path, objects: list[Path]) -> None:
    subprocess.run([COMPILER, "-pthread", *map(str, objects), "-o", str(target)], check=True)


def copy_with_fault(mutant: Mutant, folder: Path) -> Path:
    csrc = folder / "csrc"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(CSRC, csrc, ignore=shutil.ignore_patterns("bindings*"))
    for file, old, new in mutant.changes:
        path = csrc / file
        text = path.read_text()
        if text.count(old) != 1:
            raise Broken(f"{file} has the text to replace {text.count(old)} times: {old!r}")
        path.write_text(text.replace(old, new))
    return csrc


class FixedObjects:
    """Compiled when the first mutant needs them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._objects: list[Path] = []
        self._one_at_a_time = threading.Lock()

    def get(self) -> list[Path]:
        with self._one_at_a_time:
            if not self._objects:
                objects = [self._folder / f"{stem}.o" for stem in FIXED]
                for stem, target in zip(FIXED, objects, strict=True):
                    compile_to(target, TESTS / "interleave" / f"{stem}.cpp", CSRC)
                self._objects = objects
            return self._objects


def build_explorer(csrc: Path, folder: Path, fixed: list[Path]) -> Path:
    objects: list[Path] = []
    for source in sorted((TESTS / "interleave").glob("*.cpp")):
        if source.stem in FIXED:
            continue
        objects.append(folder / f"{source.stem}.o")
        compile_to(objects[-1], source, csrc)
    link(folder / "interleave", objects + fixed)
    return folder / "interleave"


def build_unit(name: str, csrc: Path, folder: Path) -> Path:
    sources = [TESTS / f"{name}.cpp", TESTS / "main.cpp"]
    if name not in HEADERS_ONLY:
        sources.append(folder / "core.cpp")
        # As one file, which takes a fifth of the time.
        sources[-1].write_text("".join(f'#include "{core.name}"\n' for core in sorted(csrc.glob("*.cpp"))))
    objects = []
    for source in sources:
        objects.append(folder / f"{source.stem}.o")
        if not objects[-1].exists():
            compile_to(objects[-1], source, csrc)
    link(folder / name, objects)
    return folder / name


def fails(command: list[str], patience_s: int) -> str:
    """What it says when it fails; empty when it does not."""
    try:
        run = subprocess.run(command, capture_output=True, text=True, timeout=patience_s)
    except subprocess.TimeoutExpired:
        return "it never ends"
    if run.returncode == 0:
        return ""
    lines = [line for line in run.stdout.splitlines() if line and not line.startswith(("ok", "    "))]
    return "; ".join(lines[:2]) or f"exit {run.returncode}"


def suites_for(mutant: Mutant) -> list[tuple[str, list[str]]]:
    """First what is expected to notice, then everything else."""
    expected = [name for name in mutant.noticed_by if name.startswith("test_")]
    scenarios = [name for name in mutant.noticed_by if name not in expected]
    suites = [("interleave", scenarios)] if scenarios else []
    suites += [(name, []) for name in expected]
    suites += [(name, []) for name in UNITS if name not in expected]
    return [*suites, ("interleave", ["--quick"])]


def try_mutant(mutant: Mutant, build: Path, fixed: FixedObjects) -> Result:
    result = Result(mutant)
    folder = build / mutant.slug
    built: dict[str, Path] = {}
    try:
        csrc = copy_with_fault(mutant, folder)
        for suite, arguments in suites_for(mutant):
            if suite not in built:
                built[suite] = (
                    build_explorer(csrc, folder, fixed.get())
                    if suite == "interleave"
                    else build_unit(suite, csrc, folder)
                )
            result.tried.append(suite)
            if why := fails([str(built[suite]), *arguments], mutant.patience_s):
                result.caught_by, result.why = suite, why
                break
    except Broken as error:
        result.broken = str(error)
    shutil.rmtree(folder, ignore_errors=True)
    return result


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*", help="mutants whose name contains one of these")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 2)
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "mutants")
    parser.add_argument("--list", action="store_true")
    options = parser.parse_args()
    mutants = [m for m in MUTANTS if not options.names or any(n in m.name for n in options.names)]
    if options.list:
        print(*(m.name for m in mutants), sep="\n")
        return 0
    options.folder.mkdir(parents=True, exist_ok=True)
    fixed = FixedObjects(options.folder)

    caught = 0
    with ThreadPoolExecutor(options.jobs) as pool:
        for result in pool.map(lambda m: try_mutant(m, options.folder, fixed), mutants):
            if result.caught_by:
                caught += 1
                print(f"caught    {result.mutant.name}  [{result.caught_by}: {result.why}]", flush=True)
            else:
                print(f"SURVIVED  {result.mutant.name}  {result.broken or result.tried}", flush=True)
    print(f"{caught} of {len(mutants)} mutants caught")
    return 0 if mutants and caught == len(mutants) else 1


if __name__ == "__main__":
    sys.exit(main())

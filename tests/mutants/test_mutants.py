"""A few mutants in every test run; `make mutants` tries them all."""

import subprocess
import sys
from pathlib import Path

import pytest
from mutant import Mutant
from mutants import CSRC
from rules import MUTANTS

HERE = Path(__file__).resolve().parent
# These need small programs only; one of them is noticed by steps put between those of a swap.
CHEAP = ["settle below zero", "unpin on another generation", "the flag is read once, before the word"]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_every_mutant_still_fits_the_core(mutant: Mutant) -> None:
    sources = {file: (CSRC / file).read_text() for file, _, _ in mutant.changes}
    for file, old, new in mutant.changes:
        assert sources[file].count(old) == 1
        sources[file] = sources[file].replace(old, new)


def test_no_two_mutants_share_a_folder() -> None:
    assert len({mutant.slug for mutant in MUTANTS}) == len(MUTANTS)


def test_three_mutants_are_caught(tmp_path: Path) -> None:
    run = subprocess.run(
        [sys.executable, str(HERE / "mutants.py"), "--folder", str(tmp_path), *CHEAP],
        capture_output=True,
        text=True,
    )
    assert run.stdout.splitlines()[-1:] == ["3 of 3 mutants caught"], run.stdout + run.stderr
    assert run.returncode == 0

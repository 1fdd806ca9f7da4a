"""Runs the fuzz programs, each with its share of the corruptions, and says how many were tried in all.

python tests/fuzz/run.py FOLDER CORRUPTIONS [SEED]

The C++ programs are our own mutation loops over random and aimed damages, built with AddressSanitizer and
UndefinedBehaviourSanitizer; no coverage guides them. atheris_segment.py is libFuzzer's, over the parsing of
a segment from Python. Without a SEED each takes a new one and prints it.
"""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

# Under live participants a corruption takes a hundred times as long.
SHARES = {"fuzz_words": 0.3, "fuzz_steps": 0.3, "fuzz_files": 0.3, "fuzz_live": 0.1}
ATHERIS = Path(__file__).with_name("atheris_segment.py")


def corruptions_of(command: list[str], figure: str) -> int:
    """Runs it, shows what it says, and ends everything when it fails."""
    print("$", *command, flush=True)
    run = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    print(run.stdout, end="", flush=True)
    if run.returncode != 0:
        sys.exit(f"{command} ended with {run.returncode}; its first lines have the seed")
    return int(re.findall(figure, run.stdout, re.MULTILINE)[-1])


def main() -> None:
    folder, corruptions, *seed = sys.argv[1:]
    tried = 0
    for name, share in SHARES.items():
        number = max(1, round(int(corruptions) * share))
        program = str(Path(folder).resolve() / name)
        tried += corruptions_of([program, str(number), *seed], r"^corruptions tried: (\d+)$")
    if importlib.util.find_spec("atheris") is None:
        print(f"not run, as atheris is not installed: {ATHERIS.name}")
    else:
        options = [f"-runs={corruptions}", *(f"-seed={number}" for number in seed)]
        tried += corruptions_of([sys.executable, str(ATHERIS), *options], r"^Done (\d+) runs")
    print(f"corruptions tried: {tried}")


if __name__ == "__main__":
    main()

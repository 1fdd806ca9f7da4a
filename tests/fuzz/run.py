"""Runs the fuzz programs, each with its share of the corruptions, and says how many were tried in all.

python tests/fuzz/run.py FOLDER CORRUPTIONS [SEED]

They are our own mutation loops over random and aimed damages, built with AddressSanitizer and
UndefinedBehaviourSanitizer; no coverage guides them. Without a SEED each takes a new one and prints it.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

# Under live participants a corruption takes a hundred times as long.
SHARES = {"fuzz_words": 0.3, "fuzz_steps": 0.3, "fuzz_files": 0.3, "fuzz_live": 0.1}


def corruptions_of(program: Path, corruptions: int, seed: list[str]) -> int:
    """Runs it, shows what it says, and ends everything when it fails."""
    command = [str(program), str(corruptions), *seed]
    print("$", *command, flush=True)
    run = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    print(run.stdout, end="", flush=True)
    if run.returncode != 0:
        sys.exit(f"{program.name} ended with {run.returncode}; its first line has the seed")
    return int(re.findall(r"^corruptions tried: (\d+)$", run.stdout, re.MULTILINE)[-1])


def main() -> None:
    folder, corruptions, *seed = sys.argv[1:]
    tried = sum(
        corruptions_of(Path(folder).resolve() / name, max(1, round(int(corruptions) * share)), seed)
        for name, share in SHARES.items()
    )
    print(f"corruptions tried: {tried}")


if __name__ == "__main__":
    main()

"""What a mutant is."""

from dataclasses import dataclass

WORD = "entry_word.h"
RESERVE = "reserve.h"
DIRECTORY = "directory.h"
INDEX = "directory_index.h"
HOLDS = "holds.h"
RECLAIM = "reclaim.h"
MEMBERSHIP = "membership.h"
LIVENESS = "liveness.cpp"


@dataclass(frozen=True)
class Mutant:
    name: str
    # (file, text that is there once, what stands there instead)
    changes: tuple[tuple[str, str, str], ...]
    # Scenarios of the explorer, or C++ tests, that are expected to fail: they run first.
    noticed_by: tuple[str, ...]
    # After this a suite is taken not to end, which is a failure.
    patience_s: int = 600

    @property
    def slug(self) -> str:
        return "".join(c if c.isalnum() else "_" for c in self.name)

"""Reads the documents: their fenced blocks, what marks them, and the commands they name."""

import re
from dataclasses import dataclass
from pathlib import Path

REPO = Path(__file__).parents[2]
DOCS = sorted((REPO / "docs").glob("*.md"))
NAMING_COMMANDS = [*DOCS, REPO / "README.md", REPO / "DESIGN.md", *(REPO / "examples").rglob("*.md")]

RUNNABLE = ("bash", "python")
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_MARK = re.compile(r"<!-- run(?:: exits ([\d or]+))? -->")
_NOT_RUN = re.compile(r"\*Not run here: .+\.\*")


@dataclass(frozen=True)
class Block:
    """A fenced block. ``exits`` are the statuses it may end with; empty: it is not run, and says so."""

    file: str
    line: int
    language: str
    text: str
    exits: frozenset[int]

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


class NotMarked(AssertionError):
    """A block that is neither run nor says that it is not."""


def blocks(path: Path) -> list[Block]:
    """The bash and python blocks of a document. Raises NotMarked."""
    text = path.read_text()
    found = []
    for match in _FENCE.finditer(text):
        if match[1] not in RUNNABLE:
            continue
        line = text.count("\n", 0, match.start()) + 1
        above = text[: match.start()].rstrip().rpartition("\n")[2]
        mark = _MARK.fullmatch(above)
        if mark is None and not _NOT_RUN.fullmatch(above):
            raise NotMarked(f"{path.name}:{line} is neither marked '<!-- run -->' nor '*Not run here: why.*'")
        statuses = re.findall(r"\d+", (mark[1] or "0") if mark else "")
        found.append(Block(path.name, line, match[1], match[2], frozenset(map(int, statuses))))
    return found

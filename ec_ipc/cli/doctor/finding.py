"""What a check says."""

from dataclasses import dataclass
from enum import Enum


class Level(Enum):
    """How bad it is. Only a problem is something that would break."""

    OK = "ok"
    INFO = "info"
    WARNING = "warning"
    PROBLEM = "problem"


@dataclass(frozen=True)
class Finding:
    """One sentence of one check; a warning or a problem has its remedy."""

    check: str
    level: Level
    text: str
    remedy: str = ""
    namespace: str | None = None

    def as_json(self) -> dict[str, str | None]:
        """As ``ec-ipc doctor --json`` prints it."""
        return {
            "check": self.check,
            "level": self.level.value,
            "text": self.text,
            "remedy": self.remedy,
            "namespace": self.namespace,
        }

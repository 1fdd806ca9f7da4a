"""What the scheduler tells the workers each step, and what they answer. Pickled between processes."""

from dataclasses import dataclass, field

from vllm.distributed.ec_transfer.ec_connector.base import ECConnectorMetadata, ECConnectorWorkerMetadata

from ec_ipc.attachment import Token


@dataclass(frozen=True)
class Load:
    """An item that this step reads. The scheduler holds it until every rank has."""

    identifier: str
    token: Token
    shape: tuple[int, ...]
    dtype: int


@dataclass
class StepMetadata(ECConnectorMetadata):
    """One step's work.

    Attributes:
        step: its number, for what a worker tells of its saves.
        saves: items to publish, each with the number of reads to announce.
        loads: items to read.
        freed: items that vLLM has taken out of its cache since the last step that reached a worker.
    """

    step: int = 0
    saves: dict[str, int] = field(default_factory=dict)
    loads: list[Load] = field(default_factory=list)
    freed: list[str] = field(default_factory=list)


@dataclass
class WorkerReport(ECConnectorWorkerMetadata):
    """What a rank tells of a step.

    Attributes:
        failed: items that it could not load, although the scheduler holds them.
        load_seconds: how long each load took, from the rank that counts reads.
    """

    failed: set[str] = field(default_factory=set)
    load_seconds: list[float] = field(default_factory=list)

    def aggregate(self, other: ECConnectorWorkerMetadata) -> "WorkerReport":
        """What both ranks tell."""
        assert isinstance(other, WorkerReport)
        return WorkerReport(self.failed | other.failed, self.load_seconds + other.load_seconds)

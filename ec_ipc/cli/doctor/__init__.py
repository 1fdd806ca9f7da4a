"""``ec-ipc doctor``: each check a function of a ``Host``, which yields findings with their remedies."""

from collections.abc import Callable, Iterator

from ec_ipc.cli.doctor import elsewhere, gpu, machine, meeting, participants, segments, software
from ec_ipc.cli.doctor.finding import Finding, Level
from ec_ipc.cli.doctor.host import Host
from ec_ipc.names import check_namespace

__all__ = ["CHECKS", "DEFAULT_ARENA_BYTES", "Finding", "Host", "Level", "examine", "failing"]

DEFAULT_ARENA_BYTES = 1_000_000_000  # vLLM's ec_buffer_size

Check = Callable[[Host], Iterator[Finding]]

CHECKS: tuple[Check, ...] = (
    machine.kernel,
    machine.shared_memory,
    machine.user,
    segments.check,
    elsewhere.check,
    participants.spaces,
    participants.engines,
    participants.expandable_segments,
    meeting.check,
    software.vllm,
    gpu.check,
)


def examine(namespace: str | None = None, arena_bytes: int = DEFAULT_ARENA_BYTES) -> list[Finding]:
    """Every finding, in the order of the checks.

    Args:
        namespace: look at the engines of this namespace only.
        arena_bytes: the size of arena that shared memory must have room for.

    Raises:
        ConfigurationError: the namespace cannot be one.
    """
    host = Host(arena_bytes, None if namespace is None else check_namespace(namespace))
    return [finding for check in CHECKS for finding in check(host)]


def failing(strict: bool) -> set[Level]:
    """The levels that make doctor end with 1."""
    return {Level.PROBLEM, Level.WARNING} if strict else {Level.PROBLEM}

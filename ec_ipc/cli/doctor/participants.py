"""The living participants: are they where this process can see them, and what do they say of themselves?"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ec_ipc import notes
from ec_ipc.cli.doctor.finding import Finding, Level
from ec_ipc.segment import CUDA

if TYPE_CHECKING:
    from pathlib import Path

    from ec_ipc._core import ParticipantRecord
    from ec_ipc.cli.doctor.host import Host
    from ec_ipc.cli.doctor.segments import Seen

SPACES = ("pid", "ipc", "mnt")
SHARE = (
    "share both namespaces between the engines (docker: --pid and --ipc=container:NAME or host; Kubernetes: "
    "shareProcessNamespace: true in one pod), or set arena to 'host'"
)


@dataclass
class Living:
    """A participant whose kernel lock is held, and its process, if that can be found here."""

    record: "ParticipantRecord"
    here: bool  # the process of that number here has this very segment mapped
    spaces: dict[str, str] = field(default_factory=dict)
    note: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.record.role} (slot {self.record.slot}, pid {self.record.pid})"


def living(host: "Host", seen: "Seen") -> list[Living]:
    """The participants of a namespace."""
    return [_find(host, seen, record) for record in seen.living()]


def _find(host: "Host", seen: "Seen", record: "ParticipantRecord") -> Living:
    process = host.proc / str(record.pid)
    if not _maps(host, process, seen):
        return Living(record, here=False)
    spaces = {kind: host.link(process / "ns" / kind) for kind in SPACES}
    mine = (n for n in notes.read(record.pid, host.proc) if n.get("namespace") == seen.namespace)
    note = next((n for n in mine if n.get("slot") == record.slot), {})
    return Living(record, here=True, spaces=spaces, note=note)


def _maps(host: "Host", process: "Path", seen: "Seen") -> bool:
    """Whether a process has the segment mapped. A participant is of our user, so this can be read."""
    for line in host.read(process / "maps").splitlines():
        fields = line.split(maxsplit=5)
        if len(fields) == 6 and " ".join(fields[3:5]) == seen.place and seen.path.name in fields[5]:
            return True
    return False


def spaces(host: "Host") -> Iterator[Finding]:
    """Participants in other pid or ipc namespaces: CUDA IPC fails between those, the host arena works."""
    for seen in host.readable:
        found = living(host, seen)
        name = seen.namespace
        cuda = seen.directory is not None and any(a.kind == CUDA for a in seen.directory.arenas())
        level = Level.PROBLEM if cuda else Level.WARNING
        effect = (
            "its CUDA arenas cannot be mapped across" if cuda else "CUDA arenas could not be mapped across"
        )
        for each in found:
            if not each.here:
                yield Finding(
                    "namespaces",
                    level,
                    f"namespace {name}: {each} is alive, but no process {each.record.pid} here has the "
                    f"segment mapped: it runs in another pid namespace (another container); {effect}",
                    SHARE,
                    name,
                )
        here = [each for each in found if each.here]
        for kind in ("pid", "ipc"):
            places = {each.spaces[kind] for each in here if each.spaces[kind]}
            if len(places) > 1:
                who = "; ".join(f"{each} in {each.spaces[kind]}" for each in here)
                text = f"namespace {name}: participants live in several {kind} namespaces ({who}); {effect}"
                yield Finding("namespaces", level, text, SHARE, name)
        if here and len(here) == len(found):
            yield Finding(
                "namespaces", Level.OK, f"namespace {name}: every participant is seen here", "", name
            )


def engines(host: "Host") -> Iterator[Finding]:
    """What the engines' notes say: both caches off, versions that differ, expandable segments."""
    for seen in host.readable:
        name = seen.namespace
        noted = [each for each in living(host, seen) if each.note]
        off = [each for each in noted if each.note.get("both_caches_off")]
        if off:
            yield Finding(
                "caches",
                Level.PROBLEM,
                f"namespace {name}: {', '.join(map(str, off))}: the multimodal processor cache and prefix "
                "caching are both off, so an item without a uuid gets an identifier that no other engine "
                "shares, and is never found (hit rate 0)",
                "send a uuid with each item (examples/proxy does), or turn one of the two on: remove "
                "'--mm-processor-cache-gb 0', or add --enable-prefix-caching",
                name,
            )
        for what in ("vllm", "ec_ipc"):
            versions = {str(each.note[what]) for each in noted if each.note.get(what)}
            if len(versions) > 1:
                yield Finding(
                    "versions",
                    Level.WARNING,
                    f"namespace {name}: its engines run several versions of {what}: "
                    f"{', '.join(sorted(versions))}; identifiers of items may differ",
                    f"install one version of {what} for all engines",
                    name,
                )


def expandable_segments(host: "Host") -> Iterator[Finding]:
    """Memory of torch's expandable segments has no IPC handle; the arena does not come from torch."""
    places = {"this shell": host.environ}
    for seen in host.readable:
        for each in living(host, seen):
            if each.here:
                text = host.read(host.proc / str(each.record.pid) / "environ")
                pairs = (item.partition("=") for item in text.split("\0"))
                places[str(each)] = {key: value for key, _, value in pairs}
    on = [
        place
        for place, environ in places.items()
        if any(
            "expandable_segments:true" in environ.get(key, "").replace(" ", "").lower()
            for key in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
        )
    ]
    if on:
        yield Finding(
            "allocator",
            Level.INFO,
            f"torch's expandable segments are on ({', '.join(on)}); the arena is a block of its own outside "
            "torch's allocator, so they may stay on",
        )

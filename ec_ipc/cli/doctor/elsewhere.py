"""Processes here that are in a namespace of which this /dev/shm knows nothing."""

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ec_ipc.cli.doctor.finding import Finding, Level

if TYPE_CHECKING:
    from ec_ipc.cli.doctor.host import Host

# A line of /proc/<pid>/maps with a segment, not an arena: device and inode, owner, namespace, removed or not.
_MAPPED = re.compile(r"^\S+ \S+ \S+ (\S+ \d+) +\S*/ec_ipc\.(\d+)\.([^:\s]+)( \(deleted\))?$", re.MULTILINE)


def check(host: "Host") -> Iterator[Finding]:
    """Engines with another /dev/shm (another container), and those whose segment was removed."""
    known = {seen.place for seen in host.segments}
    said: set[tuple[str, str]] = set()
    for process in sorted(host.proc.glob("[0-9]*")):
        for place, uid, namespace, removed in _MAPPED.findall(host.read(process / "maps")):
            if place in known or host.namespace not in (None, namespace) or int(uid) != host.uid:
                continue
            if (process.name, namespace) in said:
                continue
            said.add((process.name, namespace))
            where = f"namespace {namespace}: process {process.name} lives in it"
            if removed:
                text = f"{where}, but its segment was removed meanwhile, so nobody can join it there"
                remedy = f"restart process {process.name}; remove namespaces with 'ec-ipc reset' only"
            else:
                text = (
                    f"{where} with another /dev/shm (another container), and does not meet the engines here"
                )
                remedy = (
                    "give both containers the same /dev/shm (docker: --ipc=container:NAME or host; "
                    "Kubernetes: one pod with one emptyDir on /dev/shm)"
                )
            yield Finding("elsewhere", Level.WARNING, text, remedy, namespace)

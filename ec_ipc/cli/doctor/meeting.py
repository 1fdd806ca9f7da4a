"""Do producers and consumers meet? Engines that were to share, but are in namespaces of their own."""

import itertools
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ec_ipc.cli.doctor.finding import Finding, Level

if TYPE_CHECKING:
    from ec_ipc.cli.doctor.host import Host
    from ec_ipc.cli.doctor.segments import Seen

CHECK = "meeting"
REMEDIES = {
    "model": "give both engines the same --model string",
    "dtype": "give both engines the same --dtype",
    "revision": "give both engines the same --revision",
    "hf_config": "give both engines the same model files, --hf-overrides and vLLM version",
    "mm_processor_kwargs": "give both engines the same --mm-processor-kwargs",
}


def check(host: "Host") -> Iterator[Finding]:
    """Namespaces with producers only, or consumers only; and the field by which such a pair differs."""
    lonely: list[tuple[Seen, str]] = []
    for seen in host.readable:
        sides = {_side(p.role) for p in seen.living()} - {""}
        if sides in ({"producer"}, {"consumer"}):
            lonely.append((seen, sides.pop()))
    paired: set[str] = set()
    for (one, side), (other, other_side) in itertools.combinations(lonely, 2):
        if side != other_side and _related(one.facts, other.facts):
            paired |= {one.namespace, other.namespace}
            yield _apart(one, side, other, other_side)
    for seen, side in lonely:
        if seen.namespace not in paired:
            absent = "consumer" if side == "producer" else "producer"
            yield Finding(
                CHECK,
                Level.WARNING,
                f"namespace {seen.namespace}: it has a {side}, but no {absent}",
                f"start the {absent} with the same model, dtype and namespace; its log says on one line "
                "which namespace it joined",
                seen.namespace,
            )


def _side(role: str) -> str:
    engine = role.partition(".")[0]
    return {"e": "producer", "pd": "consumer", "both": "both"}.get(engine, "")


def differing(one: dict[str, Any], other: dict[str, Any]) -> list[str]:
    """The fields of two descriptions that are not equal."""
    return sorted(key for key in one.keys() | other.keys() if one.get(key) != other.get(key))


def _related(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether two descriptions are of the same model, be it under another path or name."""

    def last(facts: dict[str, Any]) -> str:
        return os.path.basename(str(facts.get("model", "")).rstrip("/"))

    same_files = bool(one.get("hf_config")) and one.get("hf_config") == other.get("hf_config")
    return same_files or (last(one) == last(other) != "")


def _apart(one: "Seen", side: str, other: "Seen", other_side: str) -> Finding:
    fields = differing(one.facts, other.facts)
    if fields:
        what = "; ".join(
            f"{field} is {one.facts.get(field)!r} in {one.namespace} and {other.facts.get(field)!r} in "
            f"{other.namespace}"
            for field in fields
        )
        remedy = "; ".join(REMEDIES.get(field, f"give both engines the same {field}") for field in fields)
    else:
        what = "model and dtype agree, only the namespace differs"
        remedy = "give both engines the same namespace in ec_connector_extra_config, or none"
    return Finding(
        CHECK,
        Level.PROBLEM,
        f"the {side} in namespace {one.namespace} and the {other_side} in namespace {other.namespace} run "
        f"the same model and never meet: {what}",
        remedy,
        one.namespace,
    )

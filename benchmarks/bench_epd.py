"""Real engines: time to the first token with ec_ipc, with ECExampleConnector on tmpfs, with one engine.

    python -m benchmarks.bench_epd [--full]

The model has random weights, one layer, and 9 MiB of embeddings an image. All deployments are up at
once and take turns; a picture is fresh (nobody has seen it) or repeated (the same one every time). They
are started several times: which of two equal engines is quicker is settled for as long as they run.
"""

from __future__ import annotations

import itertools
import statistics
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from examples.demo.chat import Picture, picture
from examples.demo.tiny_models import make_model

from .epd_deployments import Deployment, Hooks, Timing, deployments
from .measure import Report, arguments, interleave, ratio, summary

MODEL = "llava-large"
EMBEDDING_BYTES = 576 * 4096 * 4
AT_ONCE = (1, 8)
_numbers = itertools.count(1)


def fresh() -> Picture:
    number = next(_numbers)
    return picture(number, (336, 336), "JPEG", uuid=f"picture-{number}")


class Memory:
    """Samples what each deployment has in use, some times a second, until stopped."""

    PERIOD_S = 0.25

    def __init__(self, all_of_them: list[Deployment]) -> None:
        self.samples: dict[str, list[tuple[float, int, int]]] = {each.name: [] for each in all_of_them}
        self._deployments = all_of_them
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        begin = time.monotonic()
        while not self._stop.wait(self.PERIOD_S):
            for each in self._deployments:
                used, reserved = each.shared_bytes()
                self.samples[each.name].append((round(time.monotonic() - begin, 2), used, reserved))

    def stop(self) -> dict[str, list[tuple[float, int, int]]]:
        self._stop.set()
        self._thread.join()
        return self.samples


def burst(deployment: Deployment, pictures: list[Picture]) -> list[Timing]:
    """One request for each picture, all at once."""
    with ThreadPoolExecutor(len(pictures)) as pool:
        return list(pool.map(lambda one: deployment.ask([one]), pictures))


@dataclass
class Taken:
    """What one load has brought so far, over all boots."""

    spans: dict[str, dict[str, list[float]]] = field(default_factory=dict)  # deployment -> what -> ms a burst
    boots: list[dict[str, float]] = field(default_factory=list)  # deployment -> median TTFT of ec_ipc's
    hooks: dict[str, list[dict[str, dict[str, float]]]] = field(default_factory=dict)

    def add(
        self, bursts: dict[str, list[list[Timing]]], hooks: dict[str, dict[str, dict[str, float]]]
    ) -> None:
        """The bursts of one boot."""
        boot = {
            name: {
                what: [statistics.fmean(getattr(one, what) for one in timings) * 1e3 for timings in taken]
                for what in ("encode", "ttft", "end_to_end")
            }
            for name, taken in bursts.items()
        }
        for name, spans in boot.items():
            for what, numbers in spans.items():
                self.spans.setdefault(name, {}).setdefault(what, []).extend(numbers)
            self.hooks.setdefault(name, []).append(hooks[name])
        self.boots.append(
            {n: round(ratio(s["ttft"], boot["ec_ipc"]["ttft"])["median"], 3) for n, s in boot.items()}
        )

    def result(self) -> dict[str, Any]:
        """Deployment -> what -> summary."""
        ours = self.spans["ec_ipc"]
        return {
            name: {
                **{what: summary(numbers) for what, numbers in spans.items()},
                "ttft_of_ec_ipc": ratio(spans["ttft"], ours["ttft"]),
                "ttft_of_ec_ipc_by_boot": [boot[name] for boot in self.boots],
                "end_to_end_of_ec_ipc": ratio(spans["end_to_end"], ours["end_to_end"]),
                "hooks_us_per_request": mean_of(self.hooks[name]),
            }
            for name, spans in self.spans.items()
        }


def mean_of(boots: list[dict[str, dict[str, float]]]) -> dict[str, dict[str, float]]:
    """Engine -> hook -> microseconds, of those of several boots."""
    return {
        engine: {
            hook: round(statistics.fmean(boot[engine].get(hook, 0.0) for boot in boots), 1)
            for hook in {hook for boot in boots for hook in boot[engine]}
        }
        for engine in boots[0]
    }


def measure(all_of_them: list[Deployment], at_once: int, repeated: bool, rounds: int, taken: Taken) -> None:
    """So many bursts of each deployment, in turns."""
    same = [fresh() for _ in range(at_once)]
    batches = {each.name: iter(lambda: same if repeated else [fresh() for _ in range(at_once)], None)
               for each in all_of_them}  # fmt: skip
    bodies = {each.name: (lambda each=each: burst(each, next(batches[each.name]))) for each in all_of_them}
    interleave(1, bodies)
    before = {each.name: each.hooks() for each in all_of_them}
    bursts = interleave(rounds, bodies)
    requests = rounds * at_once
    taken.add(
        bursts, {each.name: per_request(before[each.name], each.hooks(), requests) for each in all_of_them}
    )


def per_request(
    before: dict[str, Hooks], after: dict[str, Hooks], requests: int
) -> dict[str, dict[str, float]]:
    """Engine -> hook -> microseconds a request, all processes together; "all" is their sum."""
    result: dict[str, dict[str, float]] = {}
    for engine, roles in after.items():
        hooks: dict[str, float] = {}
        for role, totals in roles.items():
            for hook, (spent, _calls) in totals.items():
                earlier = before.get(engine, {}).get(role, {}).get(hook, (0, 0))[0]
                if spent > earlier:
                    hooks[hook] = hooks.get(hook, 0) + (spent - earlier) / 1e3 / requests
        result[engine] = {name: round(spent, 1) for name, spent in hooks.items()}
        result[engine]["all"] = round(sum(hooks.values()), 1)
    return result


def check_answers(all_of_them: list[Deployment]) -> None:
    """One picture, one answer: or the comparison would be of different things."""
    one = fresh()
    answers = {each.name: each.ask([one]).tokens for each in all_of_them}
    if len(set(answers.values())) != 1:
        raise AssertionError(f"the deployments say different things of one picture: {answers}")


def main() -> None:
    options = arguments(__doc__, boots={"type": int, "default": 0, "help": "instead of the usual number"})
    report = Report("bench_epd", "full" if options.full else "short")
    boots = options.boots or (6 if options.full else 3)
    loads = {load: Taken() for load in itertools.product(AT_ONCE, (False, True))}
    for _ in range(boots):
        with deployments(make_model(MODEL)) as all_of_them:
            check_answers(all_of_them)
            memory = Memory(all_of_them)
            for (at_once, repeated), taken in loads.items():
                rounds = (12 if at_once == 1 else 3) * (2 if options.full else 1)
                measure(all_of_them, at_once, repeated, rounds, taken)
            samples = memory.stop()
            resident = {each.name: each.resident_bytes() for each in all_of_them}
    results = {
        f"{at_once} at once, {'repeated' if repeated else 'fresh'}": taken.result()
        for (at_once, repeated), taken in loads.items()
    }
    for load, rows in results.items():
        show(load, rows)
    measured = {"loads": results, "memory": thin(samples), "private_bytes": resident}
    print(report.write(options.out, embedding_bytes=EMBEDDING_BYTES, boots=boots, **measured))


def thin(samples: dict[str, list[tuple[float, int, int]]]) -> dict[str, list[tuple[float, int, int]]]:
    """At most 120 points each, the largest of its neighbours."""
    thinned = {}
    for name, points in samples.items():
        step = len(points) // 120 + 1
        groups = [points[at : at + step] for at in range(0, len(points), step)]
        thinned[name] = [max(group, key=lambda point: point[1]) for group in groups]
    return thinned


def show(load: str, rows: dict[str, Any]) -> None:
    print(f"\n{load}")
    for name, row in rows.items():
        spans = "  ".join(f"{what} {row[what]['median']:.0f} ms" for what in ("encode", "ttft", "end_to_end"))
        hooks = ", ".join(f"{e} {h['all']:.0f} us" for e, h in row["hooks_us_per_request"].items())
        print(
            f"  {name:20} {spans}  TTFT of ec_ipc's {row['ttft_of_ec_ipc']['median']:.2f}  {hooks}",
            flush=True,
        )


if __name__ == "__main__":
    main()

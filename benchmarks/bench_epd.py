"""Real engines: time to the first token with ec_ipc, with ECExampleConnector on tmpfs, with one engine.

    python -m benchmarks.bench_epd [--full]

The model has random weights, one layer, and 9 MiB of embeddings an image. All deployments are up at
once and take turns; a picture is fresh (nobody has seen it) or repeated (the same one every time).
"""

from __future__ import annotations

import itertools
import statistics
import threading
import time
from concurrent.futures import ThreadPoolExecutor
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


def measure(all_of_them: list[Deployment], at_once: int, repeated: bool, rounds: int) -> dict[str, Any]:
    """Deployment -> what -> milliseconds, a number per burst: the mean over its requests."""
    same = [fresh() for _ in range(at_once)]
    batches = {each.name: iter(lambda: same if repeated else [fresh() for _ in range(at_once)], None)
               for each in all_of_them}  # fmt: skip
    bodies = {each.name: (lambda each=each: burst(each, next(batches[each.name]))) for each in all_of_them}
    interleave(1, bodies)
    before = {each.name: each.hooks() for each in all_of_them}
    taken = interleave(rounds, bodies)
    spans = {
        name: {
            what: [statistics.fmean(getattr(one, what) for one in timings) * 1e3 for timings in bursts]
            for what in ("encode", "ttft", "end_to_end")
        }
        for name, bursts in taken.items()
    }
    ours = spans["ec_ipc"]
    return {
        each.name: {
            **{what: summary(numbers) for what, numbers in spans[each.name].items()},
            "ttft_of_ec_ipc": ratio(spans[each.name]["ttft"], ours["ttft"]),
            "end_to_end_of_ec_ipc": ratio(spans[each.name]["end_to_end"], ours["end_to_end"]),
            "hooks_us_per_request": per_request(before[each.name], each.hooks(), rounds * at_once),
        }
        for each in all_of_them
    }


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
    options = arguments(__doc__, rounds={"type": int, "default": 0, "help": "instead of the usual number"})
    report = Report("bench_epd", "full" if options.full else "short")
    results: dict[str, Any] = {}
    with deployments(make_model(MODEL)) as all_of_them:
        check_answers(all_of_them)
        memory = Memory(all_of_them)
        for at_once, repeated in itertools.product(AT_ONCE, (False, True)):
            rounds = options.rounds or (32 if at_once == 1 else 8) * (4 if options.full else 1)
            name = f"{at_once} at once, {'repeated' if repeated else 'fresh'}"
            results[name] = measure(all_of_them, at_once, repeated, rounds)
            show(name, results[name])
        samples = memory.stop()
        resident = {each.name: each.resident_bytes() for each in all_of_them}
    measured = {"loads": results, "memory": thin(samples), "private_bytes": resident}
    print(report.write(options.out, embedding_bytes=EMBEDDING_BYTES, **measured))


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

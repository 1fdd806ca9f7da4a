"""Two real engines answer with the tokens of one, read in place, and leave nothing behind."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest
from harness import Deployment, Deployments, Reference

from examples.demo.chat import Answer, Picture, picture
from examples.demo.deployment import PD, Topology

TENSOR_PARALLEL = Topology(args={PD: ("--tensor-parallel-size", "2")})


@pytest.fixture(
    scope="module",
    params=[("llava", None), ("llava", TENSOR_PARALLEL), ("qwen3vl", None)],
    ids=["llava", "llava-tp2", "qwen3vl"],
)
def engines(request: pytest.FixtureRequest, deployments: Deployments) -> Deployment:
    """E, PD and proxy."""
    return deployments.get(*request.param)


def check(
    engines: Deployment, reference: Reference, requests: Sequence[Sequence[Picture]], reads: int
) -> list[Answer]:
    """Send the requests at once. Each answer is the single engine's; PD read ``reads`` embeddings, missed
    none, and two seconds later nothing is used, held or announced."""
    with engines.counters_delta() as delta:
        with ThreadPoolExecutor(len(requests)) as pool:
            answers = list(pool.map(engines.ask, requests))
        engines.wait_until_idle(timeout=2)
    for request, answer in zip(requests, answers, strict=True):
        assert answer.ok, answer.body
        assert answer.tokens == reference(engines, request)
    assert delta["reads"] == reads
    assert delta["misses"] == 0, "PD encoded what it should have read"
    assert delta["publish_skipped"] == delta["expired"] == delta["late_releases"] == 0
    return answers


def test_one_image(engines: Deployment, reference: Reference) -> None:
    check(engines, reference, [[picture(1)]], reads=1)


def test_two_images_in_both_orders(engines: Deployment, reference: Reference) -> None:
    (first,) = check(engines, reference, [[picture(1), picture(2)]], reads=2)
    (second,) = check(engines, reference, [[picture(2), picture(1)]], reads=2)
    assert first.tokens != second.tokens, "the order makes no difference: the test has no point"


def test_the_same_image_twice_in_a_request_is_read_once(engines: Deployment, reference: Reference) -> None:
    check(engines, reference, [[picture(3), picture(3)]], reads=1)


def test_the_same_image_in_later_requests(engines: Deployment, reference: Reference) -> None:
    for _ in range(3):
        check(engines, reference, [[picture(4)]], reads=1)


def test_eight_requests_at_once(engines: Deployment, reference: Reference) -> None:
    check(engines, reference, [[picture(10 + i)] for i in range(8)], reads=8)


def test_pictures_of_several_kinds_and_sizes(engines: Deployment, reference: Reference) -> None:
    pictures = [picture(20, (64, 64), "JPEG"), picture(21, (160, 96)), picture(22, (48, 200), "JPEG")]
    check(engines, reference, [[each] for each in pictures], reads=3)


def test_text_only(engines: Deployment, reference: Reference) -> None:
    check(engines, reference, [[]], reads=0)


def test_the_status_follows_the_documented_schema(engines: Deployment) -> None:
    engines.ask([picture(5)])
    engines.wait_until_idle(timeout=2)
    status = engines.status()
    assert set(status) == {
        "name",
        "fingerprint",
        "layout",
        "participants",
        "arenas",
        "entries",
        "holds",
        "announced",
        "counters",
    }
    assert status["name"] == engines.namespace and isinstance(status["fingerprint"], str)
    roles = sorted(p["role"] for p in status["participants"])
    workers = roles.count("pd.worker")
    assert roles == ["e.scheduler", "e.worker", "pd.scheduler", *["pd.worker"] * workers]
    for participant in status["participants"]:
        assert {k: type(v) for k, v in participant.items()} == {
            "slot": int,
            "pid": int,
            "role": str,
            "alive": bool,
        }
    (arena,) = status["arenas"]
    assert arena == {
        "owner": arena["owner"],
        "kind": "host",
        "device": "cpu",
        "bytes": 64 << 20,
        "used_bytes": 0,
    }
    assert status["entries"] == {"capacity": 4096, "writing": 0, "ready": 0}
    assert list(status["counters"]) == [
        "published",
        "republished",
        "reads",
        "bytes_published",
        "freed_by_last_reader",
        "evicted",
        "expired",
        "reclaimed",
        "localised",
        "publish_skipped",
        "late_releases",
        "misses",
    ]
    assert all(type(value) is int for value in status["counters"].values())

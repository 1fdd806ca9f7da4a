"""An embedding is freed exactly when nobody needs it, on the paths that a request can take."""

from collections.abc import Callable
from typing import Any

import pytest

from ec_ipc.cli import status

from .lockstep import Item, LockstepEngine, make_request

Start = Callable[..., LockstepEngine]


@pytest.fixture
def held(namespace: str) -> Callable[[], tuple[int, int, int]]:
    """(used bytes, holds, announcements) of the namespace."""

    def read() -> tuple[int, int, int]:
        found = status.collect(namespace)["namespaces"][0]
        return sum(a["used_bytes"] for a in found["arenas"]), found["holds"], found["announced"]

    return read


def encode(producer: LockstepEngine, name: str, *items: Item, **fields: Any) -> dict[str, Any] | None:
    """Run one E request to its end; its ec_transfer_params."""
    producer.add(make_request(name, list(items), **fields))
    producer.run()
    return producer.answers[name]


def test_an_embedding_goes_from_e_to_pd_and_is_free_after_the_read(start: Start, held: Any) -> None:
    e, pd = start("ec_producer"), start("ec_consumer")
    params = encode(e, "r", Item("cat"))
    assert params is not None and held()[2] == 1
    pd.add(make_request("r", [Item("cat")], params=params, max_tokens=3))
    pd.run()
    assert pd.loads == ["cat"] and pd.encodes == [] and e.encodes == ["cat"]
    assert held() == (0, 0, 0)


def test_the_same_image_twice_in_a_request_is_announced_twice_and_read_once(start: Start, held: Any) -> None:
    e, pd = start("ec_producer"), start("ec_consumer")
    params = encode(e, "r", Item("cat"), Item("cat"))
    assert held()[2] == 2 and e.encodes == ["cat"]
    pd.add(make_request("r", [Item("cat"), Item("cat")], params=params))
    pd.run()
    assert pd.loads == ["cat"] and held() == (0, 0, 0)


def test_a_second_request_for_a_published_image_announces_and_does_not_encode(
    start: Start, held: Any
) -> None:
    e, pd = start("ec_producer"), start("ec_consumer")
    first, second = encode(e, "a", Item("cat")), encode(e, "b", Item("cat"))
    assert e.encodes == ["cat"] and held()[2] == 2
    for name, params in (("a", first), ("b", second)):
        pd.add(make_request(name, [Item("cat")], params=params))
        pd.run()
    assert pd.encodes == [] and held() == (0, 0, 0)


def test_requests_that_overlap_on_e_are_each_announced(start: Start, held: Any) -> None:
    e, pd = start("ec_producer"), start("ec_consumer")
    for name in "abc":
        e.add(make_request(name, [Item("cat")]))
    e.run()
    assert e.encodes == ["cat"] and held()[2] == 3
    for name in "abc":
        pd.add(make_request(name, [Item("cat")], params=e.answers[name]))
    pd.run()
    assert held() == (0, 0, 0)


def test_an_image_freed_between_two_e_requests_is_published_again(start: Start, held: Any) -> None:
    e, pd = start("ec_producer"), start("ec_consumer")
    for name in "ab":
        pd.add(make_request(name, [Item("cat")], params=encode(e, name, Item("cat"))))
        pd.run()
        assert held() == (0, 0, 0)
    assert pd.loads == ["cat", "cat"] and pd.encodes == []


def test_an_aborted_e_request_takes_its_announcements_back(start: Start, held: Any) -> None:
    e = start("ec_producer", args={"max_num_batched_tokens": 44, "max_num_seqs": 4})
    e.add(make_request("r", [Item("cat"), Item("dog"), Item("cow")]))
    e.step()
    assert held()[2] == 2, "the request should be half done"
    e.abort("r")
    e.run()
    assert held() == (0, 0, 0)


@pytest.mark.parametrize("steps", [0, 1, 2])
@pytest.mark.parametrize("pixels", [True, False])
def test_a_pd_request_aborted_at_any_step_gives_everything_back(
    start: Start, held: Any, steps: int, pixels: bool
) -> None:
    e, pd = start("ec_producer"), start("ec_consumer")
    items = [Item("cat", pixels=pixels), Item("dog", pixels=pixels)]
    params = encode(e, "r", Item("cat"), Item("dog"))
    pd.add(make_request("r", items, params=params, max_tokens=9))
    for _ in range(steps):
        pd.step()
    pd.abort("r")
    pd.run()
    assert held() == (0, 0, 0)


def test_a_request_without_pixels_fails_alone_when_the_embedding_is_not_there(
    start: Start, held: Any
) -> None:
    pd = start("ec_consumer")
    pd.add(make_request("bad", [Item("cat", pixels=False)], params={}))
    pd.add(make_request("good", [Item("dog")], params={}, max_tokens=3))
    pd.run()
    assert pd.errors == {"bad"} and "good" in pd.answers and pd.encodes == ["dog"]
    assert held() == (0, 0, 0)


def test_a_request_without_pixels_fails_alone_when_the_rows_do_not_fit(start: Start, held: Any) -> None:
    e, pd = start("ec_producer"), start("ec_consumer")
    params = encode(e, "r", Item("cat", rows=16))
    pd.add(make_request("r", [Item("cat", rows=24, pixels=False)], params=params))
    pd.run()
    assert pd.errors == {"r"} and pd.loads == []
    assert held() == (0, 0, 0)


def test_a_request_with_pixels_encodes_itself_when_the_embedding_is_not_there(
    start: Start, held: Any
) -> None:
    pd = start("ec_consumer")
    pd.add(make_request("r", [Item("cat")]))
    pd.run()
    assert pd.encodes == ["cat"] and held() == (0, 0, 0)


def test_a_prefix_hit_settles_what_it_never_reads(start: Start, held: Any) -> None:
    e, pd = start("ec_producer"), start("ec_consumer", args={"enable_prefix_caching": True})
    for name in "ab":
        params = encode(e, name, Item("cat"))
        pd.add(make_request(name, [Item("cat")], params=params, text=40))
        pd.run()
        assert held() == (0, 0, 0)


def test_a_request_preempted_and_resumed_reads_again_without_pixels(start: Start, held: Any) -> None:
    e, pd = start("ec_producer"), start("ec_consumer", blocks=8, args={"enable_prefix_caching": False})
    names = ["a", "b", "c"]
    params = {name: encode(e, name, Item(f"image {name}", rows=32)) for name in names}
    for name in names:
        pd.add(
            make_request(
                name, [Item(f"image {name}", rows=32, pixels=False)], params=params[name], max_tokens=20
            )
        )
    pd.run(400)
    assert not pd.errors and set(pd.answers) >= set(names)
    assert len(pd.loads) > len(names), "nothing was preempted; the test has no point"
    assert held() == (0, 0, 0)


def test_two_steps_in_flight_change_nothing(start: Start, held: Any) -> None:
    e = start("ec_producer")
    pd = start("ec_consumer", depth=2, args={"async_scheduling": True})
    for name in "abcd":
        params = encode(e, name, Item("cat"), Item(f"image {name}", pixels=True))
        pd.add(make_request(name, [Item("cat"), Item(f"image {name}")], params=params, max_tokens=3))
    pd.run()
    assert pd.encodes == [] and held() == (0, 0, 0)


def test_a_chunked_prefill_reads_an_image_larger_than_a_step(start: Start, held: Any) -> None:
    e = start("ec_producer")
    pd = start("ec_consumer", args={"max_num_batched_tokens": 8, "max_num_seqs": 4})
    params = encode(e, "r", Item("big"))
    pd.add(make_request("r", [Item("big")], params=params, max_tokens=2))
    pd.run()
    assert pd.loads == ["big"] and pd.encodes == [] and held() == (0, 0, 0)


def test_engines_in_the_role_ec_both_share_what_either_has_encoded(start: Start, held: Any) -> None:
    first, second = start("ec_both"), start("ec_both")
    for engine in (first, second):
        engine.add(make_request("r", [Item("cat")]))
        engine.run()
    assert first.encodes == ["cat"] and second.encodes == [] and second.loads == ["cat"]
    assert held()[2] == 0


@pytest.mark.parametrize(
    "token",
    [
        None,
        7,
        "ab",
        [1],
        [1, 2, 3],
        ["1", "2"],
        [1.0, 2.0],
        [True, 1],
        [-1, 1],
        [1 << 80, 1],
        [1, -(1 << 70)],
    ],
)
def test_a_token_that_is_none_settles_nothing_and_harms_nobody(start: Start, held: Any, token: Any) -> None:
    e, pd = start("ec_producer"), start("ec_consumer")
    encode(e, "r", Item("cat"))
    pd.add(make_request("r", [Item("cat")], params={"cat": {"ec_ipc_token": token}}))
    pd.run()
    assert pd.loads == ["cat"] and held()[2] == 1


@pytest.mark.parametrize("params", [[], "text", {"cat": None}, {"cat": []}, {"dog": {}}, {}])
def test_params_without_a_token_for_the_item_settle_nothing(start: Start, held: Any, params: Any) -> None:
    e, pd = start("ec_producer"), start("ec_consumer")
    encode(e, "r", Item("cat"))
    pd.add(make_request("r", [Item("cat")], params=params))
    pd.run()
    assert pd.loads == ["cat"] and held()[2] == 1


def test_a_request_without_params_settles_by_key(start: Start, held: Any) -> None:
    e, pd = start("ec_producer"), start("ec_consumer")
    encode(e, "r", Item("cat"))
    pd.add(make_request("r", [Item("cat")]))
    pd.run()
    assert held() == (0, 0, 0)


def test_a_token_of_another_segment_settles_nothing(start: Start, held: Any) -> None:
    e, pd = start("ec_producer"), start("ec_consumer")
    params = encode(e, "r", Item("cat"))
    assert params is not None
    entry, generation, segment = params["cat"]["ec_ipc_token"]
    pd.add(
        make_request("r", [Item("cat")], params={"cat": {"ec_ipc_token": [entry, generation, segment + 1]}})
    )
    pd.run()
    assert held()[2] == 1
    pd.add(make_request("s", [Item("cat")], params={"cat": {"ec_ipc_token": [entry, generation, segment]}}))
    pd.run()
    assert held() == (0, 0, 0)

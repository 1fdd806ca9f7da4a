"""A request of E gives away, and takes back, the announcements that were made for it and no others."""

from __future__ import annotations

from typing import Any

import pytest

from .lockstep import WIDTH, Item, LockstepEngine, make_request
from .test_lifetime import Start, encode, held  # noqa: F401 - a fixture

ONE_ITEM = 16 * WIDTH * 4
ONE_A_STEP = {"max_num_batched_tokens": 24, "max_num_seqs": 4}


@pytest.fixture
def full(start: Start) -> LockstepEngine:
    """An encoder that can publish nothing more, and encodes one item a step."""
    e = start("ec_producer", arena_bytes=ONE_ITEM, args=ONE_A_STEP)
    encode(e, "fill", Item("fill"))
    return e


def read_without_pixels(start: Start, params: dict[str, Any] | None) -> LockstepEngine:
    pd = start("ec_consumer")
    pd.add(make_request("reader", [Item("cat", pixels=False)], params=params))
    pd.run()
    return pd


@pytest.mark.parametrize("runner", ["v1", "v2"], indirect=True)
def test_an_abort_takes_back_nothing_of_another_engine(
    start: Start,
    full: LockstepEngine,
    held: Any,  # noqa: F811
) -> None:
    other = start("ec_producer")
    full.add(make_request("r1", [Item("cat"), Item("dog"), Item("cow")]))
    full.step()  # "cat" is not published
    params = encode(other, "r2", Item("cat"))
    before = held()[2]
    full.abort("r1")
    full.run()
    assert held()[2] == before
    assert not read_without_pixels(start, params).errors


@pytest.mark.parametrize("runner", ["v1", "v2"], indirect=True)
def test_what_was_not_published_for_a_request_is_not_given_to_it(start: Start, full: LockstepEngine) -> None:
    other = start("ec_producer")
    full.add(make_request("r1", [Item("cat"), Item("dog")]))
    full.step()
    params = encode(other, "r2", Item("cat"))  # announced once, for r2
    full.run()
    assert full.answers["r1"] is None, "its proxy keeps the pixels"
    assert not read_without_pixels(start, params).errors


def test_an_abort_takes_back_what_a_step_in_flight_announces(start: Start, held: Any) -> None:  # noqa: F811
    e = start("ec_producer")
    e.add(make_request("r", [Item("cat"), Item("cat")]))
    output = e.scheduler.schedule()
    e.abort("r")
    e.in_flight.append((output, e._execute(output)))
    e.drain()
    e.run()
    assert e.encodes == ["cat"] and held() == (0, 0, 0)


def test_a_lost_message_of_the_worker_loses_no_embedding(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    e = start("ec_producer")
    monkeypatch.setattr(e.worker._worker_half._channel, "_address", b"\0nobody listens here")
    params = encode(e, "r", Item("cat"))
    assert params is not None
    assert not read_without_pixels(start, params).errors

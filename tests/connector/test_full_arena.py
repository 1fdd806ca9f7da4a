"""An arena that is full: evict, wait at admission, skip; and readers that make room."""

import fcntl
import os
import struct
import time
from collections.abc import Callable
from typing import Any

import pytest

from ec_ipc import names
from ec_ipc.cli import status
from ec_ipc.connector import identity

from .lockstep import WIDTH, Item, LockstepEngine, make_request
from .test_lifetime import encode

Start = Callable[..., LockstepEngine]

WRITER_BYTE = (1 << 62) + 1  # csrc/liveness.h
ITEM_BYTES = 16 * WIDTH * 4
WIDTHS = {"image": WIDTH}


@pytest.fixture
def counters(namespace: str) -> Callable[[], dict[str, int]]:
    return lambda: dict(status.collect(namespace)["namespaces"][0]["counters"])


def producer(start: Start, items: int, **extra: Any) -> LockstepEngine:
    """An E whose arena holds so many items, and which knows how wide they are."""
    return start("ec_producer", arena_bytes=items * ITEM_BYTES, widths=WIDTHS, **extra)


def test_a_request_waits_for_space_and_goes_on_when_pd_has_read(start: Start, counters: Any) -> None:
    e, pd = producer(start, 1), start("ec_consumer")
    params = encode(e, "a", Item("a"))
    e.add(make_request("b", [Item("b")]))
    for _ in range(5):
        assert e.step().total_num_scheduled_tokens == 0, "it should wait"
    pd.add(make_request("a", [Item("a")], params=params))
    pd.run()
    e.run()
    pd.add(make_request("b", [Item("b")], params=e.answers["b"]))
    pd.run()
    assert pd.loads == ["a", "b"] and pd.encodes == []
    assert counters()["publish_skipped"] == 0


def test_a_wait_is_bounded_then_publishing_is_skipped_and_pd_keeps_its_pixels(
    start: Start, counters: Any
) -> None:
    e, pd = producer(start, 1, wait_timeout_s=0.05), start("ec_consumer")
    encode(e, "a", Item("a"))
    e.add(make_request("b", [Item("b")]))
    e.run(10_000)
    assert e.encodes == ["a", "b"] and e.answers["b"] is None
    assert counters()["publish_skipped"] == 1
    pd.add(make_request("b", [Item("b")], params=e.answers["b"]))
    pd.run()
    assert pd.encodes == ["b"]


def test_other_requests_go_on_while_one_waits(start: Start) -> None:
    e = producer(start, 1)
    encode(e, "a", Item("a"))
    e.add(make_request("waits", [Item("b")]))
    e.add(make_request("again", [Item("a")]))
    for _ in range(5):
        e.step()
    assert "again" in e.answers and "waits" not in e.answers
    e.abort("waits")


def test_an_item_larger_than_the_arena_is_skipped_at_once(start: Start, counters: Any) -> None:
    e = start("ec_producer", arena_bytes=ITEM_BYTES - 1, widths=WIDTHS)
    e.add(make_request("r", [Item("big")]))
    e.run()
    assert e.encodes == ["big"] and e.answers["r"] is None
    assert counters()["publish_skipped"] == 1


def test_requests_admitted_together_do_not_count_on_the_same_space(start: Start, counters: Any) -> None:
    e, pd = producer(start, 2), start("ec_consumer")
    for name in "abcd":
        e.add(make_request(name, [Item(name)]))
    for _ in range(100):
        e.step()
        for name in [n for n in "abcd" if n in e.answers and n not in pd.answers]:
            pd.add(make_request(name, [Item(name)], params=e.answers[name]))
            pd.run()
    assert sorted(pd.loads) == list("abcd") and pd.encodes == []
    assert counters()["publish_skipped"] == 0


def test_an_unread_embedding_expires_and_makes_room_with_both_engines_idle(
    start: Start, counters: Any, namespace: str
) -> None:
    e = producer(start, 1, read_timeout_s=0.05)
    encode(e, "a", Item("a"))
    while status.collect(namespace)["namespaces"][0]["entries"]["ready"]:
        time.sleep(0.05)
    assert counters()["expired"] == 1


def test_without_deallocate_the_oldest_is_evicted_and_the_rest_read_again(
    start: Start, counters: Any
) -> None:
    e = producer(start, 2, deallocate_cache=False)
    pd = start("ec_consumer", deallocate_cache=False, read_mode="copy")
    for name in ("a", "b", "c"):
        pd.add(make_request(name, [Item(name)], params=encode(e, name, Item(name))))
        pd.run()
    assert counters()["evicted"] == 1
    encode(e, "again", Item("b"))
    assert e.encodes == ["a", "b", "c"]


def test_a_quiet_pd_gives_up_its_views_when_e_is_short_of_space(start: Start, counters: Any) -> None:
    e = producer(start, 1, deallocate_cache=False)
    pd = start("ec_consumer", deallocate_cache=False)
    pd.add(make_request("a", [Item("a")], params=encode(e, "a", Item("a"))))
    pd.run()
    assert "a" in pd.encoder_cache, "vLLM's own policy keeps it"
    e.add(make_request("b", [Item("b")]))
    while "b" not in e.answers:
        e.step()
        time.sleep(0.01)
    assert counters()["localised"] == 1 and counters()["evicted"] == 1
    pd.add(make_request("b", [Item("b")], params=e.answers["b"]))
    pd.add(make_request("a again", [Item("a")]))
    pd.run()
    assert pd.encodes == [], "the copy of a serves on"


def test_copy_mode_copies_at_load_and_releases_at_once(start: Start, namespace: str) -> None:
    e, pd = producer(start, 2), start("ec_consumer", read_mode="copy")
    params = encode(e, "a", Item("a"), Item("b"))
    pd.add(make_request("a", [Item("a"), Item("b")], params=params, max_tokens=5))
    pd.step()
    pd.drain()
    assert set(pd.encoder_cache) == {"a", "b"}
    found = status.collect(namespace)["namespaces"][0]
    assert found["holds"] == 0 and found["arenas"][0]["used_bytes"] == 0
    pd.run()


def test_insurance_is_dropped_when_e_is_short_of_space(start: Start, namespace: str) -> None:
    e, pd = producer(start, 1), start("ec_consumer")
    params = encode(e, "a", Item("a"))
    pd.add(make_request("a", [Item("a", pixels=False)], params=params, max_tokens=400))
    for _ in range(5):
        pd.step()
    assert status.collect(namespace)["namespaces"][0]["holds"] == 1
    e.add(make_request("b", [Item("b")]))
    for _ in range(20):
        e.step()
        pd.step()
    assert "b" in e.answers and e.answers["b"] is not None
    pd.abort("a")


def test_a_locked_directory_costs_an_item_and_not_the_engine(
    start: Start, counters: Any, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A participant was stopped while it held the writer byte; nobody can tell it from a slow one."""
    monkeypatch.setattr(identity, "LOCK_TIMEOUT_S", 0.05)
    e = producer(start, 4)
    encode(e, "a", Item("a"))
    holder = os.open(f"/dev/shm{names.segment_name(namespace)}", os.O_RDWR)
    lock = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, WRITER_BYTE, 1, 0)
    fcntl.fcntl(holder, fcntl.F_OFD_SETLK, lock)
    try:
        assert encode(e, "again", Item("a")) is None, "it could not be announced for this request"
        assert encode(e, "b", Item("b")) is None
    finally:
        os.close(holder)
    assert counters()["publish_skipped"] == 2
    assert encode(e, "c", Item("c")) is not None

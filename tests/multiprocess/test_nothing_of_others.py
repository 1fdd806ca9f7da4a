"""Joining, reaping and leaving touch nothing that is in use, or somebody else's."""

import fcntl
import gc
import os
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from ec_ipc import Store, _core, names, segment, shared_memory
from ec_ipc.errors import SegmentError

from .processes import eventually

ARENA_BYTES = 1 << 16
CREATOR_BYTE, WRITER_BYTE = 1 << 62, (1 << 62) + 1  # csrc/liveness.h
READY_OFFSET = 1472  # of the header's ready word
WORD = struct.Struct("=Q")


def path(namespace: str) -> Path:
    return names.SHARED_MEMORY_DIRECTORY / names.segment_name(namespace).removeprefix("/")


@pytest.fixture
def writer(namespace: str) -> Iterator[Store]:
    with Store.open(namespace, arena="host", arena_bytes=ARENA_BYTES) as store:
        store.put("k", torch.ones(10))
        yield store


@pytest.mark.parametrize("change", [{READY_OFFSET: 0}, {8: _core.LAYOUT_VERSION + 1, READY_OFFSET: 7}])
def test_a_segment_in_use_is_not_made_again(writer: Store, change: dict[int, int]) -> None:
    before = {offset: os.pread(writer.segment.fileno(), 8, offset) for offset in change}
    for offset, value in change.items():
        os.pwrite(writer.segment.fileno(), WORD.pack(value), offset)
    assert not _core.segment_is_ready(writer.segment.fileno()), "the ready word has moved: change the test"
    with pytest.raises(SegmentError, match=r"in use.*ec-ipc reset"):
        Store.open(writer.namespace)
    for offset, word in before.items():
        os.pwrite(writer.segment.fileno(), word, offset)
    lease = writer.get("k")
    assert lease is not None and torch.equal(lease.tensor, torch.ones(10))
    lease.release()


def test_what_is_no_segment_is_left_as_it_is(namespace: str) -> None:
    foreign = b"somebody else's data" * 1000
    path(namespace).write_bytes(foreign)
    path(namespace).chmod(0o600)
    with pytest.raises(SegmentError, match="another layout"):
        Store.open(namespace)
    assert path(namespace).read_bytes() == foreign
    path(namespace).unlink()


@pytest.mark.parametrize(
    "begin", [b"", bytes(100), WORD.pack(_core.MAGIC), WORD.pack(_core.MAGIC) + bytes(50)]
)
def test_what_a_creator_left_half_made_is_made(namespace: str, begin: bytes) -> None:
    path(namespace).write_bytes(begin)
    path(namespace).chmod(0o600)
    with Store.open(namespace, arena="host", arena_bytes=ARENA_BYTES) as store:
        store.put("k", torch.ones(10))


def test_a_removed_segments_cleaner_leaves_its_successors_arenas(writer: Store) -> None:
    shared_memory.unlink(writer.name)
    with Store.open(writer.namespace, arena="host", arena_bytes=ARENA_BYTES) as successor:
        segment.collect_dead(writer.segment, writer.name)
        own = names.arena_name(successor.name, successor.segment.incarnation)
        assert own in names.arena_names(successor.name)


def test_reaping_a_segment_that_is_replaced_meanwhile(writer: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    attach = segment.attach

    def attach_and_replace(namespace: str) -> _core.Segment | None:
        monkeypatch.setattr(segment, "attach", attach)
        found = attach(namespace)
        shared_memory.unlink(writer.name)
        successors.append(Store.open(namespace, arena="host", arena_bytes=ARENA_BYTES))
        return found

    successors: list[Store] = []
    monkeypatch.setattr(segment, "attach", attach_and_replace)
    assert segment.reap(writer.namespace).startswith("in use")
    (successor,) = successors
    with successor:
        assert names.arena_name(successor.name, successor.segment.incarnation) in names.arena_names(
            successor.name
        )


@pytest.mark.parametrize("byte", [CREATOR_BYTE, WRITER_BYTE])
def test_a_store_closed_while_a_lock_byte_is_held_leaves_later(
    namespace: str, monkeypatch: pytest.MonkeyPatch, byte: int
) -> None:
    store = Store.open(namespace)
    with Store.open(namespace) as witness:
        monkeypatch.setattr(segment, "LOCK_TIMEOUT_S", 0.05)
        holder = os.open(path(namespace), os.O_RDWR)
        fcntl.fcntl(holder, fcntl.F_OFD_SETLK, struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, byte, 1, 0))
        store.close()
        assert len(witness.segment.participants()) == 2
        os.close(holder)
        eventually(lambda: len(witness.segment.participants()) == 1)


def test_a_store_that_is_dropped_leaves(namespace: str) -> None:
    store = Store.open(namespace, arena="host", arena_bytes=ARENA_BYTES)
    store.put("k", torch.ones(10), announce=2)
    lease = store.get("k")
    assert lease is not None
    view = lease.tensor
    del store, lease
    gc.collect()
    eventually(lambda: not path(namespace).exists())
    assert torch.equal(view, torch.ones(10))

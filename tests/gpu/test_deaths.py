"""kill -9 of either side on a GPU: what it held comes back, and the other side goes on."""

from collections.abc import Iterator

import pytest
import torch
from gpu_programs import GPU
from gpu_work import eventually, free_bytes, get, used, wrong_words
from processes import Peer

from ec_ipc import Store
from ec_ipc._core import Outcome

ARENA_BYTES = 256 << 20
WORDS = 40 << 20  # 160 MiB: two do not fit
LONG_MS = 8000

READER = (
    GPU
    + f"""
store = Store.open(sys.argv[1])
lease = get(store, "k")
slow({LONG_MS})
wrong = wrong_words(lease.tensor, 1)
say("reading"); wait()
"""
)
WRITER = (
    GPU
    + f"""
store = Store.open(sys.argv[1], arena="cuda", arena_bytes={ARENA_BYTES})
store.put("k", content(1, {WORDS}), announce=2)
source = content(2)
torch.cuda.synchronize()
say("put"); wait()
slow({LONG_MS})
store.publish("later", source, 1)
say("writing"); wait()
"""
)
# Reads for as long as it is told to, with or without a view in its hands.
SURVIVOR = (
    GPU
    + """
ramp(1); slow(1); torch.cuda.synchronize()
say("here"); wait()
store = Store.open(sys.argv[1])
store.map_arenas()
lease = get(store, "k")
say(int(wrong_words(lease.tensor, 1)), store.get("later") is None); wait()
eventually(lambda: not store.segment.arenas())
say(store.get("k") is None, store.get("later") is None); wait()
say(int(wrong_words(lease.tensor, 1))); wait()
del lease
ramp.cache_clear()
torch.cuda.empty_cache()
assert store.drain()
eventually(lambda: store.segment.entries() == [] and store.segment.total_holds() == 0)
say(int(wrong_words(content(3), 3))); wait()
store.close()
"""
)


@pytest.fixture(autouse=True)
def comes_back(memory_comes_back: None) -> Iterator[None]:
    yield


def test_what_a_killed_reader_held_comes_back_and_the_writer_goes_on(namespace: str) -> None:
    with Store.open(namespace, arena="cuda", arena_bytes=ARENA_BYTES) as store:
        source = (torch.arange(WORDS, dtype=torch.int32, device="cuda") * 1009).add_(1)
        store.put("k", source)
        with Peer(READER, namespace) as reader:
            assert reader.hear() == "reading"
            assert store.segment.total_holds() == 1
            assert store.publish("next", source, 1).outcome is Outcome.ARENA_FULL
            reader.kill()
        eventually(lambda: used(store) == 0)
        assert store.segment.counters()["reclaimed"] == 1
        store.put("next", source)
        lease = get(store, "next")
        assert (lease.tensor == source).all()
        lease.release()
        assert store.drain() and used(store) == 0


def test_a_killed_writer_is_missed_and_its_readers_go_on(namespace: str) -> None:
    with Peer(SURVIVOR, namespace) as reader:
        assert reader.hear() == "here"
        before = free_bytes()
        with Peer(WRITER, namespace) as writer:
            assert writer.hear() == "put"
            reader.tell()
            assert reader.hear() == "0 True"
            writer.tell()
            assert writer.hear() == "writing"
            writer.kill()
        reader.tell()
        assert reader.hear() == "True True"
        reader.tell()
        assert reader.hear() == "0", "a view of a killed writer's arena has lost its bytes"
        reader.tell()
        assert reader.hear() == "0"
        # The dead writer's block was kept by the reader's mapping, and by nothing else.
        eventually(lambda: free_bytes() >= before - ARENA_BYTES // 2, lambda: "a dead arena keeps its memory")
        reader.tell()
        reader.join()
    assert wrong_words(torch.ones(4, dtype=torch.int32, device="cuda"), 1).item() > 0, "this process runs on"

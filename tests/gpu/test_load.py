"""Two processes on one GPU under load: every word of every embedding is compared, by kernels that run
late, while the writer writes over what has been released.
"""

import os

import pytest
from gpu_programs import GPU
from processes import Peer

HAND_OVERS = 10_000
EXTENTS = 64  # that fit into the arena: each is used over and over

# The reader and the writer meet by key alone; neither tells the other anything.
WRITER = (
    GPU
    + """
store = Store.open(sys.argv[1], arena="cuda", arena_bytes=int(sys.argv[3]) * 4 * WORDS)
warm_up(store)
say("open"); wait()
sources = [content(i) for i in range(16)]
refused = 0
begin = time.monotonic()
for number in range(int(sys.argv[2])):
    torch.add(ramp(WORDS) * 1009, number, out=sources[number % 16])
    while store.publish(f"k{number}", sources[number % 16], 1).outcome is not Outcome.RESERVED:
        refused += 1
        assert time.monotonic() - begin < 120, f"no extent for embedding {number}"
        time.sleep(0.0005)
assert store.drain()
say("all written"); wait()
say(store.segment.counters()["published"] - 1, used(store), store.segment.total_holds(), refused)
say(*{bool(segment.get("is_expandable")) for segment in torch.cuda.memory_snapshot()})
wait()
store.close()
"""
)
READER = (
    GPU
    + """
store = Store.open(sys.argv[1])
count = int(sys.argv[2])
wrong = torch.zeros(count, dtype=torch.int64, device="cuda")
wait()
begin = time.monotonic()
slept = 0
for number in range(count):
    while (lease := store.get(f"k{number}")) is None:
        assert time.monotonic() - begin < 120, f"embedding {number} does not come"
        time.sleep(0.0002)
    if number % 16 == 0:
        slow(5); slept += 1  # what follows is queued behind this, and so reads late
    wrong[number] = wrong_words(lease.tensor, number)
    lease.release()
assert store.drain()
say(int((wrong != 0).sum()), slept)
say(*{bool(segment.get("is_expandable")) for segment in torch.cuda.memory_snapshot()})
wait()
store.close()
"""
)


def hand_over(namespace: str, count: int, expandable: bool) -> None:
    arguments = [namespace, str(count), str(EXTENTS)]
    with Peer(WRITER, *arguments) as writer, Peer(READER, *arguments) as reader:
        assert writer.hear() == "open"
        writer.tell()
        reader.tell()
        assert writer.hear() == "all written"
        wrong, slept = map(int, reader.hear().split())
        assert reader.hear() == str(expandable)
        writer.tell()
        published, used, holds, refused = map(int, writer.hear().split())
        assert writer.hear() == str(expandable)
        assert wrong == 0, f"{wrong} of {count} embeddings arrived with wrong words"
        assert (published, used, holds) == (count, 0, 0)
        assert slept == (count + 15) // 16
        if count > EXTENTS:
            assert refused > 0, "the arena was never full: no extent was fought for"
        reader.tell()
        reader.join()
        writer.tell()
        writer.join()


@pytest.mark.usefixtures("memory_comes_back")
def test_ten_thousand_hand_overs_while_the_readers_kernels_are_slow(namespace: str) -> None:
    hand_over(namespace, HAND_OVERS, expandable=False)


@pytest.mark.usefixtures("memory_comes_back")
@pytest.mark.parametrize("expandable", [True, False])
def test_torchs_expandable_segments_change_nothing(
    namespace: str, monkeypatch: pytest.MonkeyPatch, expandable: bool
) -> None:
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", f"expandable_segments:{expandable}")
    assert "PYTORCH_ALLOC_CONF" not in os.environ, "it would go before the older name"
    hand_over(namespace, 500, expandable)

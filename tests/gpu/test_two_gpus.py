"""A reader on another GPU than the writer's. Where there is one GPU only, these are not run."""

import os
from collections.abc import Iterator

import pytest
import torch
from gpu_programs import GPU
from processes import Peer

from ec_ipc import Store

pytestmark = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="not run: needs two GPUs, there is one")

WRITER = (
    GPU
    + """
store = Store.open(sys.argv[1], arena="cuda", arena_bytes=64 << 20)
store.put("k", content(1))
say(store.segment.arenas()[0].device.hex()); wait()
store.close()
"""
)
READER = (
    GPU
    + """
torch.cuda.set_device(int(sys.argv[2]))
store = Store.open(sys.argv[1], device=int(sys.argv[2]))
if sys.argv[3] == "timer":
    store.map_arenas()  # none is there yet
    say("mapping"); wait()
    both = lambda arena: store.mapped_by(0, "store", arena.slot, arena.incarnation) == 2
    eventually(lambda: any(map(both, store.segment.arenas())))
lease = get(store, "k")
say(lease.tensor.device, int(wrong_words(lease.tensor, 1)))
lease.release()
assert store.drain()
say(used(store)); wait()
store.close()
"""
)


def visible() -> list[str]:
    """The GPUs of this process, by the names that CUDA_VISIBLE_DEVICES has for them."""
    names = os.environ.get("CUDA_VISIBLE_DEVICES")
    return names.split(",") if names else [str(i) for i in range(torch.cuda.device_count())]


@pytest.fixture
def writer(namespace: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Peer]:
    """On the first GPU; it sees no other."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible()[0])
    with Peer(WRITER, namespace) as peer:
        monkeypatch.undo()
        peer.hear()
        yield peer
        peer.tell()
        peer.join()


@pytest.mark.parametrize(
    ("devices", "number"),
    [((0, 1), 1), ((1, 0), 0), ((1, 0), 1), ((1,), 0)],
    ids=["other GPU", "other GPU first", "same GPU second", "writer's GPU not visible"],
)
def test_a_reader_maps_whatever_it_calls_its_devices(
    writer: Peer, namespace: str, monkeypatch: pytest.MonkeyPatch, devices: tuple[int, ...], number: int
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", ",".join(visible()[i] for i in devices))
    with Peer(READER, namespace, str(number), "now") as reader:
        assert reader.hear() == f"cuda:{number} 0"
        assert reader.hear() == "0"
        reader.tell()
        reader.join()


def test_the_timer_maps_on_the_readers_gpu(namespace: str) -> None:
    with Peer(READER, namespace, "1", "timer") as reader:
        assert reader.hear() == "mapping"
        with Store.open(namespace, arena="cuda", arena_bytes=64 << 20) as store:
            store.put("k", (torch.arange(1 << 16, dtype=torch.int32, device="cuda") * 1009).add_(1))
            reader.tell()
            assert reader.hear() == "cuda:1 0"
            assert reader.hear() == "0"
            reader.tell()
            reader.join()

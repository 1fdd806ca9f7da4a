"""Order without waiting: what is published, read and released while the GPU is busy.

No test bounds a time. That a call did not wait is seen from the stream: it is still busy afterwards.
"""

import threading
from collections.abc import Iterator

import pytest
import torch
from gpu_programs import GPU
from gpu_work import content, eventually, get, mark, slow, used, warm_stream, warm_up, wrong_words
from processes import Peer

from ec_ipc import Store, cuda_events, cuda_runtime, host_to_device
from ec_ipc._core import Outcome, State

ARENA_BYTES = 64 << 20
BUSY_MS = 1000


@pytest.fixture
def store(namespace: str) -> Iterator[Store]:
    with Store.open(namespace, arena="cuda", arena_bytes=ARENA_BYTES) as opened:
        warm_up(opened)
        yield opened
        torch.cuda.synchronize()


def test_publishing_does_not_wait_and_ready_is_set_after_the_copy(store: Store) -> None:
    source = content(1)
    torch.cuda.synchronize()
    slow(BUSY_MS)
    before_the_copy = mark()
    outcome, _ = store.publish("k", source, 1)
    assert outcome is Outcome.RESERVED
    found = store.find("k")
    assert found is not None and found.state == State.WRITING
    assert store.get("k") is None
    assert not before_the_copy.query(), "publish has waited, or the GPU was not kept busy long enough"
    while (found := store.find("k")) is not None and found.state == State.WRITING:
        pass
    assert found is not None and found.state == State.READY
    assert before_the_copy.query(), "READY before the copy had even begun"
    with torch.cuda.stream(torch.cuda.Stream()):  # not ordered after the copy but by READY
        lease = get(store, "k")
        assert wrong_words(lease.tensor, 1).item() == 0
        lease.release()
    assert store.drain() and used(store) == 0


def test_a_source_may_be_overwritten_right_after_publishing(store: Store) -> None:
    source = content(2)
    torch.cuda.synchronize()
    slow(BUSY_MS / 4)
    store.publish("k", source, 1)
    source.zero_()
    del source
    assert store.drain()
    lease = get(store, "k")
    assert wrong_words(lease.tensor, 2).item() == 0


def test_a_view_is_made_without_waiting_for_the_gpu(store: Store) -> None:
    store.put("k", content(3), announce=2)
    first = get(store, "k").tensor
    slow(BUSY_MS)
    busy = mark()
    lease = get(store, "k")
    assert lease.tensor.data_ptr() == first.data_ptr()
    assert lease.tensor.is_cuda
    assert not busy.query(), "the read has waited"
    assert wrong_words(lease.tensor, 3).item() == 0


def test_a_hold_lasts_until_the_kernels_that_could_read_are_done(store: Store) -> None:
    store.put("k", content(4))
    lease = get(store, "k")
    slow(BUSY_MS)
    wrong = wrong_words(lease.tensor, 4)
    done = mark()
    lease.release()
    assert not store.drain(timeout_s=0.1)
    assert store.segment.total_holds() == 1 and used(store) > 0
    assert not done.query(), "the GPU was not kept busy long enough"
    eventually(lambda: store.segment.total_holds() == 0)
    assert done.query(), "the hold ended before the kernels"
    assert store.drain() and used(store) == 0
    assert wrong.item() == 0


def test_the_stream_of_the_load_counts_whoever_frees(store: Store) -> None:
    store.put("k", content(5))
    stream = warm_stream()
    with torch.cuda.stream(stream):
        leases = [get(store, "k")]
        slow(BUSY_MS)
        wrong = wrong_words(leases[0].tensor, 5)
        done = mark()
    thread = threading.Thread(target=leases.clear)  # its stream is idle
    thread.start()
    thread.join()
    assert store.segment.total_holds() == 1
    assert not done.query(), "the GPU was not kept busy long enough"
    eventually(lambda: store.segment.total_holds() == 0)
    assert done.query(), "the hold ended before the kernels"
    assert wrong.item() == 0


def test_without_the_event_the_same_read_sees_what_came_after(store: Store) -> None:
    """The control of the tests above: they could fail."""
    store.put("k", content(6))
    pin = store.segment.pin(store.digest("k"))
    assert pin is not None
    lease = get(store, "k")
    view, address = lease.tensor, lease.tensor.data_ptr()
    with torch.cuda.stream(warm_stream()):
        slow(BUSY_MS / 2)
        wrong = wrong_words(view, 6)
    extent = cuda_runtime.as_tensor(address, view.nbytes, view.device.index, None)
    extent.zero_()  # as a writer would that was told too early
    assert wrong.item() == view.numel()
    pin.release()


CAPTURED_READS = (
    GPU
    + """
store = Store.open(sys.argv[1], arena="cuda", arena_bytes=64 << 20)
for i in range(2):
    store.put(f"k{i}", content(i), announce=1)
say("put"); wait()
store.close()
"""
)


def test_threads_of_ours_go_on_while_a_graph_is_captured(namespace: str) -> None:
    """In the global mode, torch's default, a call to CUDA from another thread ends the capture."""
    numbers = torch.zeros(8, device="cuda")
    with Peer(CAPTURED_READS, namespace) as writer:
        assert writer.hear() == "put"
        with Store.open(namespace, device=0) as store:
            pin = store.segment.pin(store.digest("k1"))
            assert pin is not None and store.settle("k1")
            token = store.attachment.token(pin)
            graph = torch.cuda.CUDAGraph()
            failed: list[BaseException] = []

            def work() -> None:
                try:
                    store.map_arenas()
                    view = store.load(token, torch.device("cuda"))
                    del view
                    assert store.drain()
                except BaseException as error:
                    failed.append(error)

            with torch.cuda.graph(graph):
                thread = threading.Thread(target=work)
                thread.start()
                thread.join()
                numbers += 1
            assert not failed, failed
            pin.release()
            graph.replay()
            assert numbers.sum().item() == 8, "the capture was lost"
            lease = get(store, "k0")
            assert wrong_words(lease.tensor, 0).item() == 0
            lease.release()
        writer.tell()
        writer.join()


def test_events_come_from_a_fixed_pool(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    create = cuda_runtime.create_event
    monkeypatch.setattr(cuda_runtime, "create_event", lambda: made.append(1) or create())
    for i in range(500):
        store.put(f"k{i}", content(i, 64))
        get(store, f"k{i}").release()
    assert store.drain() and used(store) == 0
    assert not made


def test_more_views_die_at_once_than_there_are_events(store: Store) -> None:
    many = 2 * cuda_events.EVENTS
    source = content(7, 64)
    for i in range(many):
        store.publish(f"k{i}", source, 1)
    assert store.drain()
    leases = [get(store, f"k{i}") for i in range(many)]
    slow(BUSY_MS / 4)
    leases.clear()
    assert store.segment.total_holds() > 0
    assert store.drain()
    assert store.segment.total_holds() == 0 and used(store) == 0


def test_a_host_arena_reaches_the_gpu_by_a_copy_that_is_not_waited_for(namespace: str) -> None:
    device = torch.device("cuda")
    with Store.open(namespace, arena="host", arena_bytes=ARENA_BYTES) as store:
        for turn in range(2):  # the first one page-locks the block, which may wait for the GPU
            store.put(f"k{turn}", content(turn).cpu())
            pin = store.segment.pin(store.digest(f"k{turn}"))
            assert pin is not None and store.settle(f"k{turn}")
            torch.cuda.synchronize()
            slow(BUSY_MS)
            busy = mark()
            tensor = store.load(store.attachment.token(pin), device)
            del pin
            holds, waited = store.segment.total_holds(), busy.query()
            assert wrong_words(tensor, turn).item() == 0
            eventually(lambda: used(store) == 0)
        assert list(host_to_device._page_locked.values()) == [True]
        assert not waited, "the copy was waited for"
        assert holds == 1, "the copy had not begun, and its source was given up"
        assert tensor.device.type == "cuda"

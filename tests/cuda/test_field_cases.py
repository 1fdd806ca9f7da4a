"""What has broken others with CUDA IPC, and what this arena does instead. Over the stand-in.

The letter and number is the case: A1 lost offsets, A2 one's own handle, A3 opened twice, A4 memory
reused under kernels, A5 freed under readers, A6 device order, A7 no peer access, A8 no handle for pooled
memory, A10 no IPC at all, A12 running out of events, E6 published too early.
"""

import itertools
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from cuda_standin import CUDARuntimeError, State
from cuda_standin.runtime import GLOBAL, getDevice, malloc, setDevice
from processes import Peer

from ec_ipc import Store, attachment, cuda_arena, cuda_events, cuda_probe, segment
from ec_ipc._core import Outcome
from ec_ipc._core import State as EntryState
from ec_ipc.errors import ArenaUnavailable

ARENA_BYTES = 1 << 20
TESTS = Path(__file__).parents[1]

STANDIN = f"""
sys.path.insert(0, {str(TESTS)!r})
import cuda_standin
"""
WRITER = (
    STANDIN
    + """
state = cuda_standin.install()
store = Store.open(sys.argv[1], arena="cuda", arena_bytes=1 << 20)
for i in range(10):
    store.put(f"k{i}", torch.full((100 + i,), float(i)), announce=int(sys.argv[2]))
say("put")
wait()
store.close()
say("freed" if "free" in state.calls[state.calls.index("ipcGetMemHandle") + 1:][2:] else "kept")
wait()
"""
)


def used(store: Store) -> int:
    assert store.drain()
    return sum(store.segment.arena_used(a.slot) for a in store.segment.arenas())


def eventually(condition: Callable[[], bool], timeout_s: float = 10) -> None:
    end = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end, "it has not come about"
        time.sleep(0.02)


@pytest.fixture
def store(namespace: str, cuda: State) -> Iterator[Store]:
    with Store.open(namespace, arena="cuda", arena_bytes=ARENA_BYTES) as opened:
        yield opened


@pytest.fixture
def writer(namespace: str, cuda: State) -> Iterator[Peer]:
    """Another process with an arena and ten embeddings, on ``gpu-0``."""
    with Peer(WRITER, namespace, "2") as peer:
        assert peer.hear() == "put"
        yield peer
        peer.tell()
        peer.hear()
        peer.tell()
        peer.join()


def test_a1_every_offset_leads_to_its_own_bytes(writer: Peer, namespace: str) -> None:
    with Store.open(namespace) as store:
        for i in range(10):
            lease = store.get(f"k{i}")
            assert lease is not None
            assert torch.equal(lease.tensor, torch.full((100 + i,), float(i)))


def test_a1_a_handle_that_leads_elsewhere_is_found_out(store: Store, cuda: State) -> None:
    record = store.segment.arenas()[0]
    (block,) = cuda.blocks.values()
    cuda_arena.check_canary(block.address, record)
    block.map[0] ^= 1
    with pytest.raises(ArenaUnavailable, match="leads to another block"):
        cuda_arena.check_canary(block.address, record)


def test_a2_one_reads_ones_own_arena_without_its_handle(store: Store, cuda: State) -> None:
    store.put("k", torch.ones(10))
    with Store.open(store.namespace) as reader:
        lease = reader.get("k")
        assert lease is not None and torch.equal(lease.tensor, torch.ones(10))
    assert "ipcOpenMemHandle" not in cuda.calls


def test_a3_an_arena_is_opened_once_and_closed_once(writer: Peer, namespace: str, cuda: State) -> None:
    with Store.open(namespace) as first, Store.open(namespace) as second:
        for store in (first, second, first, second):
            lease = store.get("k0", announced=False)
            assert lease is not None
            lease.release()
    assert cuda.calls.count("ipcOpenMemHandle") == cuda.calls.count("ipcCloseMemHandle") == 1


def test_a4_a_hold_lives_until_the_kernels_that_could_read_are_done(store: Store, cuda: State) -> None:
    store.put("k", torch.ones(10))
    cuda.current_stream = 41  # the stream of the load
    lease = store.get("k")
    assert lease is not None
    cuda.current_stream = 99  # the freeing thread's stream
    cuda.hold_events()
    cuda.recorded.clear()
    lease.release()
    assert store.segment.total_holds() == 1
    assert not store.drain(timeout_s=0.1)
    cuda.let_all_events_complete()
    assert used(store) == 0
    assert [stream for _, stream in cuda.recorded] == [41]


def test_a4_a_view_freed_in_another_thread_is_released_like_any(store: Store, cuda: State) -> None:
    store.put("k", torch.ones(10))
    leases = [store.get("k")]
    thread = threading.Thread(target=leases.clear)
    thread.start()
    thread.join()
    assert used(store) == 0


def test_a5_an_owner_that_leaves_does_not_free_under_a_reader(namespace: str, cuda: State) -> None:
    with Store.open(namespace) as store, Peer(WRITER, namespace, "1") as writer:
        writer.hear()
        lease = store.get("k3")
        assert lease is not None
        writer.tell()
        assert writer.hear() == "kept"
        assert torch.equal(lease.tensor, torch.full((103,), 3.0))
        lease.release()
        writer.tell()
        writer.join()


def test_a5_an_owner_that_leaves_frees_when_nobody_maps_it(namespace: str, cuda: State) -> None:
    with Store.open(namespace) as store, Peer(WRITER, namespace, "1") as writer:
        writer.hear()
        lease = store.get("k3")
        assert lease is not None
        lease.release()
        store.map_arenas()  # what the timer does from now on: let go of arenas that are gone
        del lease
        writer.tell()
        assert writer.hear() == "freed"
        writer.tell()
        writer.join()


@pytest.mark.parametrize("devices", [["gpu-0"], ["gpu-1", "gpu-0"], ["gpu-9"]])
def test_a6_a_reader_maps_whatever_it_calls_its_devices(
    writer: Peer, namespace: str, cuda: State, devices: list[str]
) -> None:
    cuda.devices = devices
    with Store.open(namespace) as store:
        assert store.segment.arenas()[0].device == b"gpu-0".ljust(16, b"\0")
        lease = store.get("k5")
        assert lease is not None and torch.equal(lease.tensor, torch.full((105,), 5.0))
        lease.release()


def test_a7_without_peer_access_an_arena_has_nothing_for_this_engine(
    writer: Peer, namespace: str, cuda: State, said: list[str]
) -> None:
    cuda.devices, cuda.peer_access = ["gpu-9"], False
    with Store.open(namespace, role="pd.worker", engine=5) as store:
        store.map_arenas()
        store.map_arenas()
        (line,) = [line for line in said if "cannot be mapped here" in line]
        assert "'host'" in line
        record = store.segment.arenas()[0]
        assert store.mapped_by(5, "pd.worker", record.slot, record.incarnation) is None
        assert store.get("k0") is None
        assert store.segment.total_holds() == 0


def test_a7_an_arena_that_could_not_be_mapped_is_tried_again(
    writer: Peer, namespace: str, cuda: State, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attachment, "MAX_RETRY_S", 0.5)
    cuda.fail["ipcOpenMemHandle"] = "cudaErrorMemoryAllocation: out of memory"
    with Store.open(namespace, role="pd.worker", engine=5) as store:
        record = store.segment.arenas()[0]

        def mapped_by() -> int | None:
            return store.mapped_by(5, "pd.worker", record.slot, record.incarnation)

        store.map_arenas()
        store.map_arenas()
        assert cuda.calls.count("ipcOpenMemHandle") == 1, "the second came too early"
        eventually(lambda: cuda.calls.count("ipcOpenMemHandle") >= 3)
        assert mapped_by() is None
        cuda.fail["ipcOpenMemHandle"] = "cudaErrorNotSupported: operation not supported"
        eventually(lambda: any("operation not supported" in line for line in said))
        assert sum("cannot be mapped here" in line for line in said) == 2, "once for each reason"
        cuda.fail.clear()
        eventually(lambda: mapped_by() == 1)
        lease = store.get("k0")
        assert lease is not None and torch.equal(lease.tensor, torch.zeros(100))
        lease.release()


def test_a7_tries_become_rarer(
    writer: Peer, namespace: str, cuda: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.0]
    monkeypatch.setattr(attachment, "time", SimpleNamespace(monotonic=lambda: now[0]))
    cuda.fail["ipcOpenMemHandle"] = "cudaErrorMemoryAllocation: out of memory"
    directory = segment.join(namespace, fingerprint={}, max_items=4096, role="store")
    at = attachment.Attachment(namespace, directory, None)
    tried = []
    for _ in range(400):
        before = len(cuda.calls)
        at.map_arenas()
        if "ipcOpenMemHandle" in cuda.calls[before:]:
            tried.append(now[0])
        now[0] += 0.5
    at.close(0)
    assert [b - a for a, b in itertools.pairwise(tried)] == [0.5, 1, 2, 4, 8, 16, 32, 60, 60]


def test_an_event_is_recorded_on_its_device_whatever_the_threads_is(store: Store, cuda: State) -> None:
    cuda.devices = ["gpu-0", "gpu-1"]
    setDevice(1)
    store.put("k", torch.ones(10))
    assert cuda.recorded_on == [0] and getDevice() == 1
    assert store.settle("k")


@pytest.mark.parametrize("arena", ["cuda", "auto"])
def test_a_worker_on_one_gpu_makes_no_context_on_another(namespace: str, cuda: State, arena: str) -> None:
    """Its threads have chosen no device, and would have GPU 0."""
    cuda.devices = ["gpu-0", "gpu-1"]
    with Peer(WRITER, namespace, "2") as writer:
        writer.hear()
        with Store.open(namespace, arena=arena, arena_bytes=ARENA_BYTES, device=1) as store:
            assert store.segment.arena(store.segment.slot).device == b"gpu-1".ljust(16, b"\0")
            store.map_arenas()
            for key in ("k0", "k1"):
                lease = store.get(key)
                assert lease is not None
                thread = threading.Thread(target=lease.release)
                thread.start()
                thread.join()
            store.put("own", torch.ones(10))
            assert store.settle("own") and store.drain()
            writer.kill()
            eventually(lambda: "ipcCloseMemHandle" in cuda.calls)
        assert "free" in cuda.calls
        assert cuda.contexts == {1}
        assert cuda.device.context is None, "the caller's thread has what it had"
    assert cuda.calls.count("malloc") == 2, "one for the probe, one for good"


def test_a_device_that_is_not_there_is_an_obstacle(namespace: str, cuda: State) -> None:
    with pytest.raises(ArenaUnavailable, match="invalid device ordinal"):
        Store.open(namespace, arena="cuda", device=1)
    with Store.open(namespace, arena="auto", arena_bytes=1000, device=1) as store:
        assert store.segment.arenas()[0].kind == segment.HOST


def test_what_happens_while_a_graph_is_captured_neither_fails_nor_spoils_it(
    writer: Peer, namespace: str, cuda: State
) -> None:
    cuda.capturing = True
    with Store.open(namespace, arena="cuda", arena_bytes=ARENA_BYTES) as store:
        store.map_arenas()
        lease = store.get("k0")
        assert lease is not None
        del lease
        assert store.drain() and store.segment.total_holds() == 0
    assert cuda.captures_lost == 0
    assert cuda.device.capture_mode == GLOBAL, "the caller's thread has what it had"
    with pytest.raises(CUDARuntimeError, match="stream is capturing"):  # the control
        malloc(1)
    cuda.capturing = False


def test_a12_events_that_cannot_be_had_now_are_given_back(store: Store, cuda: State) -> None:
    before, cuda.event_limit = cuda.events, cuda.events + 10
    with pytest.raises(ArenaUnavailable, match="out of memory"):
        cuda_events.CompletionQueue(0)
    assert cuda.events == before


def test_torchs_default_device_changes_nothing(namespace: str, cuda: State) -> None:
    with torch.device("meta"), Store.open(namespace, arena="cuda", arena_bytes=ARENA_BYTES) as store:
        assert store.segment.arenas()[0].kind == segment.CUDA


def test_a8_the_arena_is_one_block_of_its_own(store: Store, cuda: State) -> None:
    assert len(cuda.blocks) == 1 and cuda.calls.count("malloc") == 2, "one for the probe, one for good"
    (block,) = cuda.blocks.values()
    assert block.nbytes >= ARENA_BYTES + 2 * cuda_arena.GUARD_BYTES
    assert block.nbytes % (2 << 20) == 0, "smaller ones share a block of CUDA's with others"


@pytest.mark.parametrize("broken", ["getDeviceCount", "malloc", "ipcGetMemHandle"])
def test_a10_explicit_cuda_fails_at_start_and_names_the_option(
    namespace: str, cuda: State, broken: str
) -> None:
    cuda.fail[broken] = "cudaErrorNotSupported: operation not supported"
    with pytest.raises(ArenaUnavailable, match=f"{broken} failed: cudaErrorNotSupported.*'host'"):
        Store.open(namespace, arena="cuda")
    assert not cuda.blocks


def test_a10_auto_takes_the_host_and_says_why(namespace: str, cuda: State, said: list[str]) -> None:
    cuda.fail["ipcGetMemHandle"] = "cudaErrorNotSupported: operation not supported"
    with Store.open(namespace, arena="auto", arena_bytes=1000) as store:
        assert store.segment.arenas()[0].kind == segment.HOST
    assert sum("arena 'auto' takes host: CUDA: ipcGetMemHandle failed" in line for line in said) == 1


def test_a10_auto_takes_cuda_where_the_probe_passes(namespace: str, cuda: State) -> None:
    with Store.open(namespace, arena="auto", arena_bytes=1000) as store:
        assert store.segment.arenas()[0].kind == segment.CUDA


@pytest.mark.parametrize("gpus", [1, 2])
def test_a7_auto_takes_the_host_where_no_two_gpus_are_peers(
    namespace: str, cuda: State, said: list[str], gpus: int
) -> None:
    cuda.devices, cuda.peer_access = [f"gpu-{i}" for i in range(gpus)], False
    with Store.open(namespace, arena="auto", arena_bytes=1000) as store:
        assert store.segment.arenas()[0].kind == (segment.CUDA if gpus == 1 else segment.HOST)
    assert any("no two of the GPUs here have peer access" in line for line in said) == (gpus == 2)


def test_a7_what_is_asked_for_is_taken(namespace: str, cuda: State) -> None:
    cuda.devices, cuda.peer_access = ["gpu-0", "gpu-1"], False
    with Store.open(namespace, arena="cuda", arena_bytes=1000) as store:
        assert store.segment.arenas()[0].kind == segment.CUDA


def test_a10_wsl_is_known_to_have_no_ipc(cuda: State, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_probe, "is_wsl", lambda: True)
    assert cuda_probe.obstacle() == "CUDA IPC is not supported under WSL2"


def test_a12_events_come_from_a_fixed_pool(store: Store, cuda: State) -> None:
    for i in range(1000):
        store.put(f"k{i}", torch.ones(4))
        lease = store.get(f"k{i}")
        assert lease is not None
        lease.release()
    assert used(store) == 0
    assert cuda.events == cuda_events.EVENTS


def test_a12_more_releases_than_events_wait_for_their_turn(store: Store, cuda: State) -> None:
    many = cuda_events.EVENTS * 2
    leases = []
    for i in range(many):
        store.put(f"k{i}", torch.ones(4))
        leases.append(store.get(f"k{i}"))
    cuda.hold_events()
    leases.clear()
    assert store.segment.total_holds() > 0
    cuda.let_all_events_complete()
    assert used(store) == 0 and store.segment.total_holds() == 0
    assert cuda.events == cuda_events.EVENTS


def test_e6_ready_is_set_only_after_the_copy_and_publishing_does_not_wait(store: Store, cuda: State) -> None:
    cuda.hold_events()
    outcome, token = store.publish("k", torch.ones(10), 1)
    assert outcome is Outcome.RESERVED
    found = store.find("k")
    assert found is not None and found.state == EntryState.WRITING
    assert store.get("k") is None
    cuda.let_all_events_complete()
    assert store.drain()
    lease = store.get("k")
    assert lease is not None and lease.token == token
    lease.release()


def test_a4_a_hold_stays_while_no_event_can_be_recorded(store: Store, cuda: State, said: list[str]) -> None:
    store.put("k", torch.ones(10))
    lease = store.get("k")
    assert lease is not None
    cuda.fail["eventRecord"] = "cudaErrorStreamCaptureUnsupported: operation not permitted"
    cuda.calls.clear()
    lease.release()
    assert not store.drain(timeout_s=0.5)
    assert store.segment.total_holds() == 1, "a kernel may still read"
    assert 2 <= cuda.calls.count("eventRecord") <= 10, "it is tried again, with pauses"
    assert sum("eventRecord failed" in line for line in said) == 1
    cuda.fail.clear()
    assert used(store) == 0 and store.segment.total_holds() == 0


def test_a4_a_stream_that_takes_no_event_delays_no_other(store: Store, cuda: State) -> None:
    leases = {}
    for stream in (41, 42):
        store.put(f"k{stream}", torch.ones(10))
        cuda.current_stream = stream
        leases[stream] = store.get(f"k{stream}")
    cuda.bad_streams.add(41)
    del leases[41]
    leases.clear()
    eventually(lambda: store.find("k42") is None)
    assert store.segment.total_holds() == 1
    cuda.bad_streams.clear()
    assert used(store) == 0


def test_a4_a_hold_whose_event_never_completes_ends_with_its_process(
    store: Store, cuda: State, said: list[str]
) -> None:
    store.put("k", torch.ones(10))
    lease = store.get("k")
    assert lease is not None
    cuda.fail["eventSynchronize"] = "cudaErrorIllegalAddress: an illegal memory access was encountered"
    lease.release()
    assert store.drain()
    assert store.segment.total_holds() == 1
    assert sum("eventSynchronize failed" in line for line in said) == 1


def test_a_wait_that_fails_once_changes_nothing(store: Store, cuda: State) -> None:
    cuda.fail["eventSynchronize"] = "cudaErrorStreamCaptureUnsupported: operation not permitted"
    store.publish("k", torch.ones(10), 1)
    eventually(lambda: "eventSynchronize" in cuda.calls)
    cuda.fail.clear()
    assert store.drain()
    lease = store.get("k")
    assert lease is not None and torch.equal(lease.tensor, torch.ones(10))
    lease.release()


def test_e6_an_extent_whose_copy_has_no_event_is_neither_published_nor_free(
    store: Store, cuda: State
) -> None:
    cuda.fail["eventRecord"] = "cudaErrorStreamCaptureUnsupported: operation not permitted"
    outcome, _ = store.publish("k", torch.ones(10), 1)
    assert outcome is Outcome.RESERVED
    found = store.find("k")
    assert found is not None and found.state == EntryState.WRITING
    assert not store.drain(timeout_s=0.2)
    cuda.fail.clear()
    assert store.drain()
    found = store.find("k")
    assert found is not None and found.state == EntryState.READY
    assert store.settle("k")


def test_announcements_that_come_while_it_is_written_are_added(store: Store, cuda: State) -> None:
    cuda.hold_events()
    store.publish("k", torch.ones(10), 1)
    outcome, _ = store.publish("k", torch.ones(10), 2)
    assert outcome is Outcome.ANNOUNCED
    cuda.let_all_events_complete()
    assert store.drain()
    found = store.find("k")
    assert found is not None and found.announced == 3
    assert store.settle("k", 3)


def test_a_copy_that_fails_is_never_published(store: Store, cuda: State) -> None:
    cuda.fail["eventSynchronize"] = "cudaErrorIllegalAddress: an illegal memory access was encountered"
    store.publish("k", torch.ones(10), 1)
    assert store.drain()
    assert store.find("k") is None and used(store) == 0


def test_nothing_calls_cuda_while_the_interpreter_ends(namespace: str, cuda: State) -> None:
    program = f"""
import atexit, sys, torch

@atexit.register
def last_of_all():
    state.calls.clear()
    lease.release()
    print(len(state.calls))

{STANDIN}
state = cuda_standin.install()
from ec_ipc import Store
store = Store.open({namespace!r}, arena="cuda", arena_bytes=1 << 20)
store.put("k", torch.ones(10), announce=2)
lease = store.get("k")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    assert done.stdout == "0\n"


def test_a_host_arena_reaches_a_gpu_by_one_copy_that_keeps_its_view(
    namespace: str, cuda: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ec_ipc import host_to_device

    copied: list[Any] = []

    def to(view: torch.Tensor, device: torch.device) -> torch.Tensor:
        copied.append(device)
        return view.clone()

    monkeypatch.setattr(host_to_device, "_queue_copy", to)
    with Store.open(namespace, arena="host", arena_bytes=ARENA_BYTES) as store:
        store.put("k", torch.ones(10))
        pin = store.segment.pin(store.digest("k"))
        assert pin is not None
        store.settle("k")
        cuda.hold_events()
        tensor = store.load(store.attachment.token(pin), torch.device("cuda"))
        del pin
        assert torch.equal(tensor, torch.ones(10)) and copied == [torch.device("cuda")]
        assert store.segment.total_holds() == 1, "the copy is still running"
        cuda.let_all_events_complete()
        cuda_arena.completions(0).drain(10)
        assert used(store) == 0
        assert cuda.calls.count("hostRegister") == 1


def test_pages_stay_locked_until_the_last_view_and_the_last_copy(
    namespace: str, cuda: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ec_ipc import host_to_device

    monkeypatch.setattr(host_to_device, "_queue_copy", lambda view, device: view.clone())
    with Store.open(namespace, arena="host", arena_bytes=ARENA_BYTES) as store:
        for key in ("viewed", "copied"):
            store.put(key, torch.ones(10))
        lease = store.get("viewed")
        pin = store.segment.pin(store.digest("copied"))
        assert lease is not None and pin is not None and store.settle("copied")
        cuda.hold_events()
        store.load(store.attachment.token(pin), torch.device("cuda"))
        del pin
        monkeypatch.setattr(store.attachment, "drain", lambda timeout_s: False)  # it would wait for the copy
    assert "hostRegister" in cuda.calls and "hostUnregister" not in cuda.calls
    cuda.let_all_events_complete()
    assert cuda_arena.completions(0).drain(10)
    assert "hostUnregister" not in cuda.calls, "there is a view"
    lease.release()
    del lease
    eventually(lambda: cuda.calls.count("hostUnregister") == 1)

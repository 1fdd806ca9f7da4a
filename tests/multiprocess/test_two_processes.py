"""The store between real processes: who frees, who survives whom, and what is left at the end."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from ec_ipc import Store, names, segment, shared_memory
from ec_ipc.errors import ForkedHandle, OutOfSharedMemory, SegmentError

from .processes import Peer, eventually, peers

ARENA_BYTES = 1 << 20

WRITER = """
store = Store.open(sys.argv[1], arena="host", arena_bytes=1 << 20)
store.put("k", torch.arange(1000, dtype=torch.float32), announce=int(sys.argv[2]))
say("put"); wait()
"""

READER = """
store = Store.open(sys.argv[1])
lease = store.get("k")
say(lease.tensor.sum().item()); wait()
"""


def used(store: Store) -> int:
    return sum(store.segment.arena_used(a.slot) for a in store.segment.arenas())


def test_a_reader_in_another_process_sees_the_bytes_and_its_release_frees_them(namespace: str) -> None:
    with Store.open(namespace, arena="host", arena_bytes=ARENA_BYTES) as store:
        store.put("k", torch.arange(1000, dtype=torch.float32))
        with Peer(READER + "lease.release(); say('released'); wait()", namespace) as reader:
            assert float(reader.hear()) == 499500.0
            assert used(store) > 0 and store.segment.total_holds() == 1
            reader.tell()
            assert reader.hear() == "released"
            assert used(store) == 0


def test_what_a_killed_reader_held_is_freed_with_everybody_idle(namespace: str) -> None:
    with Store.open(namespace, arena="host", arena_bytes=ARENA_BYTES) as store:
        store.put("k", torch.arange(1000, dtype=torch.float32))
        with Peer(READER, namespace) as reader:
            reader.hear()
            reader.kill()
            eventually(lambda: used(store) == 0)
        assert store.segment.counters()["reclaimed"] == 1


def test_one_of_two_readers_killed_leaves_the_other_its_bytes(namespace: str) -> None:
    with Store.open(namespace, arena="host", arena_bytes=ARENA_BYTES) as store:
        store.put("k", torch.arange(1000, dtype=torch.float32), announce=2)
        lease = store.get("k")
        assert lease is not None
        with Peer(READER, namespace) as reader:
            reader.hear()
            reader.kill()
        eventually(lambda: store.segment.total_holds() == 1)
        assert lease.tensor.sum().item() == 499500.0
        lease.release()
        assert used(store) == 0


def test_readers_go_on_while_the_producer_is_stopped(namespace: str) -> None:
    with Peer(WRITER, namespace, "2") as writer:
        writer.hear()
        with Store.open(namespace) as store:
            os.kill(writer.pid, signal.SIGSTOP)
            for _ in range(2):
                lease = store.get("k")
                assert lease is not None and lease.tensor.sum().item() == 499500.0
                lease.release()
            assert used(store) == 0
            os.kill(writer.pid, signal.SIGCONT)
        writer.tell()
        writer.join()


def test_a_killed_producers_embeddings_are_missed_and_its_memory_is_gone(namespace: str) -> None:
    with Peer(WRITER, namespace, "1") as writer:
        writer.hear()
        with Store.open(namespace) as store:
            writer.kill()
            eventually(lambda: not store.segment.arenas())
            assert store.get("k") is None
            assert store.segment.entries() == []
            assert names.arena_names(store.name) == []


def test_a_view_of_a_killed_producers_arena_stays_valid(namespace: str) -> None:
    with Peer(WRITER, namespace, "1") as writer:
        writer.hear()
        with Store.open(namespace) as store:
            lease = store.get("k")
            assert lease is not None
            writer.kill()
            eventually(lambda: not store.segment.arenas())
            assert lease.tensor.sum().item() == 499500.0
            lease.release()
            eventually(lambda: store.segment.entries() == [])


def test_a_restarted_producer_is_read_without_restarting_the_reader(namespace: str) -> None:
    with Store.open(namespace) as store:
        for _ in range(3):
            with Peer(WRITER, namespace, "1") as writer:
                writer.hear()
                lease = store.get("k")
                assert lease is not None and lease.tensor.sum().item() == 499500.0
                lease.release()


def test_a_stale_segment_of_killed_processes_is_joined_and_cleaned(namespace: str) -> None:
    with Peer(WRITER, namespace, "1") as writer:
        writer.hear()
        writer.kill()
    assert names.arena_names(names.segment_name(namespace))
    with Store.open(namespace, arena="host", arena_bytes=ARENA_BYTES) as store:
        assert [p.pid for p in store.segment.participants()] == [os.getpid()]
        assert used(store) == 0 and store.get("k") is None


def test_the_last_one_out_unlinks_and_an_earlier_one_does_not(namespace: str) -> None:
    with peers((READER.split("lease")[0] + "say('in'); wait(); store.close()", namespace)) as (peer,):
        peer.hear()
        store = Store.open(namespace)
        store.close()
        assert namespace in names.namespaces()
        peer.tell()
        peer.join()
        assert namespace not in names.namespaces()


def test_a_process_that_forgets_to_close_leaves_nothing(namespace: str) -> None:
    with Peer(WRITER, namespace, "1") as writer:
        writer.hear()
        writer.tell()
        writer.join()
    assert namespace not in names.namespaces()
    assert names.arena_names(names.segment_name(namespace)) == []


def test_two_processes_that_start_at_once_meet(namespace: str) -> None:
    program = "store = Store.open(sys.argv[1]); say('in'); wait()"
    with peers(*[(program, namespace)] * 6) as started:
        for peer in started:
            assert peer.hear() == "in"
        with Store.open(namespace) as store:
            assert sum(p.alive for p in store.segment.participants()) == 7
        for peer in started:
            peer.tell()
            peer.join()


def test_a_forked_childs_handle_refuses_and_releases_nothing(namespace: str) -> None:
    with Store.open(namespace, arena="host", arena_bytes=ARENA_BYTES) as store:
        store.put("k", torch.arange(1000, dtype=torch.float32))
        lease = store.get("k")
        assert lease is not None
        child = os.fork()
        if child == 0:
            code = 1
            try:
                store.get("k")
            except ForkedHandle:
                lease.release()
                store.close()
                code = 0
            os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert store.segment.total_holds() == 1
        assert lease.tensor.sum().item() == 499500.0
        lease.release()
        assert used(store) == 0


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_the_mode_is_0600_under_any_umask(namespace: str, umask: int) -> None:
    before = os.umask(umask)
    try:
        with Store.open(namespace, arena="host", arena_bytes=ARENA_BYTES) as store:
            files = [store.name, *names.arena_names(store.name)]
            assert len(files) == 2
            for file in files:
                path = names.SHARED_MEMORY_DIRECTORY / file.removeprefix("/")
                assert path.stat().st_mode & 0o777 == 0o600
    finally:
        os.umask(before)


def test_a_segment_with_a_wider_mode_is_refused(namespace: str) -> None:
    with Store.open(namespace) as store:
        path = names.SHARED_MEMORY_DIRECTORY / store.name.removeprefix("/")
        path.chmod(0o666)
        with pytest.raises(SegmentError, match="has mode 0666, wider than 0600"):
            Store.open(namespace)


def test_another_users_segment_is_refused(namespace: str) -> None:
    if os.geteuid() != 0:
        pytest.fail("this test gives a segment to another user, which needs root")
    with Store.open(namespace) as store:
        path = names.SHARED_MEMORY_DIRECTORY / store.name.removeprefix("/")
        os.chown(path, 12345, -1)
        with pytest.raises(SegmentError, match="belongs to uid 12345"):
            Store.open(namespace)
        os.chown(path, 0, -1)


def test_an_arena_that_does_not_fit_says_what_is_needed_and_available(namespace: str) -> None:
    available = shared_memory.available_bytes()
    with pytest.raises(
        OutOfSharedMemory, match=r"needs \d+ bytes and /dev/shm has \d+ available.*--shm-size"
    ):
        Store.open(namespace, arena="host", arena_bytes=2 * available)


def test_other_facts_or_another_size_are_refused_by_name(namespace: str) -> None:
    with Store.open(namespace, fingerprint={"dtype": "float32", "model": "m"}):
        with pytest.raises(SegmentError, match="dtype: 'float32' there, 'bfloat16' here"):
            Store.open(namespace, fingerprint={"dtype": "bfloat16", "model": "m"})
        with pytest.raises(SegmentError, match="max_items 4096, this participant asks for 16"):
            Store.open(namespace, fingerprint={"dtype": "float32", "model": "m"}, max_items=16)


def test_the_readme_example_works_between_two_processes(tmp_path: Path) -> None:
    text = (Path(__file__).parents[2] / "README.md").read_text()
    writer, reader = (part.split("```")[0] for part in text.split("```python\n")[1:3])
    waiting = writer.replace('input("press', 'print("put", flush=True); input("press')
    assert waiting != writer
    put = subprocess.Popen(
        [sys.executable, "-c", waiting], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert put.stdout is not None and put.stdout.readline() == "put\n"
        got = subprocess.run([sys.executable, "-c", reader], capture_output=True, text=True, check=True)
        assert got.stdout == f"tensor({576 * 4096}.)\n"
        put.communicate("\n")
        assert put.returncode == 0
    finally:
        put.kill()
        put.wait()
    assert "demo" not in names.namespaces()


ORPHAN = """
import signal
from ec_ipc import host_arena
made = host_arena.shared_memory.reserve
def reserve(*arguments):
    made(*arguments)
    os.kill(os.getpid(), signal.SIGKILL)
host_arena.shared_memory.reserve = reserve
store = Store.open(sys.argv[1])
say("in")
store.create_arena("host", 1 << 20)
"""


def test_the_memory_of_a_process_killed_while_it_makes_its_arena_is_unlinked(namespace: str) -> None:
    with Store.open(namespace) as store:
        with Peer(ORPHAN, namespace) as peer:
            peer.hear()
            peer.process.wait()
        eventually(lambda: names.arena_names(store.name) == [])
        assert store.segment.arenas() == []


def test_arenas_without_a_segment_are_removed_by_name(namespace: str) -> None:
    with Peer(WRITER, namespace, "1") as writer:
        writer.hear()
        writer.kill()
    assert shared_memory.unlink(names.segment_name(namespace))
    assert namespace in names.namespaces()
    assert segment.reap(namespace) == "removed 1 arenas that had no segment"
    assert segment.reap(namespace) == "there is none"


def test_a_join_that_fails_leaves_no_segment(namespace: str) -> None:
    with pytest.raises(ValueError, match="role"):
        Store.open(namespace, role="x" * 200)
    assert namespace not in names.namespaces()


def test_facts_of_any_length_make_a_fingerprint(namespace: str) -> None:
    facts = {"options": {"text": "x" * 5000}, "model": "m"}
    with Store.open(namespace, fingerprint=facts), pytest.raises(SegmentError, match="model: 'm' there"):
        Store.open(namespace, fingerprint={**facts, "model": "n"})

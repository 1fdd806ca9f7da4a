"""Words of a namespace's segment are overwritten while stores in other processes put and read.

The C++ programs beside this do it a hundred times as often, under sanitizers; here it is the whole way from
the key to the tensor's bytes. Whatever a store says, it is a tensor, a miss or one of our own errors.
"""

import mmap
import random
import struct
import time
from collections.abc import Iterator
from contextlib import closing

import pytest
from multiprocess.processes import Peer, peers

from ec_ipc import _core, names, shared_memory

SEED = 1
ROUNDS = 300
DAMAGES_A_ROUND = 4
WORD = struct.Struct("<Q")

OPEN = """
import select, time
from ec_ipc.errors import ECIPCError
def told(): return select.select([sys.stdin], [], [], 0)[0]
keys = [f"key {i}" for i in range(12)]
answers = {"tensors": 0, "misses": 0, "errors": 0}
"""

READER = """
with Store.open(sys.argv[1], max_items=16, role="reader") as store:
    say("ready")
    while not told():
        for key in keys:
            try:
                lease = store.get(key)
                if lease is None:
                    answers["misses"] += 1
                else:
                    lease.tensor.view(-1).view(torch.uint8).sum()
                    answers["tensors"] += 1
                    lease.release()
            except ECIPCError:
                answers["errors"] += 1
        time.sleep(0.0005)
    say(answers["tensors"], answers["misses"], answers["errors"])
    os._exit(0)  # what is damaged need not be left in order
"""

WRITER = """
with Store.open(sys.argv[1], arena="host", arena_bytes=1 << 16, max_items=16, role="writer") as store:
    say("ready")
    while not told():
        for number, key in enumerate(keys):
            try:
                store.put(key, torch.full((number + 1, 40), float(number)), announce=2)
                store.settle(key)
                store.raise_pressure()
                answers["tensors"] += 1
            except ECIPCError:
                answers["errors"] += 1
        time.sleep(0.0005)
    say(answers["tensors"], answers["misses"], answers["errors"])
    os._exit(0)
"""


@pytest.fixture
def stores(namespace: str) -> Iterator[list[Peer]]:
    with peers((OPEN + WRITER, namespace), (OPEN + READER, namespace)) as started:
        yield started
    # Killed, so that nobody left in order.
    for name in [*names.arena_names(names.segment_name(namespace)), names.segment_name(namespace)]:
        shared_memory.unlink(name)


def damaged_value(before: int, chance: random.Random) -> int:
    """What might stand there instead: a limit, a neighbour, another bit, anything."""
    return chance.choice(
        [
            0,
            2**64 - 1,
            before ^ 1 << chance.randrange(64),
            (before + chance.randrange(512) - 256) % 2**64,
            chance.randrange(4096),
            chance.getrandbits(64),
        ]
    )


def test_stores_answer_with_a_tensor_a_miss_or_an_error_of_ours(namespace: str, stores: list[Peer]) -> None:
    for store in stores:
        assert store.hear() == "ready"
    fd = shared_memory.open_existing(names.segment_name(namespace))
    assert fd is not None
    chance = random.Random(SEED)
    with closing(mmap.mmap(fd, _core.segment_bytes(16))) as memory:
        entries = len(memory) - 192 * 32
        for _ in range(ROUNDS):
            undo = []
            for _ in range(DAMAGES_A_ROUND):
                begin = chance.choice([0, entries])
                place = chance.randrange(begin, len(memory), 8)
                (before,) = WORD.unpack_from(memory, place)
                WORD.pack_into(memory, place, damaged_value(before, chance))
                if place < entries:
                    undo.append((place, before))
            time.sleep(0.003)
            # Or nothing would be put or found any more: nobody repairs a record.
            for place, before in reversed(undo):
                WORD.pack_into(memory, place, before)
    for store in stores:
        store.tell()
    written = [int(number) for number in stores[0].hear().split()]
    read = [int(number) for number in stores[1].hear().split()]
    for store in stores:
        store.join()
    assert written[0] > 0
    assert read[0] > 0 and read[1] > 0

"""atheris (libFuzzer for Python) over the parsing of a segment: whatever its file holds, it is attached and
looked at, joined and read from, or refused by one of our own errors.

    python tests/fuzz/atheris_segment.py -runs=100000 [-seed=N] [other options of libFuzzer]

Coverage guides it through our Python; the core is compiled, so what happens there is found by chance. The
C++ programs beside this have the sanitizers.
"""

import os
import sys

import atheris

with atheris.instrument_imports(include=["ec_ipc"]):
    from ec_ipc import _core, dtypes
    from ec_ipc.errors import ECIPCError
    from ec_ipc.keys import key_digest

ITEMS = 4
ARENA_BYTES = 1 << 16
WORD = 8
HEADER_WORDS = 200
FINGERPRINT = bytes(_core.FINGERPRINT_BYTES)
KEYS = [key_digest(f"key {number}", FINGERPRINT) for number in range(3)]


def inhabited_segment() -> bytes:
    """A segment with an arena, two embeddings to read and one that is being written."""
    fd = os.memfd_create("base")
    os.ftruncate(fd, _core.segment_bytes(ITEMS))
    _core.initialise_segment(fd, ITEMS, FINGERPRINT, "{}")
    segment = _core.Segment(os.dup(fd))
    segment.join("writer", 1, 1.0)
    segment.set_arena(1, ARENA_BYTES, bytes(_core.DEVICE_BYTES), bytes(_core.HANDLE_BYTES), 1, 1.0)
    for number, key in enumerate(KEYS):
        placed = segment.reserve(key, 4 * (number + 1), 0, (number + 1,), 1, 60.0, True, 1.0)
        if number < 2:
            segment.publish(placed.entry, placed.generation, 0)
    content = os.pread(fd, os.fstat(fd).st_size, 0)
    os.close(fd)
    return content


BASE = inhabited_segment()


@atheris.instrument_func
def damaged(data: atheris.FuzzedDataProvider) -> bytes:
    """The segment with some of its words replaced, and perhaps cut off."""
    content = bytearray(BASE)
    for _ in range(data.ConsumeIntInRange(0, 12)):
        words = HEADER_WORDS if data.ConsumeBool() else len(content) // WORD
        offset = data.ConsumeIntInRange(0, words - 1) * WORD
        content[offset : offset + WORD] = data.ConsumeInt(WORD).to_bytes(WORD, "little", signed=True)
    size = len(content)
    return bytes(content[: data.ConsumeIntInRange(0, size)] if data.ConsumeIntInRange(0, 9) == 0 else content)


@atheris.instrument_func
def look_at(segment: _core.Segment) -> None:
    for look in ("participants", "arenas", "entries", "counters", "total_holds"):
        getattr(segment, look)()
    for key in KEYS:
        segment.find(key)
    segment.maintain(1.0)
    segment.join("reader", 2, 1.0)
    for key in KEYS:
        pin = segment.pin(key)
        if pin is not None:
            dtypes.decode(pin.dtype, pin.shape, pin.nbytes)
            assert pin.offset + pin.nbytes <= max(arena.nbytes for arena in segment.arenas())
            segment.settle(pin.entry, pin.generation)
            pin.release()
    segment.leave(1.0)


@atheris.instrument_func
def one_input(data: bytes) -> None:
    fd = os.memfd_create("fuzzed")
    try:
        os.write(fd, damaged(atheris.FuzzedDataProvider(data)))
        look_at(_core.Segment(os.dup(fd)))
    except ECIPCError:
        pass
    finally:
        os.close(fd)


if __name__ == "__main__":
    atheris.Setup([sys.argv[0], "-max_len=256", "-len_control=0", *sys.argv[1:]], one_input)
    atheris.Fuzz()

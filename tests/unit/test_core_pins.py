"""Pins: counted holds of one process, and the views that keep them."""

import gc
import os
import threading
from collections.abc import Iterator

import pytest
import torch
from core_support import KILOBYTE, PATIENCE, SegmentFile, key, put
from torch.utils.dlpack import from_dlpack

from ec_ipc import _core

ARENA = 64 * KILOBYTE
UINT = 1  # DLPack's type code


@pytest.fixture
def file() -> Iterator[SegmentFile]:
    segment_file = SegmentFile()
    yield segment_file
    segment_file.close()


def mapping(nbytes: int = ARENA) -> _core.Mapping:
    fd = os.memfd_create("arena")
    os.ftruncate(fd, nbytes)
    return _core.Mapping(fd, nbytes, False)


def pin_of(segment: _core.Segment, number: int) -> _core.Pin:
    pin = segment.pin(key(number))
    assert pin is not None
    return pin


def test_views_of_one_process_share_one_bit(file: SegmentFile) -> None:
    e, pd = file.producer(ARENA), file.reader()
    placed = put(e, 1)
    pins = [pin_of(pd, 1) for _ in range(5)]
    by_token = pd.pin_token(placed.entry, placed.generation)
    assert by_token is not None
    assert (pd.holds, pd.total_holds()) == (6, 1)
    assert pd.settle(placed.entry, placed.generation)
    pins.clear()
    assert (pd.holds, pd.total_holds()) == (1, 1)
    assert pd.find(key(1)) is not None
    by_token.release()
    assert by_token.released
    by_token.release()
    assert (pd.holds, pd.total_holds()) == (0, 0)
    assert pd.find(key(1)) is None
    assert pd.counters()["late_releases"] == 0


def test_every_participant_has_a_bit_of_its_own(file: SegmentFile) -> None:
    e = file.producer(ARENA)
    readers = [file.reader() for _ in range(35)]
    put(e, 1)
    pins = [pin_of(reader, 1) for reader in [e, *readers]]
    assert e.total_holds() == 36
    assert e.settle_key(key(1))
    while pins:
        assert e.find(key(1)) is not None
        pins.pop()
    assert e.find(key(1)) is None


def test_a_tensor_keeps_its_hold_until_its_storage_dies(file: SegmentFile) -> None:
    e, pd = file.producer(ARENA), file.reader()
    placed = put(e, 1, 1000)
    memory = mapping()
    memoryview(memory)[:4] = b"\x01\x02\x03\x04"
    pin = pin_of(pd, 1)
    tensor = from_dlpack(pin.to_dlpack(memory, UINT, 8))
    view = tensor[2:4].view(torch.int16)
    del pin, tensor, memory
    gc.collect()
    assert pd.settle(placed.entry, placed.generation)
    assert pd.holds == 1
    assert view.tolist() == [0x0403]
    del view
    assert pd.holds == 0
    assert pd.find(key(1)) is None


def test_a_capsule_gives_exactly_the_extent(file: SegmentFile) -> None:
    e = file.producer(ARENA)
    put(e, 1, 300)
    put(e, 2, 200)
    memory = mapping()
    pin = pin_of(e, 2)
    assert pin.offset == 512
    view = from_dlpack(pin.to_dlpack(memory, UINT, 8))
    assert (view.shape, view.dtype, view.stride()) == ((200,), torch.uint8, (1,))
    view[:] = ord("x")
    whole = memoryview(memory)
    assert whole.nbytes == memory.nbytes == ARENA
    assert bytes(whole[511:713]) == b"\0" + b"x" * 200 + b"\0"
    assert memory.address % 4096 == 0


def test_a_capsule_that_nobody_takes_gives_the_pin_back(file: SegmentFile) -> None:
    e = file.producer(ARENA)
    put(e, 1)
    pin = pin_of(e, 1)
    capsule = pin.to_dlpack(mapping(), UINT, 8)
    del pin
    assert e.holds == 1
    del capsule
    assert e.holds == 0


def test_a_pin_with_a_capsule_is_dropped_and_not_released(file: SegmentFile) -> None:
    e = file.producer(ARENA)
    put(e, 1)
    pin = pin_of(e, 1)
    pin.to_dlpack(mapping(), UINT, 8)
    with pytest.raises(_core.SegmentError, match="in use"):
        pin.release()
    assert not pin.released
    del pin
    assert e.holds == 0


def test_a_pin_belongs_to_one_mapping(file: SegmentFile) -> None:
    """The first tensor's memory would go with the first mapping."""
    e = file.producer(ARENA)
    put(e, 1)
    pin, memory = pin_of(e, 1), mapping()
    tensors = [from_dlpack(pin.to_dlpack(memory, UINT, 8)) for _ in range(2)]
    with pytest.raises(_core.SegmentError, match="another mapping"):
        pin.to_dlpack(mapping(), UINT, 8)
    assert tensors[0].data_ptr() == tensors[1].data_ptr()


def test_a_mapping_too_small_for_the_extent_is_refused(file: SegmentFile) -> None:
    e = file.producer(ARENA)
    put(e, 1, 1000)
    pin = pin_of(e, 1)
    with pytest.raises(_core.SegmentError, match=r"1000.*999"):
        pin.to_dlpack(mapping(999), UINT, 8)
    pin.release()
    with pytest.raises(_core.SegmentError, match="released"):
        pin.to_dlpack(mapping(), UINT, 8)


@pytest.mark.parametrize("bits", [0, 7, 16, 255])
def test_a_dtype_that_does_not_fit_the_extent_is_refused(file: SegmentFile, bits: int) -> None:
    e = file.producer(ARENA)
    put(e, 1, 1000)
    pin = pin_of(e, 1)
    with pytest.raises(_core.SegmentError, match=rf"1000.*{bits} bits"):
        pin.to_dlpack(mapping(), UINT, bits)
    pin.release()


def test_a_mapping_checks_the_size_and_closes_its_descriptor() -> None:
    fd = os.memfd_create("short")
    os.ftruncate(fd, 4096)
    with pytest.raises(_core.SegmentError, match=r"4096.*4097"):
        _core.Mapping(fd, 4097, False)
    with pytest.raises(OSError):
        os.fstat(fd)
    fd = os.memfd_create("right")
    os.ftruncate(fd, 4096)
    assert _core.Mapping(fd, 4096, True).nbytes == 4096
    with pytest.raises(OSError):
        os.fstat(fd)


def test_pins_outlive_the_segment_object(file: SegmentFile) -> None:
    e, pd = file.producer(ARENA), file.reader()
    put(e, 1)
    pin = pin_of(pd, 1)
    del pd
    gc.collect()
    assert e.maintain(PATIENCE).reclaimed == 0
    assert e.total_holds() == 1
    del pin
    assert e.total_holds() == 0


def test_pins_come_from_segments_only() -> None:
    with pytest.raises(TypeError):
        _core.Pin()


def test_leaving_with_live_pins_ends_with_the_last_of_them(file: SegmentFile) -> None:
    e, pd = file.producer(ARENA), file.reader()
    put(e, 1)
    pins = [pin_of(pd, 1), pin_of(pd, 1)]
    assert not pd.leave(PATIENCE)
    assert not pd.leave(PATIENCE)
    assert pd.pin(key(1)) is None
    assert e.anyone_else()
    pins.pop()
    assert e.anyone_else()
    pins.pop()
    assert not e.anyone_else()
    assert pd.slot == -1
    assert [p.slot for p in e.participants()] == [e.slot]
    assert pd.leave(PATIENCE)


def test_threads_that_pin_and_drop_leave_no_hold(file: SegmentFile) -> None:
    e = file.producer(ARENA)
    put(e, 1)
    missed = []

    def work() -> None:
        for _ in range(3000):
            if e.pin(key(1)) is None:
                missed.append(1)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not missed
    assert (e.holds, e.total_holds()) == (0, 0)
    assert e.find(key(1)) is not None


def test_threads_share_the_writer_byte_of_one_handle(file: SegmentFile) -> None:
    e = file.producer(ARENA)
    failures = []

    def work(first: int) -> None:
        try:
            for number in range(first, first + 200):
                placed = put(e, number, 64)
                assert e.settle(placed.entry, placed.generation)
                e.maintain(PATIENCE)
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(1000 * n,)) for n in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert e.entries() == []
    assert e.counters()["published"] == 600

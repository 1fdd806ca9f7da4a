"""Copies into a host arena: every size, order of bytes and kind of tensor arrives as it was."""

import os

import pytest
import torch

from ec_ipc import _core
from ec_ipc.errors import SegmentError
from ec_ipc.host_arena import HostArena, _threads

MIB = 1 << 20
STREAMED = 4 * MIB


def arena(nbytes: int) -> tuple[HostArena, torch.Tensor]:
    fd = os.memfd_create("arena")
    os.ftruncate(fd, nbytes)
    mapping = _core.Mapping(fd, nbytes, populate=False)
    return HostArena(mapping), torch.frombuffer(mapping, dtype=torch.uint8)


SIZES = [1, 4095, STREAMED - 1, STREAMED, STREAMED + 1, STREAMED + 5 * 4096 + 3, 3 * STREAMED + 77]


@pytest.mark.parametrize("nbytes", SIZES)
@pytest.mark.parametrize("skew", [0, 1])
@pytest.mark.parametrize("threads", [0, 1, 2, 3, 1000])
def test_bytes_arrive_whatever_their_number_and_address(nbytes: int, skew: int, threads: int) -> None:
    own, there = arena(nbytes + 512)
    source = torch.randint(0, 256, (nbytes + skew,), dtype=torch.uint8)[skew:]
    assert own._mapping is not None
    begin = 256 + skew  # an arena's extents are aligned; a mapping takes any offset
    own._mapping.write(begin, source.data_ptr(), nbytes, threads)
    assert torch.equal(there[begin : begin + nbytes], source)
    assert not there[:begin].any() and not there[begin + nbytes :].any()


def test_a_copy_takes_the_threads_that_torch_has_where_it_is_bound_to_as_many_cores() -> None:
    torch_before, cores_before = torch.get_num_threads(), os.sched_getaffinity(0)
    try:
        torch.set_num_threads(3)
        assert _threads(8 * MIB) == min(3, len(cores_before))
        assert _threads(8 * MIB - 1) == 1
        torch.set_num_threads(1)
        assert _threads(64 * MIB) == 1
        torch.set_num_threads(3)
        os.sched_setaffinity(0, {min(cores_before)})
        assert _threads(64 * MIB) == 1
    finally:
        os.sched_setaffinity(0, cores_before)
        torch.set_num_threads(torch_before)


@pytest.mark.parametrize(
    "source",
    [
        torch.arange(24.0).view(4, 6).t(),
        torch.arange(24.0).view(4, 6)[:, ::2],
        torch.tensor([1 + 2j]).conj().imag,
        torch.arange(6.0, requires_grad=True),
    ],
    ids=["transposed", "every other column", "negated lazily", "with a gradient"],
)
def test_what_is_no_plain_row_of_bytes_arrives_too(source: torch.Tensor) -> None:
    own, there = arena(4096)
    own.write(0, source)
    assert torch.equal(there[: source.nbytes].view(source.dtype).view(source.shape), source)


def test_a_large_tensor_arrives() -> None:
    own, there = arena(16 * MIB)
    source = torch.randn(3 * MIB + 1)
    own.write(256, source)
    assert torch.equal(there[256 : 256 + source.nbytes].view(torch.float32), source)


def test_a_write_beyond_the_mapping_is_refused() -> None:
    fd = os.memfd_create("arena")
    os.ftruncate(fd, 4096)
    mapping = _core.Mapping(fd, 4096, populate=False)
    source = torch.ones(16, dtype=torch.uint8)
    for offset, nbytes in ((4090, 16), (2**64 - 1, 16), (0, 4097)):
        with pytest.raises(SegmentError, match="a write of"):
            mapping.write(offset, source.data_ptr(), nbytes)

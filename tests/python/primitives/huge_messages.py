"""Messages of more than 2^31 bytes and of more than 2^31 elements, bit by bit, with the adjoint.

On two ranks: mpiexec -n 2 python -m mpi4py -m pytest tests/python/primitives/huge_messages.py. It takes 14 GiB of
memory, and has no name that pytest looks for.
"""

import numpy as np
import pytest
import torch
from mpi4py import MPI

import distdl
import distdl.nn as dnn

pytestmark = pytest.mark.turns(4)

rank = MPI.COMM_WORLD.rank
ELEMENTS = 2**31 + 12_345
# Of a byte each, so that there are as many elements; the second has fewer, but as many bytes, and can be summed.
MANY = {"elements": (ELEMENTS, torch.int8), "bytes": (ELEMENTS // 8 + 1, torch.float64)}


@pytest.fixture(params=MANY.values(), ids=MANY)
def many(request):
    distdl.memory.empty_pool()
    yield request.param
    distdl.memory.empty_pool()


@pytest.fixture
def partitions():
    assert MPI.COMM_WORLD.size == 2
    world = distdl.Partition()
    return world.create_partition_inclusive([0]), world.create_cartesian_topology_partition([2])


def pattern(n, dtype, start=0):
    """Values that differ from place to place also where places are far apart: a prime period."""
    block = (torch.arange(start, start + 8_191 * 127) % 127).to(dtype)
    return block.repeat(-(-n // block.numel()))[:n]


def holds(x, n, dtype, start=0, times=1):
    """Whether x is this often the pattern, compared in pieces: a copy would not fit."""
    step = 8_191 * 127 * 64
    expected = pattern(min(step, n), dtype, start) * times
    return x.shape == (n,) and all(torch.equal(x[i : i + step], expected[: n - i]) for i in range(0, n, step))


def test_broadcast_and_its_adjoint(many, partitions):
    n, dtype = many
    P_0, P_x = partitions
    layer = dnn.Broadcast(P_0, P_x)
    x = pattern(n, dtype) if rank == 0 else distdl.zero_volume_tensor(dtype=dtype)
    y = layer(x)
    assert holds(y, n, dtype)
    back = layer._operator.adjoint(x, y)
    assert holds(back, n, dtype, times=2) if rank == 0 else back.numel() == 0


def test_all_sum_reduce(many, partitions):
    n, dtype = many
    y = dnn.AllSumReduce(partitions[1], [0])(pattern(n, dtype))
    assert holds(y, n, dtype, times=2)


def test_gather_and_its_adjoint(many, partitions):
    """The blocks together are that large; each rank's own has half of it."""
    n, dtype = many
    layer = dnn.AllGather(partitions[1], [0])
    half = n // 2
    x = pattern(half, dtype, start=rank * half)
    y = layer(x)
    assert holds(y[:half], half, dtype)
    assert holds(y[half:], half, dtype, start=half)
    del x
    back = layer._operator.adjoint(y[rank * half : (rank + 1) * half], y)
    assert holds(back, half, dtype, start=rank * half, times=2)


def test_repartition_and_its_adjoint(many, partitions):
    """All of it from a rank to the other."""
    n, dtype = many
    P_0, _ = partitions
    P_1 = distdl.Partition().create_partition_inclusive([1])
    layer = dnn.Repartition(P_0, P_1)
    x = pattern(n, dtype) if rank == 0 else distdl.zero_volume_tensor(dtype=dtype)
    y = layer(x)
    assert holds(y, n, dtype) if rank == 1 else y.numel() == 0
    back = layer._operator.adjoint(x, y)
    assert holds(back, n, dtype) if rank == 0 else back.numel() == 0


def test_halo_exchange_and_its_adjoint(many, partitions):
    """A halo as wide as the neighbor's whole block."""
    n, dtype = many
    layer = dnn.HaloExchange(partitions[1], [(n, 0)] if rank == 1 else [(0, 0)])
    x = pattern(n if rank == 0 else 5, dtype)
    y = layer(x)
    if rank == 0:
        assert holds(y, n, dtype)
    else:
        assert holds(y[:n], n, dtype)
        assert torch.equal(y[n:], x)
    back = layer._operator.adjoint(x, y)
    assert holds(back, n, dtype, times=2) if rank == 0 else torch.equal(back, x)


def test_bytes(partitions):
    """What checkpoints and write_block send."""
    messages = partitions[1].grid.byte_messages("exchange")
    if rank == 0:
        messages.send(1, pattern(ELEMENTS, torch.uint8))
        messages.wait()
    else:
        arriving = messages.receive(0, ELEMENTS)
        messages.wait()
        assert holds(arriving, ELEMENTS, torch.uint8)


def test_small_data_that_is_not_small(partitions):
    """2 GiB together, which an int cannot count: by allgather_data, and so whatever is exchanged in host memory."""
    n = 2**30 + 1_000 * rank
    data = np.zeros(n, np.int8)  # of which memory is touched at the marks alone
    data[:: 2**20] = np.arange(len(data[:: 2**20])) % 100 + rank + 1
    gathered = partitions[1].allgather_data(data)
    assert [len(part) for part in gathered] == [2**30, 2**30 + 1_000]
    for other, part in enumerate(gathered):
        marks = part[:: 2**20]
        assert np.array_equal(marks, np.arange(len(marks)) % 100 + other + 1)
        assert np.count_nonzero(part) == len(marks)

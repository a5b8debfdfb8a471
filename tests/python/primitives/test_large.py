"""Messages of several blocks, and sums of which each rank adds up a part: the same bits as the dense sum."""

import pytest
import torch

import distdl.nn as dnn
from support.blocks import balanced, grid
from support.ranks import job
from support.tensors import ALL_DTYPES, FLOAT8, assert_adjoint, same_bits, values

N = 700_001  # 5.6 MB in float64: parts of several blocks on few ranks, of different sizes
SUMMED = [dtype for dtype in ALL_DTYPES if dtype not in FLOAT8]


def addends(dtype, n=N):
    """The data of each rank; its sums are exact in every dtype."""
    return [values([n], dtype, seed=rank) for rank in range(job.size)]


def total_of(tensors):
    if tensors[0].dtype == torch.bool:
        return torch.stack(tensors).any(0)
    wide = torch.complex128 if tensors[0].dtype.is_complex else torch.float64
    return torch.stack([tensor.to(wide) for tensor in tensors]).sum(0).to(tensors[0].dtype)


@pytest.mark.ranks(2, 3, 4)
@pytest.mark.shared
@pytest.mark.parametrize("dtype", SUMMED, ids=str)
@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
def test_sum_for_all(P_world, dtype):
    every = addends(dtype)
    result = dnn.AllSumReduce(grid(P_world, [job.size]), [0])(every[job.rank])
    assert same_bits(result, total_of(every))


@pytest.mark.shared
@pytest.mark.parametrize("n", [(8 << 20) - 1, 8 << 20, (9 << 20) + 3])
@pytest.mark.parametrize("strided", [False, True], ids=["contiguous", "strided"])
def test_broadcast_in_blocks(P_world, n, strided):
    """Between two ranks, of which the root keeps a copy or does not. It stays what it is if the input changes."""
    whole = values([n, 2], torch.int8, seed=1)[:, 0]
    expected = whole.contiguous()
    for members in ([0, 1][: job.size], [job.size - 1]):
        P_x, P_y = grid(P_world, [1], [0]), grid(P_world, [len(members)], members)
        x = (whole.clone(memory_format=torch.preserve_format) if strided else expected.clone()) if P_x.active else None
        y = dnn.Broadcast(P_x, P_y)(x if P_x.active else torch.empty(0, dtype=torch.int8))
        if P_x.active:
            x.zero_()
        assert same_bits(y, expected) if P_y.active else y.numel() == 0


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.uint16, torch.bool], ids=str)
@pytest.mark.parametrize("root", ["first", "last"])
def test_sum_for_one(P_world, dtype, root):
    P_y = grid(P_world, [1], [0 if root == "first" else job.size - 1])
    every = addends(dtype)
    result = dnn.SumReduce(grid(P_world, [job.size]), P_y)(every[job.rank])
    assert same_bits(result, total_of(every)) if P_y.active else result.numel() == 0


def test_sum_for_one_that_adds_nothing(P_world):
    """Sums over a single rank, which are copies, and over all ranks but the last."""
    if job.size == 1:
        return
    last = job.size - 1
    for workers in ([0], list(range(last))):
        P_x, P_y = grid(P_world, [len(workers)], workers), grid(P_world, [1], [last])
        every = addends(torch.float64)
        x = every[job.rank] if P_x.active else torch.empty(0, dtype=torch.float64)
        result = dnn.SumReduce(P_x, P_y)(x)
        assert same_bits(result, total_of([every[w] for w in workers])) if P_y.active else result.numel() == 0


def test_sums_in_a_ring(P_world):
    """Each rank is the root of a sum, and adds to the sum of the next rank."""
    shift = [(r + 1) % job.size for r in range(job.size)]
    result = dnn.SumReduce(grid(P_world, [job.size]), grid(P_world, [job.size], shift))(
        addends(torch.float64)[job.rank]
    )
    assert same_bits(result, addends(torch.float64)[job.rank - 1])
    P_grid = grid(P_world, [2, job.size // 2] if job.size % 2 == 0 else [1, job.size])
    rows, columns = map(int, P_grid.shape)
    # The sums of the columns go to other ranks than those that are first in them.
    P_y = grid(P_world, [1, columns], [(r + 1) % (rows * columns) for r in range(columns)])
    every = addends(torch.float64)
    result = dnn.SumReduce(P_grid, P_y)(every[job.rank])
    if P_y.active:
        column = int(P_y.index[1])
        assert same_bits(result, total_of([every[row * columns + column] for row in range(rows)]))


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float16], ids=str)
def test_sum_in_blocks(P_world, axis, dtype):
    """Blocks that are contiguous in memory, and blocks that are not."""
    shape = [1009, 701]
    P = grid(P_world, [job.size, 1] if axis == 0 else [1, job.size])
    every = [tensor[: 1009 * 701].view(shape) for tensor in addends(dtype, 1009 * 701)]
    result = dnn.ReduceScatter(P, [axis])(every[job.rank])
    start, stop = balanced(shape[axis], job.size, job.rank)
    assert same_bits(result, total_of(every).narrow(axis, start, stop - start).contiguous())


def test_a_sum_is_the_same_on_all_ranks_and_from_run_to_run(P_world):
    """Where rounding depends on the order: every element is added up once, in the order of the ranks."""
    x = torch.randn(N, generator=torch.Generator().manual_seed(job.rank))
    layer = dnn.AllSumReduce(grid(P_world, [job.size]), [0])
    result = layer(x)
    assert all(same_bits(result, other) for other in job.allgather(result))
    assert all(same_bits(layer(x), result) for _ in range(3))
    every = [torch.randn(N, generator=torch.Generator().manual_seed(rank)) for rank in range(job.size)]
    expected = every[0]
    for other in every[1:]:
        expected = expected + other
    assert same_bits(result, expected)


def test_inputs_may_be_dropped_and_are_not_written(P_world):
    layer = dnn.AllSumReduce(grid(P_world, [job.size]), [0])
    x = torch.ones(N)
    assert torch.equal(layer(x), torch.full((N,), float(job.size)))
    assert torch.equal(x, torch.ones(N))
    assert torch.equal(layer(x * 2), torch.full((N,), 2.0 * job.size))


def test_adjoint(P_world):
    P = grid(P_world, [job.size])
    x = torch.randn(N, dtype=torch.float64)
    for layer in (dnn.AllSumReduce(P, [0]), dnn.ReduceScatter(P, [0]), dnn.SumReduce(P, grid(P_world, [1]))):
        assert_adjoint(layer._operator, x, torch.randn_like(layer(x)))

"""The arithmetic of sums over ranks, in each operator that sums, in small messages, in MPI's reductions and in blocks.

It is that of PyTorch's `+` in the dtype, or in float32 for narrower ones: integers wrap around, infinities, NaN, signed
zeros and subnormal numbers are what they are there. The values here have the same sum in every order.
"""

import functools
import random
import time

import pytest
import torch

import distdl
import distdl.nn as dnn
from support.blocks import balanced, grid
from support.ranks import job
from support.tensors import COMPLEX, FLOAT8, INTEGRAL, REAL, same_bits

pytestmark = [
    pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental"),
    pytest.mark.ranks(2, 3, 4),
    pytest.mark.shared,
]
COLUMNS = 8
MPI_BYTES = 48 << 10  # more than 8 KiB of each of up to four ranks, and parts of less than 64 KiB


def rows_of(P, rows):
    """The rows of this worker's balanced block."""
    return slice(*balanced(rows, P.size, P.rank))


def all_sum_reduce(P, x):
    return dnn.AllSumReduce(P, [0])(x), slice(None)


def sum_reduce(P, x):
    last = grid(P, [1], [P.size - 1])
    return dnn.SumReduce(P, last)(x), slice(None) if last.active else None


def reduce_scatter(P, x):
    return dnn.ReduceScatter(grid(P, [P.size, 1]), [0])(x), rows_of(P, len(x))


def adjoint_of_broadcast(P, x):
    first = grid(P, [1])
    source = torch.zeros_like(x) if first.active else distdl.zero_volume_tensor(dtype=x.dtype)
    return dnn.Broadcast(first, P)._operator.adjoint(source, x), slice(None) if first.active else None


def adjoint_of_all_gather(P, x):
    rows = rows_of(P, len(x))
    return dnn.AllGather(grid(P, [P.size, 1]), [0])._operator.adjoint(x[rows], x), rows


def adjoint_of_halo_exchange(P, x):
    """Each worker's halo reaches over the whole tensor."""
    rows = rows_of(P, len(x))
    layer = dnn.HaloExchange(grid(P, [P.size, 1]), [(rows.start, len(x) - rows.stop), (0, 0)])
    return layer._operator.adjoint(x[rows], x), rows


SUMS = (
    all_sum_reduce,
    sum_reduce,
    reduce_scatter,
    adjoint_of_broadcast,
    adjoint_of_all_gather,
    adjoint_of_halo_exchange,
)
every_sum = pytest.mark.parametrize("add_up", SUMS, ids=lambda add_up: add_up.__name__)
every_path = pytest.mark.parametrize("path", ["direct", "mpi", "blocks"])


def rows_on(path, dtype):
    """The number of rows that are added up this way: see src/operators/sum_route.hpp. Two ranks may add twice."""
    element = torch.zeros((), dtype=dtype)
    element_bytes = max(element.element_size(), 8 if dtype.is_complex else 4 if dtype.is_floating_point else 1)
    return {"direct": 3, "mpi": MPI_BYTES // (COLUMNS * element_bytes), "blocks": 40_001}[path]


def special_values(dtype):
    """The values of each rank in each column."""
    info = torch.finfo(dtype)
    table = torch.zeros(job.size, COLUMNS, dtype=torch.float64)
    table[:, 0] = 1
    table[0, 0] = torch.inf
    table[0, 1], table[-1, 1] = torch.inf, -torch.inf
    table[-1, 2] = torch.nan
    table[:, 3] = -0.0
    table[:, 4] = -0.0
    table[0, 4] = 0.0
    table[:, 5] = info.max  # overflows
    table[:, 6] = info.smallest_normal / 4 * (1 + torch.arange(job.size) % 4)  # subnormal
    table[0, 7], table[-1, 7] = 3, -3  # cancels, but on one rank
    return table.to(dtype)


def added(tensors):
    """By `+`, in the dtype that sums are computed in, parts of complex numbers by themselves; rounded once."""
    dtype = tensors[0].dtype
    if dtype.is_complex:
        return torch.view_as_complex(added([torch.view_as_real(tensor) for tensor in tensors]))
    wide = dtype if dtype in (torch.float32, torch.float64) else torch.float32
    return functools.reduce(torch.add, [tensor.to(wide) for tensor in tensors]).to(dtype)


def same_numbers(a, b):
    """The same bits, but for those of NaN."""
    if a.is_complex():
        a, b = (torch.view_as_real(x.resolve_conj()) for x in (a, b))
    nan = torch.isnan(a.double())
    return torch.equal(nan, torch.isnan(b.double())) and same_bits(a[~nan], b[~nan])


def assert_adds_up(add_up, P, path, table, expected, equal):
    """Every row of the tensors is the same."""
    rows = rows_on(path, table.dtype)
    result, selection = add_up(P, table[job.rank].expand(rows, COLUMNS).clone())
    if selection is None:
        assert result.numel() == 0
    else:
        assert equal(result, expected.expand(rows, COLUMNS)[selection])


@every_sum
@every_path
@pytest.mark.parametrize("dtype", REAL, ids=str)
def test_special_values(P_world, add_up, path, dtype):
    table = special_values(dtype)
    assert_adds_up(add_up, P_world, path, table, added(table.unbind()), same_numbers)


@every_sum
@every_path
@pytest.mark.parametrize("dtype", COMPLEX, ids=str)
def test_parts_of_complex_numbers_are_added_by_themselves(P_world, add_up, path, dtype):
    """An infinity or NaN in a part leaves the other part alone, as in torch's sum."""
    real = special_values(torch.zeros((), dtype=dtype).real.dtype)
    table = torch.complex(*(part.to(torch.float64) for part in (real, real.flip(1)))).to(dtype)
    assert_adds_up(add_up, P_world, path, table, added(table.unbind()), same_numbers)


@every_path
@pytest.mark.parametrize("dtype", REAL + COMPLEX, ids=str)
def test_a_root_that_contributes_nothing_adds_nothing(P_world, path, dtype):
    """Zero would be something: with it, the sum of negative zeros is positive."""
    others, root = grid(P_world, [job.size - 1], range(1, job.size)), grid(P_world, [1])
    zeros = added([torch.full([rows_on(path, dtype), COLUMNS], -0.0, dtype=dtype)] * 2)
    result = dnn.SumReduce(others, root)(zeros if others.active else distdl.zero_volume_tensor(dtype=dtype))
    assert same_bits(result, zeros) if root.active else result.numel() == 0


@every_sum
@every_path
@pytest.mark.parametrize("dtype", FLOAT8, ids=str)
def test_float8_overflows_as_its_conversion_does(P_world, add_up, path, dtype):
    table = torch.full((job.size, COLUMNS), torch.finfo(dtype).max, dtype=torch.float64).to(dtype)
    assert_adds_up(add_up, P_world, path, table, added(table.unbind()), same_bits)


@every_sum
@every_path
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_what_overflows_in_half_only_does_not(P_world, add_up, path, dtype):
    """Max + max - max: accumulated in float32, where the order of half's makes no difference either."""
    largest = 3 * 2.0**14
    signs = torch.tensor([1.0 if rank % 2 == 0 else -1.0 for rank in range(job.size)]).sort(descending=True).values
    table = (largest * signs).unsqueeze(1).expand(-1, COLUMNS).to(dtype)
    expected = torch.full([COLUMNS], largest * float(signs.sum())).to(dtype)
    assert_adds_up(add_up, P_world, path, table, expected, same_bits)


@every_sum
@every_path
@pytest.mark.parametrize("dtype", INTEGRAL, ids=str)
def test_integers_wrap_around(P_world, add_up, path, dtype):
    """Modulo 2 to the number of bits, as torch's sum in this dtype, where torch has one."""
    generator = torch.Generator().manual_seed(1)
    table = torch.randint(-(2**63), 2**63 - 1, (job.size, COLUMNS), generator=generator)
    table[:, 0], table[:, 1] = torch.iinfo(dtype).max if dtype.is_signed else -1, torch.iinfo(dtype).min
    table = table.to(dtype)
    expected = table.to(torch.int64).sum(0).to(dtype)
    if dtype not in (torch.uint16, torch.uint32, torch.uint64):
        assert torch.equal(expected, table.sum(0, dtype=dtype))
    assert_adds_up(add_up, P_world, path, table, expected, same_bits)


@every_sum
@every_path
def test_bools_are_or(P_world, add_up, path):
    table = torch.tensor([[rank >> column & 1 for column in range(COLUMNS)] for rank in range(job.size)]).bool()
    assert_adds_up(add_up, P_world, path, table, table.sum(0, dtype=torch.bool), same_bits)


@every_sum
@every_path
@pytest.mark.parametrize("dtype", [torch.float32, torch.complex128, torch.bfloat16], ids=str)
def test_the_same_bits_in_every_call(P_world, add_up, path, dtype):
    """Whoever comes late: the order of a sum is not that of arrival."""
    x = torch.randn(rows_on(path, dtype), COLUMNS, dtype=dtype, generator=torch.Generator().manual_seed(job.rank))
    delays = random.Random(job.rank)
    first, _ = add_up(P_world, x)
    for _ in range(20):
        time.sleep(delays.choice([0, 0, 0.001, 0.003]))
        assert same_bits(add_up(P_world, x)[0], first)

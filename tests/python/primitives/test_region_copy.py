"""Copies of regions equal those of ATen bit by bit, as of a block with a halo around it, from and to any strides."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import distdl.nn as dnn
from support.blocks import grid
from support.ranks import draws, job
from support.strides import PLAIN, STRIDES
from support.tensors import ALL_DTYPES, COMPLEX, REAL, same_bits, values

FILL = 1.0


def random_bits(shape, dtype):
    """Any bits, but for bool, which has two values."""
    generator = torch.Generator().manual_seed(sum(shape))
    if dtype == torch.bool:
        return torch.randint(0, 2, shape, generator=generator).bool()
    numbers = torch.randint(0, 256, (*shape, dtype.itemsize), dtype=torch.uint8, generator=generator)
    return numbers.view(dtype).squeeze(-1)


def surrounded(x, halo):
    """As ATen copies it."""
    result = torch.ones([n + left + right for n, (left, right) in zip(x.shape, halo, strict=True)]).to(x.dtype)
    inside = result
    for d, (n, (left, _)) in enumerate(zip(x.shape, halo, strict=True)):
        inside = inside.narrow(d, left, n)
    inside.copy_(x)
    return result


def check(P_world, x, halo):
    P = grid(P_world, [1] * x.dim(), [0])
    y = dnn.HaloExchange(P, halo, fill_value=FILL)(x if P.active else torch.empty(0, dtype=x.dtype))
    assert not P.active or same_bits(y, surrounded(x, halo))


@st.composite
def regions(draw):
    """Dtype, shape, where to begin and how far to step in the first dimension, strides, and widths of the halo."""
    dtype = draw(st.sampled_from(ALL_DTYPES))
    shape = draw(
        st.lists(st.integers(1, 5), min_size=1, max_size=6) | st.lists(st.integers(1, 40), min_size=1, max_size=2)
    )
    strides = draw(st.sampled_from(STRIDES if dtype in REAL + COMPLEX else PLAIN))
    widths = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), min_size=len(shape), max_size=len(shape))
    return dtype, shape, draw(st.integers(0, shape[0] - 1)), draw(st.integers(1, 3)), strides, draw(widths)


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
@given(region=regions())
@draws(300)
def test_any_region(P_world, region):
    dtype, shape, start, step, strides, halo = region
    # Arithmetic, by which some of the strides are made, keeps the bits of whole numbers.
    x = values(shape, dtype) if dtype in REAL + COMPLEX else random_bits(shape, dtype)
    check(P_world, strides(x)[start::step], halo)


@pytest.mark.shared
@pytest.mark.parametrize("dtype", [torch.uint8, torch.bfloat16, torch.float32, torch.complex128], ids=str)
@pytest.mark.parametrize(
    "cut", [(...,), (..., slice(1, None, 2)), (..., slice(3, 603))], ids=["all", "every other", "columns"]
)
def test_large_ones(P_world, dtype, cut):
    """They are written past the caches, row by row, from and to every offset within a line of them."""
    columns = 977 if dtype.itemsize < 16 else 701
    x = random_bits([3, (24 << 20) // (3 * columns * dtype.itemsize), columns], dtype)[cut]
    check(P_world, x, [(0, 1), (1, 0), (1, 2)])


@pytest.mark.parametrize("size", [(64 << 10) + 7, (200 << 10) + 65, (1 << 20) + 1])
@pytest.mark.parametrize("left", [0, 1, 3, 8, 63, 64, 65])
def test_shifts_within_a_page(P_world, size, left):
    """Both tensors begin with a page, so that what is written is so far ahead of what is read, modulo a page."""
    check(P_world, random_bits([size], torch.uint8), [(left, 1)])


def test_threads(P_world):
    """They share a copy, which is cut anywhere."""
    threads = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        for columns in (31, 4099):
            check(P_world, random_bits([7, 500, columns], torch.float32), [(1, 0), (0, 1), (1, 2)])
    finally:
        torch.set_num_threads(threads)


def test_blocks_that_travel(P_world):
    """Large regions that are packed, sent and placed."""
    P_x, P_y = grid(P_world, [job.size, 1]), grid(P_world, [1, job.size])
    whole = random_bits([2048, 2050], torch.float64)
    rows, columns = (whole.tensor_split(job.size, d)[job.rank] for d in (0, 1))
    assert same_bits(dnn.Repartition(P_x, P_y)(rows), columns)

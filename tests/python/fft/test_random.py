"""Random transforms over random blocks beside torch.fft: values, gradients and second gradients."""

from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import distdl
from distdl.nn.fourier import pencils
from distdl.nn.kernels import fourier_slices as slices
from support import dense
from support.blocks import assemble, block_of, blocks_of
from support.random_calls import Partitions, grids
from support.ranks import draws, on_all_ranks
from support.twins import derivatives

FAMILIES = ("fft", "ifft", "rfft", "irfft", "hfft", "ihfft")
REAL = (torch.float64, torch.float64, torch.float32)
COMPLEX = (torch.complex128, torch.complex64)
INTEGRAL = (torch.int64, torch.uint8, torch.bool)
# Rounding errors of a transform are of this many units in the last place of its largest result.
ROUNDINGS = 100


@dataclass
class Draw:
    """A call of a transform: the partitions, the whole input and its blocks, and the arguments."""

    function: str
    P_x: dense.Grid
    shape: tuple[int, ...]
    sizes: list[Any]
    dtype: torch.dtype
    options: dict[str, Any] = field(default_factory=dict)
    out: Any = None
    parts: int = 1


@st.composite
def calls(draw):
    P_x = draw(grids())
    dims = len(P_x.shape)
    family, form = draw(st.sampled_from(FAMILIES)), draw(st.sampled_from(("", "2", "n") if dims > 1 else ("", "n")))
    shape = tuple(draw(st.lists(st.integers(1, 7), min_size=dims, max_size=dims)))
    sizes = draw(blocks_of(shape, P_x.shape))
    kinds = (*REAL, *INTEGRAL) if family in ("rfft", "ihfft") else (*REAL, *COMPLEX, *INTEGRAL)
    options = {"norm": draw(st.sampled_from((None, "forward", "backward", "ortho")))}
    order = draw(st.permutations(range(dims)))
    count = 1 if form == "" else 2 if form == "2" else draw(st.integers(1, dims))
    chosen = [d - dims if draw(st.booleans()) else d for d in order[:count]]
    if form == "n" and count == dims and draw(st.booleans()):
        chosen = list(range(dims))  # all of them, by default
    else:
        options["dim"] = chosen if form else chosen[0]
    needs_size = family in ("irfft", "hfft") and shape[chosen[-1]] == 1
    if needs_size or draw(st.booleans()):
        lengths = [draw(st.integers(1, 9)) for _ in chosen]
        if form:
            options["s"] = [n if needs_size or draw(st.booleans()) else -1 for n in lengths]
            if family in ("irfft", "hfft") and shape[chosen[-1]] == 1:
                options["s"][-1] = lengths[-1]
        else:
            options["n"] = lengths[0]
    out = draw(st.sampled_from((None, None, "pencil", "elsewhere")))
    out = draw(grids(dims)) if out == "elsewhere" else out
    parts = draw(st.sampled_from((1, 1, 2, 3)))
    return Draw(family + form, P_x, shape, sizes, draw(st.sampled_from(kinds)), options, out, parts)


def random_values(shape, dtype, seed):
    """The same on all ranks."""
    generator = torch.Generator().manual_seed(seed)
    if dtype.is_floating_point or dtype.is_complex:
        return torch.randn(shape, dtype=dtype, generator=generator)
    return torch.randint(0, 2 if dtype == torch.bool else 9, shape, generator=generator).to(dtype)


def is_close(block, whole, precision):
    """Up to rounding, relative to the largest value."""
    largest = float(whole.abs().max()) if whole.numel() else 0.0
    return float((block - whole).abs().max()) <= ROUNDINGS * torch.finfo(precision).eps * max(largest, 1e-3)


def result_sizes(out_sizes, sizes, before, after, workers, own_workers):
    """The sizes of the result's blocks: as in the input along dimensions of the same length and split."""
    return [
        along if n == m and p == q else None
        for along, n, m, p, q in zip(sizes, before, after, workers, own_workers, strict=True)
    ]


def check(draw, partitions):
    """The transform of blocks equals the transform of the whole."""
    call, sequential = getattr(distdl.fft, draw.function), getattr(torch.fft, draw.function)
    P_x = partitions(draw.P_x)
    out = partitions(draw.out) if isinstance(draw.out, dense.Grid) else draw.out
    x = random_values(draw.shape, draw.dtype, 0)
    expected = sequential(x, **draw.options)
    block = block_of(x, P_x, draw.sizes)

    def transform(block):
        y = call(block, P_x, **draw.options, out=out, parts=draw.parts)
        return y if out == "pencil" else (y, P_x if out is None else out)

    y, P_y = transform(block)
    # Only ranks of P_x know a pencil's partition; its shape decides which blocks the result has.
    shape = next(known for known in distdl_shapes(P_y) if known is not None)
    y_sizes = result_sizes(draw.out, draw.sizes, draw.shape, expected.shape, shape, draw.P_x.shape)
    joined = assemble(y, P_y, expected.shape, y_sizes)
    assert joined.dtype == expected.dtype
    assert is_close(joined, expected, expected.dtype), (joined, expected)
    if not (x.is_floating_point() or x.is_complex()):
        return
    cotangent = random_values(expected.shape, expected.dtype, 1)
    direction = random_values(draw.shape, draw.dtype, 2)
    wholes = derivatives(lambda x: sequential(x, **draw.options), x, [], cotangent.clone(), [direction])
    blocks = derivatives(
        lambda x: transform(x)[0],
        block,
        [],
        block_of(cotangent, P_y, y_sizes),
        [block_of(direction, P_x, draw.sizes)],
    )
    places = [(P_y, y_sizes), (P_x, draw.sizes), (P_x, draw.sizes), (P_y, y_sizes)]
    for part, whole, (P, sizes) in zip(blocks, wholes, places, strict=True):
        joined = assemble(part, P, whole.shape, sizes)
        assert joined.dtype == whole.dtype
        assert is_close(joined, whole, expected.dtype), (joined, whole)


def distdl_shapes(P):
    """The shape of a partition as each rank knows it; None on ranks that do not."""
    from support.ranks import together

    return together(tuple(map(int, P.shape)) if P.grid.known else None)


@pytest.fixture(scope="module")
def partitions():
    made = Partitions()
    yield made
    made.free()


@pytest.fixture(scope="module", params=["few exchanges", "little to move"])
def route(request):
    """Small tensors take the way of fewest exchanges. Large ones take that on which the least moves, in slices."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "little to move":
            patch.setattr(pencils, "_LATENCY_IN_ELEMENTS", 0)
            for name, value in (("_LARGE_BYTES", 1), ("_LARGE_ACROSS", 1), ("_SLICE", 64)):
                patch.setattr(slices, name, value)
        yield


@draws(60)
@given(draw=calls())
@on_all_ranks
def test_any_transform(partitions, route, draw):
    partitions.next_draw()
    check(draw, partitions)

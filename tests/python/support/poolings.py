"""Shared by the tests of pooling and interpolation: tensors in any blocks, and layers beside their torch.nn twins."""

import functools
import math

import torch
from hypothesis import strategies as st

import distdl.nn as dnn
from support.blocks import assemble, block_of, blocks_of, grid, grid_shapes, middle_of_window, spatial_sizes
from support.models import Function
from support.ranks import job
from support.tensors import same_bits
from support.twins import assert_equals_twin
from support.versions import TORCH

# The values that the integers of the input stand for: numbers with ties, or values that compare in their own ways.
CONTENTS = {
    "ties": (0, 1, 2, 3),
    "lowest": (-torch.inf, -torch.inf, -torch.inf, 1),
    "nan": (torch.nan, -torch.inf, torch.inf, 2),
}


def twins(name):
    """The sequential and the distributed layer of this name in torch.nn."""
    sequential = getattr(torch.nn, name)
    if name.startswith("LPPool") and TORCH < (2, 13):
        sequential = functools.partial(power_average, sequential)
    return sequential, getattr(dnn, f"Distributed{name}")


def power_average(kind, norm_type, kernel_size, stride=None, ceil_mode=False):
    """A layer of torch.nn, which computes with an infinite power from torch 2.13 on: its limit is a maximum."""
    if norm_type not in (torch.inf, -torch.inf):
        return kind(norm_type, kernel_size, stride, ceil_mode)
    sign, dims = math.copysign(1, norm_type), int(kind.__name__[-2])
    largest = getattr(torch.nn, f"MaxPool{dims}d")(kernel_size, stride, ceil_mode=ceil_mode)
    return Function(lambda x: sign * largest(sign * x.abs()))


def one_or_each(draw, options, dims):
    """The same for all dimensions, or for each of them its own."""
    return draw(st.one_of(options, st.tuples(*[options] * dims)))


@st.composite
def split_tensors(draw, P_world, dims, leading=([1], [3], [0, 1], [1, 2], [3, 1])):
    """The shape of a tensor with this many spatial dimensions, a partition for it, and the sizes of its blocks."""
    shape = [*draw(st.sampled_from(leading)), *draw(st.lists(st.integers(1, 9), min_size=dims, max_size=dims))]
    workers = draw(st.sampled_from(grid_shapes(len(shape), job.size)))
    ranks = draw(st.permutations(range(job.size)))[: torch.Size(workers).numel()]
    return shape, grid(P_world, workers, ranks), draw(blocks_of(shape, workers))


def refused_by_both(name, P_x, x, sizes, options):
    """Whether torch.nn's layer refuses the options or the input; the distributed layer has to then, in the same way."""
    sequential, distributed = twins(name)
    try:
        sequential(**options)(x)
    except Exception as expected:
        refused = []
        try:
            distributed(P_x, **options)(block_of(x, P_x, sizes))
        except type(expected) as error:
            refused.append(error)
        assert refused or not P_x.active  # what only the call refuses is not of concern outside
        return True
    return False


def sizes_of_result(P_x, dims, x, y, sizes, options, output_blocks):
    """Along batch and channels the blocks stay as they are, in space they are balanced or aligned."""
    windows = {name: options[name] for name in ("kernel_size", "stride", "padding", "dilation") if name in options}
    if windows.get("stride", 0) is None:
        windows["stride"] = windows["kernel_size"]
    if windows:
        place = middle_of_window(dims, **windows)
    elif options.get("align_corners"):
        place = lambda d, o, n, m: (2 * o * (n - 1) + m - 1) // (2 * (m - 1)) if m > 1 else 0  # noqa: E731
    else:
        place = lambda d, o, n, m: (2 * o + 1) * n // (2 * m)  # noqa: E731
    space = spatial_sizes(output_blocks, place, dims, x.shape, y.shape, P_x.shape, sizes)
    return [*(sizes or [None] * x.dim())[:-dims], *space]


def assert_like_twin(
    name, P_x, dims, x, sizes, options, equal=same_bits, equal_derivatives=same_bits, output_blocks="balanced"
):
    """Values, gradients and second gradients."""
    sequential, distributed = twins(name)
    assert_equals_twin(
        distributed(P_x, **options, output_blocks=output_blocks),
        sequential(**options),
        x,
        P_x,
        P_x,
        (),
        sizes,
        sizes_of_result(P_x, dims, x, sequential(**options)(x), sizes, options, output_blocks),
        equal,
        equal_derivatives,
    )


def powers_close(windows, dtype):
    """How derivatives of power-average pooling are compared, and values where torch's powers are not exact."""

    def close(result, whole):
        """Sums of a term for each window, in another order. A term is a product of less than 20 factors, each of
        which is rounded once; the largest terms are below a hundred times the largest sum, or a hundred where all
        terms cancel."""
        scale = max(1.0, float(whole.abs().max())) if whole.numel() else 0.0
        return torch.allclose(result, whole, rtol=0, atol=20 * 100 * (1 + windows) * torch.finfo(dtype).eps * scale)

    return close


def assert_same_indices(name, P_x, dims, x, sizes=None, output_blocks="balanced", **options):
    """The values and indices of a max pooling, bit for bit; where nothing was computed, none."""
    sequential, distributed = twins(name)
    expected = sequential(**options, return_indices=True)(x)
    layer = distributed(P_x, **options, return_indices=True, output_blocks=output_blocks)
    results = layer(block_of(x, P_x, sizes))
    y_sizes = sizes_of_result(P_x, dims, x, expected[0], sizes, options, output_blocks)
    for result, whole in zip(results, expected, strict=True):
        assert result.dtype == whole.dtype
        assert P_x.active or result.numel() == 0
        assert same_bits(assemble(result, P_x, whole.shape, y_sizes), whole)

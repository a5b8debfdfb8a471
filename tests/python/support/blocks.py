"""Blocks of a tensor that all ranks know, and the ranks' blocks put together without the code under test."""

import bisect
import itertools

import numpy as np
import torch
from hypothesis import strategies

import distdl
from support.ranks import together


def grid(P, shape, ranks=None):
    """A Cartesian partition of these workers of P; of the first if there are none."""
    chosen = range(int(np.prod(shape))) if ranks is None else ranks
    return P.create_partition_inclusive(list(chosen)).create_cartesian_topology_partition(shape)


def balanced(n, p, i):
    """(start, stop) of block i: the first n mod p of p blocks are larger by 1. Computed the long way."""
    sizes = [n // p + (1 if j < n % p else 0) for j in range(p)]
    return sum(sizes[:i]), sum(sizes[: i + 1])


OUTPUT_BLOCKS = ["balanced", "aligned"]


def spatial_sizes(output_blocks, place, dims, x_shape, y_shape, workers, sizes=None):
    """The sizes of the blocks of a layer's result in the last dimensions: balanced, or aligned with those of its input.

    Then each output is with the input at its place, or with the first or last input. place(d, o, n, m): where among n
    inputs output o of m stands, in spatial dimension d.
    """
    if output_blocks == "balanced":
        return [None] * dims
    extents = []
    for d in range(-dims, 0):
        n, m, p = x_shape[d], y_shape[d], int(workers[d])
        along = sizes and sizes[d]
        if along is None:
            along = [stop - start for start, stop in (balanced(n, p, i) for i in range(p))]
        stops = list(itertools.accumulate(along))
        places = [max(0, min(place(d + dims, o, n, m), n - 1)) for o in range(m)]
        owners = [bisect.bisect_right(stops, at) if n > 0 else 0 for at in places]
        extents.append([owners.count(i) for i in range(p)])
    return extents


def for_each(value, dims):
    """One value for each dimension."""
    return list(value) if isinstance(value, tuple | list) else [value] * dims


def middle_of_window(dims, kernel_size, stride=1, padding=0, dilation=1):
    """The input in the middle of a window, the left of two: its place, for spatial_sizes."""
    kernels, strides, dilations = (for_each(value, dims) for value in (kernel_size, stride, dilation))
    reaches = [d * (k - 1) for k, d in zip(kernels, dilations, strict=True)]
    before = {"same": [reach // 2 for reach in reaches], "valid": [0] * dims}
    left = before[padding] if isinstance(padding, str) else for_each(padding, dims)
    return lambda d, o, n, m: o * strides[d] - left[d] + reaches[d] // 2


def block_slices(P, shape, sizes=None):
    """The slices of this worker's block: balanced, or in each dimension of these sizes unless they are None."""
    slices = []
    for d, i in enumerate(P.index):
        if sizes is None or sizes[d] is None:
            slices.append(slice(*balanced(shape[d], int(P.shape[d]), int(i))))
        else:
            slices.append(slice(sum(sizes[d][:i]), sum(sizes[d][: i + 1])))
    return tuple(slices)


def block_of(whole, P, sizes=None):
    """This worker's block of a tensor that all ranks have; a zero-volume tensor on ranks outside of P."""
    if not P.active:
        return distdl.zero_volume_tensor(dtype=whole.dtype)
    return whole[block_slices(P, whole.shape, sizes)].clone()


def assemble(block, P, shape, sizes=None):
    """The whole tensor from the workers' blocks, on all ranks of the job, by mpi4py."""
    local_part = (block_slices(P, shape, sizes), block.detach().resolve_conj().clone()) if P.active else None
    whole, seen = None, torch.zeros(tuple(shape), dtype=torch.int64)
    for part in together(local_part):
        if part is not None:
            slices, values = part
            whole = torch.zeros(tuple(shape), dtype=values.dtype) if whole is None else whole
            assert values.shape == whole[slices].shape, (values.shape, slices, shape)
            whole[slices] = values
            seen[slices] += 1
    assert bool((seen == 1).all()), "the blocks do not cover the tensor exactly once"
    return whole


def grid_shapes(dim, size, fixed=()):
    """All shapes of this dimension with at most `size` workers; 1 in the fixed dimensions."""
    if dim == 0:
        return [()]
    firsts = [1] if 0 in fixed else range(1, size + 1)
    rest = [d - 1 for d in fixed]
    return [(first, *others) for first in firsts for others in grid_shapes(dim - 1, size // first, rest)]


@strategies.composite
def blocks_of(draw, shape, workers):
    """Sizes of blocks in each dimension: None for balanced blocks, or any sizes, some of them 0."""

    def along(n, p):
        cuts = sorted(draw(strategies.lists(strategies.integers(0, n), min_size=p - 1, max_size=p - 1)))
        return [stop - start for start, stop in itertools.pairwise([0, *cuts, n])]

    return [None if draw(strategies.booleans()) else along(n, p) for n, p in zip(shape, workers, strict=True)]

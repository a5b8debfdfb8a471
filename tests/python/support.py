"""What tests share: blocks of a known tensor, and the ranks' results put together without the code under test."""

import bisect
import functools
import itertools
import os
import time
import traceback

import hypothesis
import numpy as np
import pytest
import torch
from hypothesis import strategies
from mpi4py import MPI

import distdl

job = MPI.COMM_WORLD.Dup()

# All dtypes that torch can fill from integers.
REAL = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
COMPLEX = (torch.complex32, torch.complex64, torch.complex128)
INTEGRAL = (
    torch.uint8, torch.uint16, torch.uint32, torch.uint64, torch.int8, torch.int16, torch.int32, torch.int64,
)  # fmt: skip
FLOAT8 = (
    torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz, torch.float8_e8m0fnu,
)  # fmt: skip
ALL_DTYPES = (*REAL, *COMPLEX, *INTEGRAL, torch.bool, *FLOAT8)


def grid(P, shape, ranks=None):
    """A Cartesian partition of these workers of P; of the first ones if none are given."""
    chosen = range(int(np.prod(shape))) if ranks is None else ranks
    return P.create_partition_inclusive(list(chosen)).create_cartesian_topology_partition(shape)


def balanced(n, p, i):
    """(start, stop) of block i: the first n mod p of p blocks have one more. The definition, computed the long way."""
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
    found = []
    for d in range(-dims, 0):
        n, m, p = x_shape[d], y_shape[d], int(workers[d])
        along = sizes and sizes[d]
        if along is None:
            along = [stop - start for start, stop in (balanced(n, p, i) for i in range(p))]
        stops = list(itertools.accumulate(along))
        places = [max(0, min(place(d + dims, o, n, m), n - 1)) for o in range(m)]
        owners = [bisect.bisect_right(stops, at) if n > 0 else 0 for at in places]
        found.append([owners.count(i) for i in range(p)])
    return found


def for_each(value, dims):
    """One value for each dimension."""
    return list(value) if isinstance(value, tuple | list) else [value] * dims


def middle_of_window(dims, kernel_size, stride=1, padding=0, dilation=1):
    """The input in the middle of a window, the left one of two: its place, for spatial_sizes."""
    kernels, strides, dilations = (for_each(one, dims) for one in (kernel_size, stride, dilation))
    reaches = [d * (k - 1) for k, d in zip(kernels, dilations, strict=True)]
    before = {"same": [reach // 2 for reach in reaches], "valid": [0] * dims}
    left = before[padding] if isinstance(padding, str) else for_each(padding, dims)
    return lambda d, o, n, m: o * strides[d] - left[d] + reaches[d] // 2


def block_slices(P, shape, sizes=None):
    """The slices of this worker's block: balanced, or in each dimension of the given sizes unless these are None."""
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
    mine = (block_slices(P, shape, sizes), block.detach().resolve_conj().clone()) if P.active else None
    whole, seen = None, torch.zeros(tuple(shape), dtype=torch.int64)
    for part in together(mine):
        if part is not None:
            slices, values = part
            whole = torch.zeros(tuple(shape), dtype=values.dtype) if whole is None else whole
            assert values.shape == whole[slices].shape, (values.shape, slices, shape)
            whole[slices] = values
            seen[slices] += 1
    assert bool((seen == 1).all()), "the blocks do not cover the tensor exactly once"
    return whole


def total(value):
    """The sum of a Python number over all ranks, in rank order."""
    return sum(together(value))


def inner(a, b):
    """<a, b> summed over all ranks, and the sum of the magnitudes of its terms."""
    terms = (a.detach().conj() * b.detach()).to(torch.complex128).reshape(-1)
    return total(complex(terms.sum())), total(float(terms.abs().sum()))


def assert_adjoint(operator, x, y, tolerance=1e-13):
    """<A x, y> == <x, A* y>, relative to the magnitude of the terms; on all ranks."""
    ax = operator(x)
    aty = operator.adjoint(x, y)
    assert ax.shape == y.shape
    assert aty.shape == x.shape
    left, scale = inner(ax, y)
    right, other_scale = inner(x, aty)
    assert abs(left - right) <= tolerance * max(scale, other_scale), (left, right)


def raises_everywhere(kind, match, action, seconds=1.0, involved=True):
    """`action` raises the same exception on all ranks involved, within a second of the last rank's start."""
    job.Barrier()
    start = time.perf_counter()
    error = None
    try:
        action()
    except Exception as raised:
        error = raised
    elapsed = time.perf_counter() - start
    # First what all ranks have to say, then the judgement, which is then the same on all of them.
    mine = None if error is None else (type(error).__name__, str(error).split(" (raised on rank")[0])
    outcomes = job.allgather((involved, mine, elapsed))
    assert all((outcome is not None) == took_part for took_part, outcome, _ in outcomes), outcomes
    assert len({outcome for took_part, outcome, _ in outcomes if took_part}) == 1, outcomes
    assert max(elapsed for _, _, elapsed in outcomes) < seconds, outcomes
    if not involved:
        return ""
    with pytest.raises(kind, match=match):
        raise error
    return str(error)


def draws(number):
    """For a test that draws another number of examples in a job than the others; DISTDL_DRAWS is the number for all."""
    return hypothesis.settings(max_examples=int(os.environ.get("DISTDL_DRAWS", number)))


class SomewhereError(Exception):
    """What failed on some ranks, in a test on_all_ranks: all ranks know it."""


def exchanged(failure, value=None):
    """Every rank's value. If a rank comes with a failure, all have come here for the last time in this draw."""
    everyone = job.allgather((failure, value))
    failures = [f"rank {rank}: {text}" for rank, (text, _) in enumerate(everyone) if text is not None]
    if failures:
        raise SomewhereError("\n".join(failures))
    return [value for _, value in everyone]


def together(value):
    """Every rank's value, in rank order. Where a rank has failed instead, all do."""
    return exchanged(None, value)


def on_all_ranks(test):
    """For tests that repeat their body (hypothesis): an exception on one rank is one on all, so they stay in step.

    A rank that fails says so in place of what it would have said next, be it in `together` or at the end.
    """

    @functools.wraps(test)
    def wrapped(*args, **kwargs):
        failed = None
        try:
            raised = None
            try:
                test(*args, **kwargs)
            except (hypothesis.errors.UnsatisfiedAssumption, SomewhereError):
                raise
            except (Exception, pytest.fail.Exception):
                raised = traceback.format_exc()
            exchanged(raised)
        except SomewhereError as known:
            failed = str(known)
        # The same exception from the same line on all ranks: hypothesis goes on by where an exception came from.
        if failed:
            raise AssertionError(failed)

    return wrapped


def values(shape, dtype=torch.float64, seed=0, differ_by_rank=False):
    """A tensor of integers small enough to be exact in every dtype; the same on all ranks unless they are to differ."""
    generator = torch.Generator().manual_seed(seed + (1000 * (job.rank + 1) if differ_by_rank else 0))
    high = 2 if dtype in (torch.bool, torch.float8_e8m0fnu) else 4
    low = 1 if dtype == torch.float8_e8m0fnu else 0
    whole = torch.randint(low, max(high, low + 1), tuple(shape), generator=generator)
    if dtype.is_complex:
        imaginary = torch.randint(0, 4, tuple(shape), generator=generator)
        return torch.complex(whole.double(), imaginary.double()).to(dtype)
    return whole.to(dtype)


def same_bits(a, b):
    """Equality of every bit, for any dtype."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if a.numel() == 0:
        return True
    # Copied, since a single element counts as contiguous in any strides, but cannot be viewed as bytes in all of them.
    plain = [t.detach().resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format) for t in (a, b)]
    flat = [t.reshape(-1).view(torch.uint8) for t in plain]
    return torch.equal(*flat)


def grid_shapes(dim, size, fixed=()):
    """All shapes of this dimension with at most `size` workers; 1 in the fixed dimensions."""
    if dim == 0:
        return [()]
    firsts = [1] if 0 in fixed else range(1, size + 1)
    rest = [d - 1 for d in fixed]
    return [(first, *others) for first in firsts for others in grid_shapes(dim - 1, size // first, rest)]


def derivatives(layer, x, parameters, cotangent, directions, look_at=lambda y: None):
    """What the layer gives, the gradients of <result, cotangent>, and those of <these gradients, directions>.

    The gradients are with respect to x and the parameters, the second ones also to the cotangent. The sequential layer
    takes whole tensors; a distributed one takes blocks, and the sums over all ranks are what is differentiated.
    `look_at` sees the result before it is differentiated.
    """
    leaves = [x.requires_grad_(), *parameters]
    y = layer(x)
    look_at(y)
    cotangent = cotangent.reshape(y.shape).requires_grad_()  # zero volume comes in several shapes
    first = torch.autograd.grad(y, leaves, cotangent, create_graph=True)
    directions = [direction.reshape(g.shape) for direction, g in zip(directions, first, strict=True)]
    second = torch.autograd.grad(first, [*leaves, cotangent], directions, allow_unused=True, materialize_grads=True)
    return [t.detach() for t in (y, *first, *second)]


def assert_equals_twin(
    layer,
    twin,
    x,
    P_x,
    P_y,
    parameter_partitions=(),
    sizes=None,
    y_sizes=None,
    equal=torch.equal,
    equal_derivatives=None,
):
    """A distributed layer gives, put together, what its sequential twin gives, up to the second derivatives.

    x is the whole input, of which each worker passes its block, balanced or of the given sizes; y_sizes are those of
    the result. The layer gets the twin's parameters, of which each is in balanced blocks on its partition.
    """
    partitions = [P_x, *parameter_partitions]
    wholes = [x, *(p.detach() for p in twin.parameters())]
    cotangent = values(twin(x).shape, x.dtype, seed=1)
    directions = [values(whole.shape, x.dtype, seed=2 + i) for i, whole in enumerate(wholes)]
    expected = derivatives(twin, x.clone(), list(twin.parameters()), cotangent.clone(), directions)

    def mine(whole, i):
        return block_of(whole, partitions[i], sizes if i == 0 else None)

    own_cotangent = block_of(cotangent, P_y, y_sizes)

    def check_shapes(y):
        """On all ranks, before those with the right shape go on and wait for the others."""
        fits = y.shape == own_cotangent.shape if P_y.active else y.numel() == 0
        everyone = together((fits, tuple(y.shape), tuple(own_cotangent.shape)))
        assert all(fits for fits, *_ in everyone), f"(fits, shape, expected) of the result on each rank: {everyone}"

    with torch.no_grad():
        for i, parameter in enumerate(layer.parameters(), start=1):
            parameter.copy_(mine(wholes[i], i).reshape(parameter.shape))
    blocks = derivatives(
        layer,
        mine(x, 0),
        list(layer.parameters()),
        own_cotangent,
        [mine(direction, i) for i, direction in enumerate(directions)],
        check_shapes,
    )
    where = [(P_y, y_sizes), (P_x, sizes), *((P, None) for P in parameter_partitions)]
    where += [*where[1:], where[0]]
    equals = [equal, *[equal_derivatives or equal] * (len(where) - 1)]
    for block, whole, (P, sizes_on_P), equal_here in zip(blocks, expected, where, equals, strict=True):
        assert P.active or block.numel() == 0
        joined = assemble(block, P, whole.shape, sizes_on_P)
        assert joined.dtype == whole.dtype
        assert equal_here(joined, whole), (joined, whole)


def fill_with_integers(module):
    """Give a module's parameters values with which sums and products are exact in floating point."""
    with torch.no_grad():
        for i, parameter in enumerate(module.parameters()):
            parameter.copy_(values(parameter.shape, parameter.dtype, seed=100 + i))
    return module


@strategies.composite
def blocks_of(draw, shape, workers):
    """Sizes of blocks in each dimension: None for balanced ones, or any, of which some are 0."""

    def along(n, p):
        cuts = sorted(draw(strategies.lists(strategies.integers(0, n), min_size=p - 1, max_size=p - 1)))
        return [stop - start for start, stop in itertools.pairwise([0, *cuts, n])]

    return [None if draw(strategies.booleans()) else along(n, p) for n, p in zip(shape, workers, strict=True)]

"""Blocks of equal elements, and values at the ends of the range, as torch has them of the whole tensor."""

import dataclasses
import math

import pytest
import torch

from support.blocks import grid
from support.families import EXAMPLES, splits
from support.ranks import job, together
from support.sequential import as_tuple, assert_equals_sequential, block, close, joined_blocks, slices_of

REDUCTIONS = ("Cosine", "Pairwise", "Triplet", "Softm", "LogSoftmax", "CrossEntropy", "LPPool", "Norm")


def with_equal_block(x, P, cut, rank, value):
    """A tensor with one value in place of all elements of the block of a rank; the same on all ranks."""
    place = job.bcast(slices_of(P, x.shape, cut) if job.rank == rank else None, root=rank)
    changed = x.clone()
    changed[place] = value
    return changed


@pytest.mark.ranks(2)
@pytest.mark.drawn(40)
@pytest.mark.parametrize("value", [0.0, 1.0])
@pytest.mark.parametrize("name", [name for name in EXAMPLES if any(word in name for word in REDUCTIONS)])
def test_second_derivatives_of_equal_parts(P_world, name, value):
    """A norm of a part that is zero has no second derivative, though the norm of the whole vector has."""
    example = EXAMPLES[name]
    P = grid(P_world, splits(example)[-1])
    wholes = example.inputs()
    for i, x in enumerate(wholes):
        if x.is_floating_point():
            changed = with_equal_block(x, P, example.cuts[i], P.size - 1, value)
            inputs = (*wholes[:i], changed, *wholes[i + 1 :])
            changed = dataclasses.replace(example, inputs=lambda inputs=inputs: tuple(item.clone() for item in inputs))
            assert_equals_sequential(changed, P)


NORMS = [name for name in EXAMPLES if "Norm" in name and "eval" not in name and "even" not in name]


def block_result(example, P, twin, x):
    """The result of the layer for the first input, on each rank, put together."""
    y = example.make(twin, P)(block(x, P, example.cuts[0])).detach()
    return joined_blocks(y, P, x.shape, example.results[0])


@pytest.mark.ranks(2)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", NORMS)
def test_squares_beyond_the_range(P_world, name, dtype):
    """The result does not look like numbers that are normalized: it is 0 or NaN, as torch's."""
    example, large = EXAMPLES[name], 1e200 if dtype == torch.float64 else 1e25
    signs = torch.randn(example.inputs()[0].shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    x = (signs * large).to(dtype)

    def made():
        twin = example.twin().to(dtype)
        with torch.no_grad():
            for parameter_name, parameter in twin.named_parameters():
                parameter.fill_(0.0 if parameter_name == "bias" else 1.0)
        return twin

    has_batch = x.dim() > 2 and "unbatched" not in name
    for whole in (x, x[:1]) if has_batch else (x,):  # of one sample, ranks have empty blocks
        expected = made()(whole).detach()
        assert bool(((expected == 0) | expected.isnan()).all()), expected
        for shape in splits(example):
            y = block_result(example, grid(P_world, shape), made(), whole)
            assert bool(((y == 0) | y.isnan()).all()), (shape, y)
            if not name.startswith(("LayerNorm", "GroupNorm")):  # there torch's depends on the order of the elements
                assert close(y, expected, 0.0), (shape, y)


@pytest.mark.ranks(2)
@pytest.mark.drawn(40)
@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan, 1e-310, -0.0])
@pytest.mark.parametrize("name", [name for name in EXAMPLES if any(word in name for word in REDUCTIONS)])
def test_special_values(P_world, name, value):
    """In the last element of the first input: the results are torch's, of NaN and of infinities too."""
    example = EXAMPLES[name]
    first, *others = (x.detach().clone() for x in example.inputs())  # examples may share them
    first.view(-1)[-1] = value
    inputs = (first, *others)
    expected = as_tuple(example.twin()(*(tensor.clone() for tensor in inputs), **example.call))
    for shape in splits(example):
        P = grid(P_world, shape)
        own = [block(x, P, cut) for x, cut in zip(inputs, example.cuts, strict=True)]
        results = as_tuple(example.make(example.twin(), P)(*own, **example.call))
        for y, whole, cut in zip(results, expected, example.results, strict=True):
            if cut is not None:
                y = joined_blocks(y, P, whole.shape, cut, None, example.first_of)
            problems = together("" if close(y.detach(), whole.detach(), example.tolerance) else f"{y} {whole}")
            assert not any(problems), (shape, problems)

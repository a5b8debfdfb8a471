"""Values that layers must not be passed: on whichever rank, they raise the same on all ranks, or nothing anywhere."""

import pytest
import torch

import distdl
from support.blocks import grid
from support.families import EXAMPLES, splits
from support.ranks import job
from support.sequential import as_tuple, block

pytestmark = pytest.mark.ranks(2, 3)

FLOATS = (float("nan"), float("inf"), -float("inf"), -0.5, 1.5, 1e300)
INTEGERS = (-1, -2, -100, 3, 4, 9, 1000, -(1 << 62), 1 << 62)


@pytest.fixture(autouse=True)
def soon_ended():
    """A rank that waits for a rank that raised alone ends the job, and says where."""
    distdl.set_watchdog(20, end=True)
    yield
    distdl.set_watchdog(300)


def of_odd_values(x):
    """Variants of a tensor, by name: each value in the first element, and in all elements."""
    if x.dtype.is_complex or x.dtype == torch.bool or not x.numel():
        return
    for value in FLOATS if x.is_floating_point() else INTEGERS:
        if not x.is_floating_point() and not torch.iinfo(x.dtype).min <= value <= torch.iinfo(x.dtype).max:
            continue
        first = x.clone()
        first.view(-1)[0] = value
        yield f"first {value}", first
        yield f"all {value}", torch.full_like(x, value)


def outcome_of(layer, inputs, call):
    """The outcome of this rank's call and its backward pass."""
    inputs = [x.clone().requires_grad_() if x.is_floating_point() else x for x in inputs]
    try:
        results = [y for y in as_tuple(layer(*inputs, **call)) if y.requires_grad]
        torch.autograd.backward([y.abs().sum() for y in results])
    except Exception as error:
        return type(error).__name__, str(error).split(" (raised on rank")[0]
    return None


@pytest.mark.shared
@pytest.mark.parametrize("example", EXAMPLES.values(), ids=EXAMPLES)
def test_values_on_one_rank(P_world, example):
    """This rank has the results of torch; values that torch refuses, all ranks refuse."""
    P_x = grid(P_world, splits(example, job.size)[-1])
    layer = example.make(example.twin(), P_x)
    inputs = [block(x, P_x, cut) for x, cut in zip(example.inputs(), example.cuts, strict=True)]
    assert set(job.allgather(outcome_of(layer, inputs, example.call))) == {None}
    for i in range(len(inputs)):
        variants = dict(of_odd_values(inputs[i]))
        for number, name in enumerate(job.bcast(list(variants), root=0)):
            rank = (job.size - 1) * (number // 2 % 2)
            arguments = [variants.get(name, x) if j == i and job.rank == rank else x for j, x in enumerate(inputs)]
            outcomes = job.allgather(outcome_of(layer, arguments, example.call))
            assert len(set(outcomes)) == 1, (i, name, rank, outcomes)
    assert set(job.allgather(outcome_of(layer, inputs, example.call))) == {None}

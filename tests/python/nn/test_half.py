"""Half precision where one worker has all elements: each rank finds out what torch refuses, and computes the rest."""

import pytest
import torch

from support.blocks import grid
from support.classes import EXAMPLES as CLASSES
from support.families import EXAMPLES, splits
from support.families.windows import split
from support.ranks import together
from support.sequential import all_on_the_first, as_tuple, block, joined_blocks

WINDOWS = {
    f"{kind.__name__} alone": split(make, *shape, whole=(1,))
    for kind, (make, shape) in CLASSES.items()
    if len(shape) > 2
}

ALL = EXAMPLES | WINDOWS
COMPUTED = ("AvgPool3d alone", "LPPool3d alone")  # which torch has for GPUs alone


def attempted(action):
    """The result of an action, and the kind of exception that it raises."""
    try:
        return action(), ""
    except Exception as raised:
        return None, type(raised).__name__


def halved(x, dtype, asks):
    """In another precision, if it is of floating point."""
    x = x.detach().to(dtype) if x.is_floating_point() else x.detach()
    return x.requires_grad_(asks and x.is_floating_point())


def gradients(results, inputs):
    """Of the sum of all results."""
    total = sum(y.sum() for y in results if y.requires_grad)
    return torch.autograd.grad(total, [x for x in inputs if x.requires_grad], allow_unused=True, materialize_grads=True)


@pytest.mark.ranks(2, 3)
@pytest.mark.drawn(24)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", ALL)
def test_all_elements_on_one_worker(P_world, name, dtype):
    example = ALL[name]
    chosen = example.differentiable
    ask = [chosen is None or i in chosen for i in range(len(example.cuts))]
    twin, inputs = example.twin().to(dtype), [halved(x, dtype, a) for x, a in zip(example.inputs(), ask, strict=True)]
    expected, refused = attempted(lambda: as_tuple(twin(*inputs, **example.call)))
    _, refused_backward = attempted(lambda: gradients(expected, inputs)) if expected else (None, "")
    for shape in splits(example):
        P, sizes = grid(P_world, shape), all_on_the_first(example, shape)
        layer = example.make(example.twin().to(dtype), P)
        own = [
            halved(block(x, P, cut, sizes), dtype, a)
            for x, cut, a in zip(example.inputs(), example.cuts, ask, strict=True)
        ]
        results, raised = attempted(lambda layer=layer, own=own: as_tuple(layer(*own, **example.call)))
        outcomes = set(together(raised))
        assert len(outcomes) == 1, (shape, outcomes)
        assert bool(raised) == bool(refused and name not in COMPUTED), (shape, raised, refused)
        if refused:
            continue
        of_results = [*sizes[:2], *[None] * len(sizes[2:])] if name in WINDOWS else sizes
        for y, whole, cut in zip(results, expected, example.results, strict=True):
            assert y.dtype == whole.dtype
            if cut is not None:
                y = joined_blocks(y, P, whole.shape, cut, of_results, example.first_of)
                assert y.isfinite().equal(whole.isfinite())
                scale = max(1.0, float(whole.detach().double().abs().nan_to_num(posinf=0).max()))
                off = (y.detach().double() - whole.detach().double()).abs().nan_to_num()
                assert float(off.max()) <= 16 * torch.finfo(dtype).eps * scale, (y, whole)
        _, raised = attempted(lambda results=results, own=own: gradients(results, own))
        outcomes = set(together(raised))
        assert len(outcomes) == 1, (shape, outcomes)
        assert not raised or refused_backward, (shape, raised)

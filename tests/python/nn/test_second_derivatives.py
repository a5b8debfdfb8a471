"""Derivatives of gradients where some workers have no elements: every rank has the graph that its twin has."""

import pytest
import torch

from support.blocks import grid
from support.families import EXAMPLES, splits
from support.ranks import job, together
from support.sequential import as_tuple, block

TWICE = {name: example for name, example in EXAMPLES.items() if example.second}


def gradients(layer, inputs, example):
    """Of the sum of the results, with a graph: by the inputs and the parameters."""
    chosen = example.differentiable
    leaves = [
        x.requires_grad_()
        for i, x in enumerate(inputs)
        if (x.is_floating_point() or x.is_complex() if chosen is None else i in chosen)
    ]
    leaves += layer.parameters()
    results = [y for y in as_tuple(layer(*inputs, **example.call)) if y.is_floating_point() or y.is_complex()]
    total = sum((torch.view_as_real(y) if y.is_complex() else y).sum() for y in results)
    return leaves, torch.autograd.grad(total, leaves, create_graph=True, allow_unused=True, materialize_grads=True)


def all_on_the_first(example, shape):
    """Along each axis that may be cut anywhere, all elements on the first worker."""
    extents = {
        axis: n
        for x, cut in zip(example.inputs(), example.cuts, strict=True)
        for n, axis in zip(x.shape, cut, strict=True)
        if axis is not None and axis not in example.balanced
    }
    return [[extents[axis], *[0] * (p - 1)] if axis in extents else None for axis, p in enumerate(shape)]


@pytest.mark.shared
@pytest.mark.ranks(2, 3)
@pytest.mark.parametrize("example", TWICE.values(), ids=TWICE)
def test_every_rank_has_the_graph_of_the_twin(P_world, example):
    _, expected = gradients(example.twin(), example.inputs(), example)
    expected = [g.requires_grad for g in expected]
    for shape in {*splits(example), splits(example, max(1, job.size - 1))[-1]}:
        P, sizes = grid(P_world, shape), all_on_the_first(example, shape)
        layer = example.make(example.twin(), P)
        own = [block(x, P, cut, sizes) for x, cut in zip(example.inputs(), example.cuts, strict=True)]
        leaves, first = gradients(layer, own, example)
        inputs = len(first) - len([*layer.parameters()])
        wanted = (*expected[:inputs], any(expected[inputs:]))  # penalties are of inputs, or of all parameters
        have = together((*(g.requires_grad for g in first[:inputs]), any(g.requires_grad for g in first[inputs:])))
        lost = [rank for rank, one in enumerate(have) if any(e and not h for h, e in zip(one, wanted, strict=True))]
        assert not lost, (shape, have, wanted)
        squares = sum(g.abs().square().sum() for g in first)
        if squares.requires_grad:
            torch.autograd.grad(squares, leaves, allow_unused=True)

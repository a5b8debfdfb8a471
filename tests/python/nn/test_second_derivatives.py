"""Derivatives of gradients where some workers have no elements: every rank has the graph that its twin has."""

import pytest
import torch

from support.blocks import grid
from support.families import EXAMPLES, splits
from support.ranks import job, together
from support.sequential import all_on_the_first, as_tuple, block

TWICE = {name: example for name, example in EXAMPLES.items() if example.second}


def gradients(layer, inputs, example, power):
    """Of the sum of powers of the results, with a graph: by the inputs and the parameters."""
    chosen = example.differentiable
    leaves = [
        x.requires_grad_()
        for i, x in enumerate(inputs)
        if (x.is_floating_point() or x.is_complex() if chosen is None else i in chosen)
    ]
    leaves += layer.parameters()
    results = [y for y in as_tuple(layer(*inputs, **example.call)) if y.is_floating_point() or y.is_complex()]
    total = sum((torch.view_as_real(y) if y.is_complex() else y).pow(power).sum() for y in results)
    return leaves, torch.autograd.grad(total, leaves, create_graph=True, allow_unused=True, materialize_grads=True)


@pytest.mark.shared
@pytest.mark.ranks(2, 3)
@pytest.mark.parametrize("power", [1, 2])
@pytest.mark.parametrize("example", TWICE.values(), ids=TWICE)
def test_every_rank_has_the_graph_of_the_twin(P_world, example, power):
    """Also where the layer is linear, and what reads its result is not."""
    _, expected = gradients(example.twin(), example.inputs(), example, power)
    expected = [g.requires_grad for g in expected]
    for shape in {*splits(example), splits(example, max(1, job.size - 1))[-1]}:
        P, sizes = grid(P_world, shape), all_on_the_first(example, shape)
        layer = example.make(example.twin(), P)
        own = [block(x, P, cut, sizes) for x, cut in zip(example.inputs(), example.cuts, strict=True)]
        leaves, first = gradients(layer, own, example, power)
        inputs = len(first) - len([*layer.parameters()])
        wanted = (*expected[:inputs], any(expected[inputs:]))  # penalties are of inputs, or of all parameters
        have = together((*(g.requires_grad for g in first[:inputs]), any(g.requires_grad for g in first[inputs:])))
        lost = [rank for rank, flags in enumerate(have) if any(e and not h for h, e in zip(flags, wanted, strict=True))]
        assert not lost, (shape, have, wanted)
        squares = sum(g.abs().square().sum() for g in first)
        if squares.requires_grad:
            torch.autograd.grad(squares, leaves, allow_unused=True)


@pytest.mark.ranks(2, 3)
@pytest.mark.drawn(60, "AdaptiveAvgPool2d", "AdaptiveMaxPool1d")
@pytest.mark.parametrize("example", EXAMPLES.values(), ids=EXAMPLES)
def test_results_of_empty_blocks_ask_for_gradients(P_world, example):
    """On every worker whose input does: its backward pass takes part in the exchanges of the others'."""
    chosen = example.differentiable
    wholes = example.inputs()
    if chosen is None:
        chosen = [i for i, x in enumerate(wholes) if x.is_floating_point() or x.is_complex()]
    asks = [x.requires_grad_(i in chosen) for i, x in enumerate(wholes)]
    expected = [y.requires_grad for y in as_tuple(example.twin()(*asks, **example.call))]
    for shape in splits(example):
        P, sizes = grid(P_world, shape), all_on_the_first(example, shape)
        own = [block(x.detach(), P, cut, sizes) for x, cut in zip(wholes, example.cuts, strict=True)]
        for i in chosen:
            own[i].requires_grad_()
        results = as_tuple(example.make(example.twin(), P)(*own, **example.call))
        have = together([y.requires_grad for y in results])
        assert have == [expected] * job.size, (shape, have, expected)
        assert all(together(all(y.grad_fn or y is own[0] for y in results if y.requires_grad))), shape
        torch.autograd.backward([y.sum() for y in results if y.requires_grad and not y.is_complex()])

"""Derivatives of gradients where some workers have no elements: every rank has the graph that its twin has."""

import pytest
import torch

from support.blocks import grid
from support.families import EXAMPLES, losses, softmax, splits
from support.ranks import job, together
from support.sequential import (
    all_on_the_first,
    as_tuple,
    block,
    close,
    joined,
    joined_blocks,
    layouts_of,
    parameter_slices,
)
from support.tensors import values

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


def of_powers(layer, inputs, chosen, weights, recorded):
    """Derivatives of the squares of the gradients of sums of weighted third powers of the results.

    The gradient of a result depends on the result: the second pass meets the first pass and the call.
    """
    leaves = [*(inputs[i].requires_grad_() for i in chosen), *layer.parameters()]
    options = {"allow_unused": True, "materialize_grads": True}
    total = sum((y.pow(3) * w.view(y.shape)).sum() for y, w in zip(as_tuple(layer(*inputs)), weights, strict=True))
    first = torch.autograd.grad(total, leaves, create_graph=True, **options)
    squares = sum(g.square().sum() for g in first)
    return [g.detach() for g in torch.autograd.grad(squares, leaves, create_graph=recorded, **options)]


OF_POWERS = {name: example for name, example in (softmax.EXAMPLES | losses.EXAMPLES).items() if example.second}


@pytest.mark.ranks(1, 2, 3)
@pytest.mark.drawn(60, "Softmax", "LogSoftmax", "CrossEntropyLoss", "NLLLoss")
@pytest.mark.parametrize("recorded", [False, True])
@pytest.mark.parametrize("example", OF_POWERS.values(), ids=OF_POWERS)
def test_second_derivatives_of_powers(P_world, example, recorded):
    """Of softmax and losses, on every split: those of the twin."""
    wholes = example.inputs()
    chosen = example.differentiable
    if chosen is None:
        chosen = [i for i, x in enumerate(wholes) if x.is_floating_point()]
    twin = example.twin()
    shapes = [y.shape for y in as_tuple(twin(*wholes))]
    weights = [values(shape, seed=31 + i) / 2 - 1 for i, shape in enumerate(shapes)]
    wholes = [x.clone() for x in wholes]
    expected = of_powers(twin, wholes, chosen, weights, recorded)
    for shape in {*splits(example), splits(example, max(1, job.size - 1))[-1]}:
        P = grid(P_world, shape)
        layer = example.make(example.twin(), P)
        own = [block(x.detach(), P, cut) for x, cut in zip(wholes, example.cuts, strict=True)]
        factors = [block(w, P, cut, first_of=example.first_of) for w, cut in zip(weights, example.results, strict=True)]
        derived = of_powers(layer, own, chosen, factors, recorded)
        together_again = [
            joined_blocks(g, P, wholes[i].shape, example.cuts[i]) for i, g in zip(chosen, derived, strict=False)
        ]
        layouts = layouts_of(layer)
        for (name, parameter), g in zip(twin.named_parameters(), derived[len(chosen) :], strict=True):
            together_again.append(joined(g, parameter.shape, parameter_slices(layouts[name])))
        for g, whole in zip(together_again, expected, strict=True):
            assert close(g, whole, 1000 * example.tolerance), (shape, g, whole)

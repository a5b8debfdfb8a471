"""Experts whose number does not divide, in the blocks of which programs have them."""

import pytest
import torch

import distdl
import distdl.nn as dnn
from support.blocks import assemble, block_of, grid
from support.classic.layers import SequentialExperts
from support.ranks import job, on_all_ranks, raises_everywhere
from support.tensors import fill_with_integers, values

pytestmark = pytest.mark.ranks(2, 3)
each = pytest.mark.parametrize("name", ["DistributedExpertAllGather", "DistributedExpertReduceScatter"])

SPLITS = {
    "balanced": lambda n, p: [n // p + (i < n % p) for i in range(p)],
    "last has more": lambda n, p: [n // p] * (p - 1) + [n // p + n % p],
    "all on the last": lambda n, p: [0] * (p - 1) + [n],
    "all on the first": lambda n, p: [n] + [0] * (p - 1),
}


def layer_and_twin(name, P, experts):
    layer = getattr(dnn, name)(P, experts, 4, 6, dtype=torch.float64)
    twin = fill_with_integers(SequentialExperts(experts, 4, 6))
    distdl.load_sequential(layer, twin.state_dict())
    return layer, twin


@each
@pytest.mark.parametrize("experts", [1, 4, 7])
@pytest.mark.parametrize("split", SPLITS.values(), ids=SPLITS)
@on_all_ranks
def test_any_blocks(P_world, name, experts, split):
    """Each token gets the result of its expert, where it came from, with all gradients."""
    P = grid(P_world, [job.size, 1, 1])
    layer, twin = layer_and_twin(name, P, experts)
    x, sizes = values([experts, 3, 4]), [split(experts, job.size), None, None]
    whole, mine = x.clone().requires_grad_(), block_of(x, P, sizes).requires_grad_()
    y, expected = layer(mine), twin(whole)
    assert torch.equal(assemble(y, P, expected.shape, sizes), expected)
    cotangent = values(expected.shape, seed=3)
    y.backward(block_of(cotangent, P, sizes))
    expected.backward(cotangent)
    assert torch.equal(assemble(mine.grad, P, x.shape, sizes), whole.grad)
    gradients = distdl.sequential_gradients(layer)
    assert all(torch.equal(gradients[key], one.grad) for key, one in twin.named_parameters() if job.rank == 0)


@each
@pytest.mark.ranks(4)
@pytest.mark.parametrize(
    ("shape", "sizes"),
    [([2, 2, 1], [[1, 4], [3, 1], None]), ([2, 1, 2], [[1, 4], None, None])],
    ids=["tokens", "features"],
)
@on_all_ranks
def test_where_more_is_split(P_world, name, shape, sizes):
    """Tokens come in any blocks as well, features in balanced ones."""
    P = grid(P_world, shape)
    layer, twin = layer_and_twin(name, P, 5)
    x = values([5, 4, 4])
    y, expected = layer(block_of(x, P, sizes)), twin(x)
    assert torch.equal(assemble(y, P, expected.shape, sizes), expected)


@each
@on_all_ranks
def test_what_a_division_leaves(P_world, name):
    """As many experts on each worker as there are for all: the first of its own. The others get no gradient."""
    P, each_has = grid(P_world, [job.size, 1, 1]), 2
    experts = each_has * job.size + 1
    layer, twin = layer_and_twin(name, P, experts)
    x = values([each_has, 3, 4], differ_by_rank=True).requires_grad_()
    first = job.rank * each_has + min(job.rank, 1)  # rank 0 has the one that is left
    own = slice(first, first + each_has)
    used = twin.weight[own].mT
    expected = x @ used + twin.bias[own].unsqueeze(1)
    y = layer(x)
    assert torch.equal(y, expected)
    y.sum().backward()
    assert torch.equal(layer.weight.grad[each_has:], torch.zeros_like(layer.weight[each_has:]))
    assert torch.equal(layer.weight.grad[:each_has], x.detach().sum(1).unsqueeze(1).expand(-1, 6, -1))


@each
def test_other_numbers(P_world, name):
    layer, _ = layer_and_twin(name, grid(P_world, [job.size, 1, 1]), 5)
    raises_everywhere(ValueError, "experts; these must be", lambda: layer(values([4, 3, 4])))

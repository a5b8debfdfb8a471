"""Copies of a layer: all ranks call the same copy, or all of them raise."""

import copy

import pytest
import torch

import distdl
import distdl.nn as dnn
from support.blocks import grid
from support.ranks import job, raises_everywhere
from support.tensors import values


class Scaled(dnn.Module):
    """A module of a user's own."""

    def __init__(self, P):
        super().__init__()
        self.sum = dnn.AllSumReduce(P, [0])
        self._distdl_agree_among(P)

    def forward(self, x):
        return self.sum(x)


LAYERS = {
    "softmax": lambda P: dnn.DistributedSoftmax(grid(P, [1, job.size]), 1),
    "norm": lambda P: dnn.DistributedLayerNorm(grid(P, [1, job.size]), 3 * job.size, dtype=torch.float64),
    "module": lambda P: Scaled(grid(P, [job.size, 1])),
    "local": lambda P: dnn.Local(grid(P, [job.size, 1]), torch.nn.Linear(3, 3, dtype=torch.float64)),
}
every_layer = pytest.mark.parametrize("make", LAYERS.values(), ids=LAYERS)
pytestmark = pytest.mark.ranks(2, 3)
last = job.rank == job.size - 1


@every_layer
@pytest.mark.parametrize("called", [False, True], ids=["not called", "called"])
def test_a_copy_beside_the_layer(P_world, make, called):
    layer, x = make(P_world), values((2, 3), seed=job.rank)
    if called:
        layer(x)
    new, other = copy.deepcopy(layer), copy.deepcopy(layer)
    words = f"do not make the same call.*the first call of a copy of {type(layer).__name__}"
    raises_everywhere(RuntimeError, words, lambda: (new if last else layer)(x))
    expected = layer(x)
    assert torch.equal(new(x), expected)
    raises_everywhere(ValueError, "the ranks differ.*copy 1", lambda: (new if last else layer)(x))
    raises_everywhere(RuntimeError, "the first call of a copy", lambda: (new if last else other)(x))
    assert torch.equal(other(x), expected)
    raises_everywhere(ValueError, "the ranks differ.*copy 1.*copy 2", lambda: (other if last else new)(x))
    for called_together in (layer, new, other):
        assert torch.equal(called_together(x), expected)


@every_layer
def test_copies_that_not_all_ranks_make(P_world, make):
    """Before or after the first call, once more on one rank, or of a copy: they are known by their first calls."""
    layer, x = make(P_world), values((2, 3), seed=job.rank)
    early = copy.deepcopy(layer)
    expected = layer(x)
    late = copy.deepcopy(copy.deepcopy(layer) if last else layer)
    results = [(early if last else late)(x) for _ in range(2)]
    results += [(late if last else early)(x) for _ in range(2)]
    assert all(torch.equal(y, expected) for y in [*results, copy.copy(layer)(x), layer(x)])


@every_layer
def test_a_first_call_that_is_refused(P_world, make):
    """Its mistakes are named as in any call, and the next call is the first."""
    layer, x = copy.deepcopy(make(P_world)), values((2, 3), seed=job.rank)
    raises_everywhere(TypeError, "NoneType", lambda: layer(None if last else x))
    raises_everywhere((TypeError, ValueError), "argument", lambda: layer(x, x, x, x) if last else layer(x))
    layer(x)


@every_layer
def test_copies_without_votes(P_world, make):
    """With the structure check off, too, a copy begins anew."""
    layer, x = make(P_world), values((2, 3), seed=job.rank)
    expected = layer(x)
    with distdl.structure_check(False):
        copied = copy.deepcopy(layer)
        assert all(torch.equal(copied(x), expected) for _ in range(2))


def test_a_copy_whose_communicator_was_freed():
    """It is first called then, which ended the process."""
    comm = job.Dup()
    layer = dnn.DistributedLinear(distdl.Partition(comm).create_cartesian_topology_partition([job.size, 1]), 3, 3)
    layer(torch.ones(2, 3))
    comm.Free()
    raises_everywhere(RuntimeError, "was freed", lambda: copy.deepcopy(layer)(torch.ones(2, 3)))

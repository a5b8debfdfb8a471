"""Results of ranks that have no part of a result: zero volume, in as many dimensions as the blocks of the others."""

import inspect

import pytest
import torch

import distdl
import distdl.nn as dnn
from support.blocks import grid
from support.families import EXAMPLES
from support.ranks import job, together
from support.sequential import as_tuple, block

pytestmark = pytest.mark.ranks(2)


@pytest.mark.drawn(40)
@pytest.mark.parametrize("example", EXAMPLES.values(), ids=EXAMPLES)
def test_dimensions_outside_of_the_partition(P_world, example):
    """A loss is a number on all ranks, and a tensor without dimensions cannot have zero volume."""
    P_x = grid(P_world, [1] * example.dims)
    layer, inputs = example.make(example.twin(), P_x), [block(x, P_x, None) for x in example.inputs()]
    if job.rank == 1:
        inputs = [distdl.zero_volume_tensor(dtype=x.dtype) for x in inputs]
    results = as_tuple(layer(*inputs, **example.call))
    inspect.getmembers(layer)  # torch.jit.trace looks at all attributes before it calls the layer
    if example is EXAMPLES["MultiheadAttention, weights of each head"]:
        results = results[:1]  # the weights have the dimensions of their mean
    for there, here in zip(*together([list(y.shape) for y in results]), strict=True):
        assert here == [0] * len(there) or (there == [] and here == [0]), (there, here)


@pytest.mark.ranks(2, 4)
@pytest.mark.parametrize("name", [n for n, case in EXAMPLES.items() if case.first_of and None not in case.results])
def test_dimensions_of_workers_without_a_part(P_world, name):
    """Where the workers along an axis share results, which the first of them has."""
    example = EXAMPLES[name]
    P_x = grid(P_world, [job.size if axis in example.first_of else 1 for axis in range(example.dims)])
    y = example.make(example.twin(), P_x)(
        *[block(x, P_x, cut) for x, cut in zip(example.inputs(), example.cuts, strict=True)], **example.call
    )
    first, *others = together(list(y.shape))
    assert all(len(shape) == max(len(first), 1) and 0 in shape for shape in others), (first, others)


@pytest.mark.ranks(2, 4)
@pytest.mark.parametrize("batch", [None, 3])
def test_flatten_of_torch_on_all_ranks(P_world, batch):
    """Behind a layer on rank 0 alone, with gradients on all ranks, and the size of the batch where it was there."""
    P_x = grid(P_world, [1, 1, 1, 1])
    model = torch.nn.Sequential(
        dnn.DistributedConv2d(P_x, 1, 2, 3), dnn.DistributedMaxPool2d(P_x, 2), torch.nn.Flatten()
    )
    x = torch.rand(3, 1, 6, 6) if job.rank == 0 else distdl.zero_volume_tensor(batch)
    y = model(x.requires_grad_())
    y.sum().backward()
    assert list(y.shape) == ([3, 8] if job.rank == 0 else [batch or 0, 0])
    assert x.grad.shape == x.shape


def test_dimensions_where_another_rank_has_the_result(P_world):
    source, target = (grid(P_world, [1, 1, 1, 1], [rank]) for rank in (0, 1))
    layer = dnn.DistributedConv2d(source, target, grid(P_world, [1, 1, 1, 1, 1], [0]), 1, 2, 3)
    y = layer(torch.rand(3, 1, 6, 6) if job.rank == 0 else distdl.zero_volume_tensor())
    assert list(y.shape) == ([3, 0, 0, 0] if job.rank == 0 else [3, 2, 4, 4])

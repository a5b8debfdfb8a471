"""Convolutions whose blocks are not copied: of the same layers as in test_conv.py, which draws both kinds."""

import math
from unittest import mock

import pytest
import torch
from torch.autograd import forward_ad

import distdl
import distdl.nn as dnn
from distdl.nn import conv_halo
from support import assemble, assert_equals_twin, block_of, fill_with_integers, grid, job, values


@pytest.fixture(autouse=True)
def _small_blocks():
    with mock.patch.object(conv_halo, "SMALLEST", 0):
        yield


def twins(P_x, dims, kernel=3, dtype=torch.float64, **options):
    """A sequential and a distributed layer with the same parameters, whole numbers."""
    sequential, distributed = getattr(torch.nn, f"Conv{dims}d"), getattr(dnn, f"DistributedConv{dims}d")
    twin = fill_with_integers(sequential(2, 3, kernel, dtype=dtype, **options))
    layer = distributed(P_x, 2, 3, kernel, dtype=dtype, **options)
    with torch.no_grad():
        for mine, whole in zip(layer.parameters(), twin.parameters(), strict=True):
            mine.copy_(whole if job.rank == P_x._ranks[0] else whole[:0])
    return twin, layer


def in_space(P, dims, fewest=1):
    """As many workers as there are, in a line and, if possible, in a square."""
    shapes = [[1, 1, job.size, *[1] * (dims - 1)], [1, 1, *[1] * (dims - 1), job.size]]
    if dims > 1 and math.isqrt(job.size) ** 2 == job.size:
        shapes.append([1, 1, *[math.isqrt(job.size)] * 2, *[1] * (dims - 2)])
    return [grid(P, shape) for shape in shapes]


OPTIONS = {
    "as large as the input": {"padding": 1},
    "wide": {"kernel": 7, "padding": 3},
    "of even size": {"kernel": 4, "padding": 1},
    "without padding": {"kernel": 5},
    "padded by more than it reads": {"kernel": 3, "padding": 3},
    "dilated": {"padding": 2, "dilation": 2},
    "strided": {"padding": 1, "stride": 2},
    "strided and dilated": {"kernel": 5, "padding": 4, "stride": 3, "dilation": 2},
    "without bias": {"padding": 1, "bias": False},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("dims", [1, 2, 3])
def test_equals_conv(P_world, dims, options):
    """Halos on both sides of a block, along one dimension or two, with corners."""
    for P_x in in_space(P_world, dims):
        twin, layer = twins(P_x, dims, **options)
        x = values([2, 2, *[8 * job.size if p > 1 else 7 for p in P_x.shape[2:]]])
        owners = [grid(P_world, [1] * parameter.dim(), [0]) for parameter in twin.parameters()]
        assert_equals_twin(layer, twin, x, P_x, P_x, owners)

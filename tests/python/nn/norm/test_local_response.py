"""Local response normalization."""

import pytest
import torch

import distdl.nn as dnn
from support.blocks import grid
from support.ranks import job, raises_everywhere
from support.tensors import values


def test_volumes_in_another_order_of_memory(P_world):
    """torch refuses them: a block must not be refused on the ranks where it is in such an order."""
    x = values((3, 2, 4, 2, 2))
    expected = torch.nn.LocalResponseNorm(3)(x)
    layer = dnn.DistributedLocalResponseNorm(grid(P_world, (1, 1, 1, 1, 1)), 3)
    y = layer(x.permute(0, 4, 3, 2, 1).contiguous().permute(0, 4, 3, 2, 1) if job.rank == 0 else x[:0])
    assert job.rank or torch.equal(y, expected)


@pytest.mark.ranks(2)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64, torch.int64], ids=str)
@pytest.mark.parametrize("dims", [3, 4, 5])
@pytest.mark.parametrize("axis", [1, 2], ids=["channels", "space"])
def test_local_response_where_one_worker_has_all_elements(P_world, dtype, dims, axis):
    """All ranks refuse a dtype that torch refuses in a number of dimensions, also ranks without elements."""
    whole = values((2, 3, 2, 2, 2)[:dims], dtype)
    P = grid(P_world, [2 if d == axis else 1 for d in range(dims)])
    x = whole if job.rank == 0 else whole.narrow(axis, 0, 0)
    layer = dnn.DistributedLocalResponseNorm(P, 2)
    try:
        expected = torch.nn.LocalResponseNorm(2)(whole)
    except (RuntimeError, NotImplementedError) as refused:
        raises_everywhere(type(refused), "DistributedLocalResponseNorm", lambda: layer(x))
        return
    assert layer(x).dtype == expected.dtype

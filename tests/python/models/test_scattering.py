"""Whole tensors to blocks and back."""

import pytest
import torch
from torch.utils._pytree import register_pytree_node

import distdl
from support.blocks import grid
from support.distributed import partitions
from support.models import Function
from support.ranks import job, raises_everywhere
from support.tensors import values

P_world = distdl.Partition(job)


@pytest.mark.parametrize("root", [0, -1], ids=["first", "last"])
def test_scatter_and_gather_are_adjoint(root):
    root %= P_world.size
    whole = values((3, 5, 4))
    for split in partitions(3):
        P_x = grid(P_world, split)
        x = whole.clone().requires_grad_() if job.rank == root else None
        block = distdl.scatter(x, P_x, root)
        back = distdl.gather(block, P_x, root)
        assert torch.equal(back, whole) if job.rank == root else back.numel() == 0
        if block.requires_grad:  # not on ranks that neither have nor get anything
            (block * block.detach()).sum().backward()
        if job.rank == root:
            assert torch.equal(x.grad, whole)


def test_gather_takes_structures():
    P_x, P_one = grid(P_world, [P_world.size, 1]), grid(P_world, [1])
    y = {"blocks": torch.full((2, 1), float(job.rank)) if P_x.active else distdl.zero_volume_tensor(), "n": 3}
    y["one"] = torch.ones(2) if P_one.active else distdl.zero_volume_tensor()
    result = distdl.gather(y, {"blocks": P_x, "n": None, "one": P_one})
    assert result["n"] == 3
    assert result["blocks"].numel() == (2 * P_world.size if job.rank == 0 else 0)


class Named(dict):
    """Results by name, registered without keys and without what is None, as some packages do."""


def named_parts(y):
    kept = {key: x for key, x in y.items() if x is not None}
    return [*kept.values()], [*kept]


register_pytree_node(Named, named_parts, lambda parts, keys: Named(zip(keys, parts, strict=True)))


def test_gather_takes_classes_that_leave_out_what_is_none():
    P_x = grid(P_world, [P_world.size, 1])
    ours = distdl.distribute(Function(lambda x: Named(first=x.sum() * 2, last=[x * 2, x.mean()])), P_x)
    whole = values((4, 3))
    y = distdl.gather(ours(distdl.scatter(whole, P_x)), ours.output_partition)
    assert type(y) is Named
    if job.rank == 0:
        expected = [whole.sum() * 2, whole * 2, whole.mean()]
        torch.testing.assert_close([y["first"], *y["last"]], expected, rtol=1e-13, atol=1e-13)


def test_scatter_refuses_what_is_no_structure_of_partitions():
    P_x, x = grid(P_world, [P_world.size]), torch.ones(3)
    for wrong, message in (([P_x, 3], "holds a int"), ({}, "is or holds a dict"), ([P_x], "different structures")):
        raises_everywhere(TypeError, message, lambda wrong=wrong: distdl.scatter([x, x], wrong))

"""Whole tensors to blocks and back."""

import pytest
import torch

import distdl
from support.blocks import grid
from support.distributed import partitions
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


def test_scatter_refuses_what_is_no_structure_of_partitions():
    P_x, x = grid(P_world, [P_world.size]), torch.ones(3)
    for wrong, message in (([P_x, 3], "holds a int"), ({}, "is or holds a dict"), ([P_x], "different structures")):
        raises_everywhere(TypeError, message, lambda wrong=wrong: distdl.scatter([x, x], wrong))

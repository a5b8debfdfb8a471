"""The scale of the loss: all ranks skip a step together."""

import math

import pytest
import torch

import distdl
from support.blocks import block_of
from support.ranks import job
from support.tensors import same_bits
from support.training import Twins


@pytest.mark.ranks(1, 2, 3)
@pytest.mark.parametrize(("kind", "fused"), [("owner", False), ("sharded", True), ("replicated", False)])
def test_steps_and_scales_of_the_sequential_run(P_world, kind, fused):
    """A step is skipped where a single element of a single block overflows."""
    twins = Twins(P_world, kind, torch.float32)

    def run(model, loss, scaler):
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01, fused=fused)
        scales = []
        for step in range(6):
            optimizer.zero_grad()
            scaler.scale(loss(step)).backward()
            if step in (1, 4):
                weight = model[1].weight
                if weight.numel() and (model is twins.twin or job.rank == 0):
                    weight.grad.view(-1)[-1] = math.inf if step == 1 else math.nan
            if step == 2:
                scaler.unscale_(optimizer)
                distdl.clip_grad_norm_(model, 0.1)
            scaler.step(optimizer)
            scaler.update()
            scales.append(scaler.get_scale())
        return scales

    options = {"device": "cpu", "init_scale": 1024.0, "growth_interval": 2}
    expected = run(twins.twin, twins.twin_loss, torch.amp.GradScaler(**options))
    measured = run(twins.model, twins.own_loss, distdl.GradScaler(**options))
    assert measured == expected == [1024, 512, 512, 1024, 512, 512]
    assert job.allgather(measured) == [expected] * job.size
    twins.assert_equal(rtol=1e-4, atol=1e-5)


@pytest.mark.ranks(2)
def test_ranks_without_gradients_step_with_the_others(P_world):
    twins = Twins(P_world.create_partition_inclusive([1]), dtype=torch.float32)
    scaler = distdl.GradScaler("cpu", init_scale=8.0)
    optimizer = torch.optim.SGD(twins.model.parameters(), lr=0.1)
    x, target = (block_of(whole, twins.P_x) for whole in twins.batch(0))
    before = [parameter.clone() for parameter in twins.model.parameters()]
    scaler.scale(twins.loss(twins.model(x), target)).backward()
    if job.rank == 1:
        twins.model[1].weight.grad[0, 0] = math.inf
    else:
        optimizer.zero_grad()
    scaler.step(optimizer)
    scaler.update()
    assert scaler.get_scale() == 4
    assert all(map(same_bits, before, twins.model.parameters()))

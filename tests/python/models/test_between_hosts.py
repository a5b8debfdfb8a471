"""Inputs of an operation that travel at the same time, where the ranks are on several hosts."""

import copy

import pytest
import torch
import torch.nn.functional as F

import distdl
from distdl import _core
from distdl.models.plan.redistribution import Arrival
from support.blocks import grid
from support.distributed import assert_none, noise, off
from support.ranks import job, together

pytestmark = [pytest.mark.ranks(2, 3, 4)]


class Attention(torch.nn.Module):
    """Three inputs of an operation are computed and travel."""

    def __init__(self):
        super().__init__()
        self.project = torch.nn.Linear(4, 12, dtype=torch.double)

    def forward(self, x):
        q, k, v = self.project(x).chunk(3, -1)
        return F.scaled_dot_product_attention(q, k, v) + x


@pytest.mark.parametrize(("comm", "at_once"), [(_core.SEVERAL_HOSTS, True), (_core.ONE_HOST, False)], indirect=["comm"])
@pytest.mark.parametrize("tokens", [8, 3, 2], ids=str)
def test_inputs_travel_at_once(comm, at_once, tokens):
    torch.manual_seed(0)
    model = Attention()
    ours = distdl.distribute(copy.deepcopy(model), grid(distdl.Partition(comm), [1, job.size, 1]))
    whole = noise((2, tokens, 4)).requires_grad_()
    x = distdl.scatter(whole.detach(), ours.P_x).detach().requires_grad_()
    for _ in range(2):
        x.grad = None
        y = ours(x)
        y.square().sum().backward()
    expected = model(whole)
    expected.square().sum().backward()
    result, slope = distdl.gather(y.detach(), ours.P_x), distdl.gather(x.grad, ours.P_x)
    assert_none([off(result, expected), off(slope, whole.grad)])
    arrivals = [place for place, step in enumerate(ours.program.steps) if isinstance(step.run, Arrival)]
    assert together(len(arrivals) > 1) == [at_once] * job.size
    assert arrivals == [*range(arrivals[0], arrivals[-1] + 1)] if at_once else not arrivals

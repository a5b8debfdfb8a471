"""What travels at once between hosts: the inputs of an operation, and a vote with what its layer exchanges first."""

import copy
import itertools
import random

import pytest
import torch
import torch.nn.functional as F

import distdl
from distdl import _core
from distdl.models.plan.redistribution import Arrival
from distdl.parameters.layout import LAYOUT_KINDS
from support.blocks import grid
from support.distributed import assert_none, noise, off
from support.ranks import job, raises_everywhere, together

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


def chain(channels=2):
    sizes = itertools.pairwise([2, channels, channels, 2])
    return torch.nn.Sequential(*(torch.nn.Conv2d(*each, 3, padding=1, dtype=torch.double) for each in sizes))


CASES = {  # the model, the axis that is split, and the number of operators whose messages travel beside the vote
    "owner": (chain, 2, 2),
    "sharded": (chain, 2, 2),
    "replicated": (chain, 2, 1),
    "large": (lambda: chain(12), 2, 1),
    "batch": (chain, 0, 1),
    "Conv2d": (lambda: torch.nn.Conv2d(2, 2, 3, padding=1, dtype=torch.double), 2, 2),
    "MaxPool2d": (lambda: torch.nn.MaxPool2d(3, 1, 1), 2, 1),
}


@pytest.mark.parametrize("comm", [_core.SEVERAL_HOSTS], indirect=True)
@pytest.mark.parametrize("kind", CASES)
@pytest.mark.parametrize("seed", range(4))
def test_what_travels_beside_a_vote(comm, kind, seed):
    """Calls that are like the last one, and others, and errors."""
    torch.manual_seed(0)
    make, axis, beside = CASES[kind]
    model = make()
    P = grid(distdl.Partition(comm), [job.size if d == axis else 1 for d in range(4)])
    with distdl.parameter_layout(kind if kind in LAYOUT_KINDS else "owner"):
        if layer := getattr(distdl.nn, f"Distributed{kind}", None):
            ours = layer.from_sequential(model, P)
        else:
            ours = distdl.distribute(copy.deepcopy(model), P, halos="chain")
    draw = random.Random(seed)
    for _ in range(25):
        rows, grad, what = draw.choice([2, 2, 2, 3]), draw.random() < 0.5, draw.random()
        shape = [2, 2, 4, 4]
        shape[axis] = rows * job.size
        whole = noise(shape).requires_grad_(grad)
        x = distdl.scatter(whole.detach(), P).detach().requires_grad_(grad)
        if what < 0.15:
            failing = draw.randrange(job.size)
            given = "text" if job.rank == failing else x
            raises_everywhere(TypeError, f"of rank {failing} is of type str", lambda given=given: ours(given))
            continue
        with torch.set_grad_enabled(grad):
            y = ours(x)
            if what > 0.8:
                with distdl.structure_check(False):
                    y = ours(x)
        expected = model(whole)
        assert_none([off(distdl.gather(y.detach(), P), expected)])
        if grad:
            y.square().sum().backward()
            expected.square().sum().backward()
            assert_none([off(distdl.gather(x.grad, P), whole.grad)])
    call = ((x,), {}) if isinstance(ours, distdl.DistributedModel) else x
    assert together(len(ours.beside_vote((call,), ours.voted_parameters()))) == [beside] * job.size


class Counted(torch.nn.Module):
    """A parametrization with another value in each use."""

    uses = 0

    def forward(self, weight):
        self.uses += 1
        return weight * self.uses


@pytest.mark.parametrize("comm", [_core.SEVERAL_HOSTS], indirect=True)
@pytest.mark.parametrize("layout", LAYOUT_KINDS)
def test_a_weight_that_is_computed_in_each_use(comm, layout):
    """All ranks use the same value."""
    torch.manual_seed(0)
    with distdl.parameter_layout(layout):
        layer = distdl.nn.DistributedConv2d(grid(distdl.Partition(comm), [1, 1, job.size, 1]), 1, 1, 1, bias=False)
    torch.nn.utils.parametrize.register_parametrization(layer, "weight", Counted(), unsafe=True)
    for _ in range(4):
        values = together(layer(torch.ones(1, 1, 2, 2))[0, 0, 0, 0].item())
        assert len({*values}) == 1


class InOtherPrecision(torch.nn.Module):
    """Two convolutions, perhaps of other dtypes."""

    def __init__(self):
        super().__init__()
        self.first, self.second = chain()[:2]

    def forward(self, x):
        return self.second(self.first(x).to(self.second.weight.dtype))


@pytest.mark.parametrize("comm", [_core.SEVERAL_HOSTS], indirect=True)
def test_a_model_that_is_converted_in_part(comm):
    torch.manual_seed(0)
    model, P = InOtherPrecision(), grid(distdl.Partition(comm), [1, 1, job.size, 1])
    ours = distdl.distribute(copy.deepcopy(model), P)
    whole = noise((1, 2, 3 * job.size, 4))
    for dtype in (torch.double, torch.float, torch.double):
        for each in (model, ours):
            each.get_submodule("second").to(dtype)
        for _ in range(3):
            y = ours(distdl.scatter(whole, P))
            assert_none([off(distdl.gather(y.detach(), P), model(whole), 1e-6)])

"""Parameters that travel together: each is used as one of torch.nn, aligned and in memory of its own."""

import pytest
import torch

import distdl
from support.blocks import grid
from support.ranks import job

P_world = distdl.Partition(job)


class Pairs(torch.nn.Module):
    """Parameters of which one is looked at as complex numbers, behind others of odd sizes."""

    def __init__(self):
        super().__init__()
        self.shift = torch.nn.Parameter(torch.linspace(-1.0, 1.0, 3).reshape(3, 1))
        self.weight = torch.nn.Parameter(torch.linspace(-2.0, 2.0, 30).reshape(3, 5, 2))

    def forward(self, x):
        y = x.unsqueeze(1) + self.shift
        return torch.view_as_real(y * torch.view_as_complex(self.weight)).sum(-1)


class Looking(torch.autograd.Function):
    """Notes how its parameters are in memory."""

    seen = []

    @staticmethod
    def forward(ctx, x, *parameters):
        if isinstance(x, torch.Tensor) and type(x) is torch.Tensor:
            Looking.seen += parameters
        return x + sum(parameter.sum() for parameter in parameters)

    @staticmethod
    def backward(ctx, gradient):
        return gradient, *[gradient.sum().expand(3, n) for n in (1, 5, 3)]


class Several(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.third = (torch.nn.Parameter(torch.ones(3, n)) for n in (1, 5, 3))

    def forward(self, x):
        return Looking.apply(x, self.first, self.second, self.third)


@pytest.mark.ranks(2, 3)
@pytest.mark.parametrize("kind", ["owner", "sharded", "replicated"])
def test_views_as_complex_numbers(kind):
    model, P_x = Pairs(), grid(P_world, [P_world.size, 1])
    whole = torch.linspace(-1.0, 1.0, 20).reshape(4, 5).requires_grad_()
    expected = model(whole)
    (expected**2).sum().backward()
    with distdl.parameter_layout(kind):
        ours = distdl.distribute(model, P_x, fallback="gather")
    y = ours(distdl.scatter(whole.detach(), P_x))
    (y**2).sum().backward()
    result, gradients = distdl.gather(y, ours.output_partition), distdl.sequential_gradients(ours)
    if job.rank == 0:
        torch.testing.assert_close(result, expected)
        for name, parameter in model.named_parameters():
            torch.testing.assert_close(gradients[name], parameter.grad)


@pytest.mark.ranks(2)
@pytest.mark.parametrize("kind", ["owner", "sharded"])
def test_alignment(kind):
    P_x = grid(P_world, [P_world.size, 1])
    with distdl.parameter_layout(kind):
        layer = distdl.nn.Local(P_x, Several())
    Looking.seen.clear()
    layer(torch.ones(2, 4))
    assert len(Looking.seen) >= 3
    for parameter in Looking.seen:
        assert parameter.is_contiguous()
        assert parameter.storage_offset() == parameter.data_ptr() % 64 == 0

"""Functions with a derivative of their own in distributed models: their rules are derived from both passes."""

import math
from types import SimpleNamespace

import pytest
import torch

import distdl
from support.distributed import assert_equal_models, noise
from support.models import Function
from support.ranks import job

P_world = distdl.Partition(job)
SPLITS = [*map(list, dict.fromkeys([(job.size, 1, 1), (1, job.size, 1), (1, 1, job.size)]))]  # one on one rank


class Straight(torch.autograd.Function):
    """Rounds, and lets the gradient pass."""

    @staticmethod
    def forward(ctx, x):
        return x.round()

    @staticmethod
    def backward(ctx, gradient):
        return gradient


class Contiguous(torch.autograd.Function):
    """A copy in the order of rows, with a size that the backward pass uses."""

    @staticmethod
    def forward(ctx, x):
        ctx.shape = x.shape
        return x.contiguous()

    @staticmethod
    def backward(ctx, gradient):
        return gradient.contiguous().view(ctx.shape)


class Swish(torch.autograd.Function):
    """Saves its input, and computes the sigmoid again."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * torch.sigmoid(x)

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        s = torch.sigmoid(x)
        return gradient * (s * (1 + x * (1 - s)))


class Exponential(torch.autograd.Function):
    """Saves its result, and writes into a copy of the gradient."""

    @staticmethod
    def forward(ctx, x):
        y = x.exp()
        ctx.save_for_backward(y)
        ctx.mark_non_differentiable(flags := x > 0)
        return y, flags

    @staticmethod
    def backward(ctx, gradient, _):
        (y,) = ctx.saved_tensors
        gradient = gradient.clone()
        gradient[y > 2] = 0
        return gradient.mul_(y)


class NormOfRows(torch.autograd.Function):
    """A norm over the middle dimension with weights, whose gradients are sums over the other dimensions."""

    @staticmethod
    def forward(ctx, x, weight, eps):
        mean = x.mean(1, keepdim=True)
        deviation = ((x - mean).pow(2).mean(1, keepdim=True) + eps).sqrt()
        y = (x - mean) / deviation
        ctx.save_for_backward(y, deviation, weight)
        return weight.view(1, -1, 1) * y

    @staticmethod
    def backward(ctx, gradient):
        y, deviation, weight = ctx.saved_tensors
        g = gradient * weight.view(1, -1, 1)
        of_x = (g - y * (g * y).mean(1, keepdim=True) - g.mean(1, keepdim=True)) / deviation
        return of_x, (gradient * y).sum(2).sum(0), None


class Scaled(torch.autograd.Function):
    """Multiplies by a learned number and by one for each column, and sums their gradients."""

    @staticmethod
    def forward(ctx, x, scale, columns):
        ctx.save_for_backward(x, scale, columns)
        return x * scale * columns

    @staticmethod
    def backward(ctx, gradient):
        x, scale, columns = ctx.saved_tensors
        return gradient * scale * columns, (gradient * x * columns).sum(), (gradient * x * scale).sum((0, 1))


class Learned(torch.nn.Module):
    """Functions that take parameters."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(noise((6,), 3))
        self.scale, self.columns = torch.nn.Parameter(noise((), 4)), torch.nn.Parameter(noise((5,), 5))

    def forward(self, x):
        return Scaled.apply(NormOfRows.apply(x, self.weight, 1e-3), self.scale, self.columns)


kept_swish = Swish.apply  # as many packages do
MODELS = {
    "straight": lambda x: Straight.apply(x * 3) * x,
    "contiguous": lambda x: Contiguous.apply(x.transpose(0, 1)) * 2,
    "called directly": lambda x: Contiguous.forward(SimpleNamespace(), x.transpose(0, 1)) * 2,
    "swish": lambda x: Swish.apply(x),
    "kept": lambda x: kept_swish(x) * torch.no_grad()(kept_swish)(x),
    "exponential": lambda x: Exponential.apply(x.sin())[0],
}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("split", SPLITS, ids=str)
def test_pointwise_functions_are_split(name, split):
    ours = assert_equal_models(Function(MODELS[name]), (4, 6, 5), split)
    assert all(math.prod(row.splits) == job.size for row in distdl.report(ours).rows)


@pytest.mark.parametrize("split", SPLITS, ids=str)
def test_functions_of_parameters(split):
    assert_equal_models(Learned().double(), (4, 6, 5), split)


class WithColumns(torch.nn.Module):
    """A function that takes a parameter for each of 5 columns."""

    def __init__(self, function):
        super().__init__()
        self.function, self.columns = function, torch.nn.Parameter(noise((5,), 3))

    def forward(self, x):
        return self.function.apply(x, self.columns)


class Shifted(torch.autograd.Function):
    """Adds numbers for each column, whose gradient is computed further after the sum over rows."""

    @staticmethod
    def forward(ctx, x, shift):
        return x - shift * 0.5

    @staticmethod
    def backward(ctx, gradient):
        return gradient, (gradient.sum((0, 1)).reshape(-1) * 0.5).neg()


@pytest.mark.mpi(min_size=2)
def test_sums_of_gradients_that_are_changed_linearly():
    """The workers' parts are changed as the sum is."""
    ours = assert_equal_models(WithColumns(Shifted).double(), (4, 6, 5), SPLITS[0])
    assert [row.splits for row in distdl.report(ours).rows] == [(job.size, 1, 1)]


class Total(torch.autograd.Function):
    """Divides by the sum of all."""

    @staticmethod
    def forward(ctx, x):
        return x / x.detach().sum()

    @staticmethod
    def backward(ctx, gradient):
        return gradient


class GradientOfAll(torch.autograd.Function):
    """Its gradient is divided by the largest of all."""

    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient / gradient.abs().max()


class BySize(torch.autograd.Function):
    """Multiplies by its size."""

    @staticmethod
    def forward(ctx, x):
        return x * x.numel()

    @staticmethod
    def backward(ctx, gradient):
        return gradient * gradient.numel()


class Outer(torch.autograd.Function):
    """Sums an outer product, whose blocks are not those of its factors."""

    @staticmethod
    def forward(ctx, x):
        return (x[:, None] * x[None]).amax(-1)

    @staticmethod
    def backward(ctx, gradient):
        return torch.stack([gradient.sum(0), gradient.sum(1)], -1)


class NoSum(torch.autograd.Function):
    """A weight whose gradient is one of a row."""

    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x)
        return x * weight

    @staticmethod
    def backward(ctx, gradient):
        return gradient, (gradient * ctx.saved_tensors[0]).sum(0).tanh()


class Squeezed(torch.autograd.Function):
    """Goes wrong in blocks of a single row."""

    @staticmethod
    def forward(ctx, x):
        return x.squeeze()

    @staticmethod
    def backward(ctx, gradient):
        return gradient


OF_ALL_ELEMENTS = {
    "total": Total.apply, "gradient": GradientOfAll.apply, "size": BySize.apply, "outer": Outer.apply,
    "squeezed": lambda x: Squeezed.apply(x),
}  # fmt: skip


@pytest.mark.parametrize("name", OF_ALL_ELEMENTS)
def test_functions_of_all_elements(name):
    """Nothing in their passes shows how they are split, so they are observed."""
    for split in ([job.size, 1], [1, job.size]):
        assert_equal_models(Function(OF_ALL_ELEMENTS[name]), (4, 2), split)


def test_dimensions_that_are_not_computed_in_blocks_are_read_whole():
    ours = assert_equal_models(WithColumns(NoSum).double(), (4, 5), [job.size, 1])
    assert [row.operation for row in distdl.report(ours).rows] == ["NoSum"]

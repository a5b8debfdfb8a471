"""Norms that models call as functions, with running statistics: what a layer of torch.nn would write, and no less."""

import pytest
import torch
import torch.nn.functional as F

import distdl
from support.blocks import grid
from support.distributed import assert_equal_models, noise, partitions
from support.ranks import job, raises_everywhere

P_world = distdl.Partition(job)
SHAPES = [(4, 3), (4, 3, 5), (2, 3, 6, 5), (2, 3, 4, 3, 2)]
IMAGE = SHAPES[2]


class Normalized(torch.nn.Module):
    """A norm by a function, with buffers under names of its own, behind a layer and before another function."""

    def __init__(self, function, affine=True, calls=1, **options):
        super().__init__()
        self.function, self.options, self.calls = function, options, calls
        self.first = torch.nn.Linear(1, 1)
        torch.nn.init.constant_(self.first.weight, 0.7)  # a norm divides rounding by it
        self.scale = torch.nn.Parameter(torch.tensor([0.5, -1.5, 2.0])) if affine else None
        self.shift = torch.nn.Parameter(torch.tensor([0.1, 0.2, -0.3])) if affine else None
        self.register_buffer("center", torch.tensor([0.3, 0.0, -0.2]))
        self.register_buffer("spread", torch.tensor([1.0, 2.0, 0.5]))

    def norm(self, x):
        scale = None if self.scale is None else 1 + self.scale  # computed, as weights that are standardized
        return self.function(x, self.center, self.spread, scale, self.shift, self.training, **self.options)

    def forward(self, x):
        x = self.first(x.unsqueeze(-1)).squeeze(-1)
        for _ in range(self.calls):
            x = self.norm(x)
        return torch.tanh(x)


class BatchNormAct(torch.nn.BatchNorm2d):
    """A layer of torch.nn with a forward() of its own, which counts its batches: as those of collections of models."""

    def forward(self, x):
        if self.training:
            self.num_batches_tracked.add_(1)
        return F.relu(
            F.batch_norm(
                x, self.running_mean, self.running_var, self.weight, self.bias, self.training, self.momentum, self.eps
            )
        )


@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
@pytest.mark.parametrize("affine", [True, False], ids=["affine", "plain"])
@pytest.mark.parametrize(
    ("function", "shape"),
    [*((F.batch_norm, shape) for shape in SHAPES), *((F.instance_norm, shape) for shape in SHAPES[1:])],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_functions_with_running_statistics(function, shape, affine, training):
    for split in partitions(len(shape)):
        assert_equal_models(Normalized(function, affine, momentum=0.3, eps=1e-3).double(), shape, split, training)


def test_statistics_that_are_written_twice():
    for split in partitions(4):
        assert_equal_models(Normalized(F.batch_norm, calls=2).double(), IMAGE, split)


def test_a_weight_alone():
    model = Normalized(F.batch_norm).double()
    model.shift = None
    for split in partitions(4):
        assert_equal_models(model, IMAGE, split)


def test_a_layer_with_a_forward_of_its_own():
    model = torch.nn.Sequential(torch.nn.Conv2d(2, 3, 3), BatchNormAct(3), torch.nn.Conv2d(3, 2, 3)).double()
    for split in partitions(4):
        assert_equal_models(model, (2, 2, 9, 7), split)  # the number of batches, too


class Moved(Normalized):
    """Writes into the statistics before the norm does."""

    def norm(self, x):
        with torch.no_grad():
            self.center.mul_(0.5)
        return super().norm(x)


class Held(Normalized):
    """Its statistics are no buffers."""

    def __init__(self):
        super().__init__(F.batch_norm)
        center = self.center
        del self.center
        self.center = center


@pytest.mark.parametrize(
    ("make", "rule"),
    [(lambda: Moved(F.batch_norm), "written into before"), (Held, "no buffer of the model")],
    ids=["written", "held"],
)
def test_refused_on_all_ranks(make, rule):
    split = grid(P_world, [1, 1, P_world.size, 1])
    model = distdl.distribute(make().double(), split)
    x = distdl.scatter(noise(IMAGE), split)
    raises_everywhere(NotImplementedError, f"running_mean of BatchNorm2d.* {rule}", lambda: model(x))

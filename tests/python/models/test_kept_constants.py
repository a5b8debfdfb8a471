"""Models that keep tables from their first call for later calls."""

import pytest
import torch

import distdl
from support.blocks import grid
from support.distributed import assert_equal_models, noise
from support.ranks import job

P_world = distdl.Partition(job)


class WithCoordinates(torch.nn.Module):
    """Appends the coordinates, which it keeps with the size for which they are."""

    grids = size = None

    def forward(self, x):
        if self.grids is None or self.size != x.shape[2:]:
            self.size = x.shape[2:]
            lines = torch.meshgrid([torch.linspace(0, 1, n + 1, dtype=x.dtype)[:-1] for n in self.size], indexing="ij")
            self.grids = [line[None, None].contiguous() for line in lines]
            self.grids[0][..., 0] = 2.0
        return torch.cat((x, *(line.repeat(x.shape[0], 1, 1, 1) for line in self.grids)), 1).sin()


@pytest.mark.parametrize("split", [*map(list, dict.fromkeys([(1, 1, job.size, 1), (job.size, 1, 1, 1)]))], ids=str)
def test_tables_of_constants_are_kept(split):
    ours = assert_equal_models(WithCoordinates(), (4, 2, 6, 5), split)
    P_x = grid(P_world, split)
    for shape in ((4, 2, 6, 5), (4, 2, 8, 4), (4, 2, 6, 5)):
        y = distdl.gather(ours(distdl.scatter(noise(shape), P_x)), ours.output_partition)
        assert job.rank or torch.equal(y, WithCoordinates()(noise(shape)))


class WithGain(torch.nn.Module):
    """Keeps numbers and tensors in attributes of a parameter and of a buffer."""

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(5, 5)
        self.linear.weight.gain = 3.0
        self.register_buffer("scale", torch.full((5,), 2.0))
        self.scale.shift = torch.linspace(0.0, 1.0, 5)

    def forward(self, x):
        return self.linear(x) * getattr(self.linear.weight, "gain", 1.0) * self.scale + self.scale.shift


def test_attributes_of_parameters_count():
    model, P_x = WithGain(), grid(P_world, [job.size, 1, 1])
    whole = noise((4, 6, 5)).float()
    ours = distdl.distribute(model, P_x)
    y = distdl.gather(ours(distdl.scatter(whole, P_x)), P_x)
    if job.rank == 0:
        torch.testing.assert_close(y, model(whole), rtol=1e-5, atol=1e-5)

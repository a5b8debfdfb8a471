"""Models that write into tensors of their call."""

import pytest
import torch

import distdl
from support.blocks import grid
from support.distributed import P_world, assert_none, noise, off, partitions
from support.ranks import job


class Writer(torch.nn.Module):
    """A convolution, and a function that writes into the tensors of the call."""

    def __init__(self, function):
        super().__init__()
        self.conv, self.function = torch.nn.Conv2d(3, 3, 3, padding=1), function

    def forward(self, x, cache):
        return self.function(self.conv, x, cache)


def activated(conv, x, cache):
    return conv(x.relu_()) + cache


def partly(conv, x, cache):
    y = conv(x)
    x[:, 1] = y[:, 0].detach()
    return y.sum(1)


def moved(conv, x, cache):
    cache[:, :, 2:] = x[:, :, 1:-1] * 2
    cache.mul_(3)
    return conv(x) + cache


def returned(conv, x, cache):
    x.add_(conv.bias.detach()[None, :, None, None])
    return x, cache.zero_()


class Held:
    """Holds a tensor, and cannot be copied with it."""

    def __init__(self, tensor):
        self.tensor = tensor

    def __deepcopy__(self, memo):
        raise TypeError("Held cannot be copied")


@pytest.mark.parametrize("function", [activated, partly, moved, returned])
@pytest.mark.parametrize("records", [True, False])
@pytest.mark.parametrize("holds", [False, True])
def test_the_callers_blocks_are_written(function, records, holds):
    model = Writer((lambda conv, x, held: function(conv, x, held.tensor)) if holds else function).double()
    P_x = grid(P_world, partitions(4)[-1])
    ours = distdl.distribute(model, P_x)
    for seed in range(2):
        wholes = [noise((2, 3, 6, 7), seed=seed), noise((2, 3, 6, 7), seed=seed + 2)]
        blocks = [distdl.scatter(each, P_x) for each in wholes]
        with torch.set_grad_enabled(records):
            ours(blocks[0], Held(blocks[1]) if holds else blocks[1])
            model(wholes[0], Held(wholes[1]) if holds else wholes[1])
        assert_none([off(distdl.gather(ours, P_x), one) for ours, one in zip(blocks, wholes, strict=True)])


def test_a_block_that_asks_for_gradients_stays_as_it_is():
    P_x = grid(P_world, [job.size, 1])
    ours, whole = distdl.distribute(torch.nn.ReLU(inplace=True), P_x), noise((5, 6))
    block = distdl.scatter(whole, P_x).requires_grad_()
    y = ours(block)
    assert_none([off(distdl.gather(y, P_x), whole.relu()), off(distdl.gather(block.detach(), P_x), whole)])

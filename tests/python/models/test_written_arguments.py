"""Models that write into tensors of their call."""

import copy
from collections import deque

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import distdl
from support.blocks import grid
from support.distributed import P_world, assert_none, noise, off, partitions
from support.ranks import job, raises_everywhere


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


def counted(conv, x, cache):
    cache.add_(1)
    return conv(x) * cache.sum()


def test_a_tensor_that_all_ranks_have_is_written_on_all():
    P_x = grid(P_world, partitions(4)[-1])
    ours, count = distdl.distribute(Writer(counted).double(), P_x), torch.zeros(2)
    for _ in range(3):
        ours(distdl.scatter(noise((2, 3, 6, 7)), P_x), count)
    assert_none([off(count, torch.full((2,), 3.0))])


def recomputed(conv, x, cache):
    def inner(y):
        cache.copy_(y.detach() * 2)
        return conv(y) + cache

    return checkpoint(inner, x, use_reentrant=False)


def test_what_is_written_in_a_checkpoint_is_computed_again():
    model, P_x = Writer(recomputed).double(), grid(P_world, partitions(4)[-1])
    ours, expected = distdl.distribute(copy.deepcopy(model), P_x), noise((2, 3, 6, 7), seed=1)
    block = distdl.scatter(expected, P_x)
    ours(distdl.scatter(noise((2, 3, 6, 7)), P_x), block).square().sum().backward()
    model(noise((2, 3, 6, 7)), expected).square().sum().backward()
    gradients = distdl.sequential_gradients(ours)
    problems = [off(distdl.gather(block, P_x), expected)]
    problems += [off(gradients[name], p.grad) if job.rank == 0 else "" for name, p in model.named_parameters()]
    assert_none(problems)


def appended(conv, x, cache):
    cache.append(x)
    return conv(x)


@pytest.mark.parametrize(
    ("function", "message"), [(activated, "shares memory"), (appended, "changes an argument, a deque")]
)
def test_what_would_be_lost_is_refused(function, message):
    P_x = grid(P_world, [job.size, 1, 1, 1])
    ours, block = distdl.distribute(Writer(function).double(), P_x), distdl.scatter(noise((job.size, 3, 6, 7)), P_x)
    other = deque() if function is appended else block
    raises_everywhere(NotImplementedError, message, lambda: ours(block, other), seconds=20.0)

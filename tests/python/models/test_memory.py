"""In which order recorded values are in memory: random numbers of one process fill them in this order."""

import pytest
import torch
import torch.nn.functional as F
from torch.utils._pytree import tree_leaves

import distdl
from distdl.models.capture.memory_order import InMemory, order_of, strides_in
from distdl.models.capture.skeleton import Skeleton
from distdl.models.rules.applied_layer import key_of_layer
from support.blocks import grid
from support.models import Function
from support.ranks import job
from support.rules import CASES

P_world = distdl.Partition(job)


def plain(x):
    return x


def one_sample(x):
    """A batch of a single sample in channels-last, but for the stride of the batch, which no element depends on."""
    return x[:1].flatten(2).transpose(1, 2).contiguous().transpose(1, 2).view(1, *x.shape[1:])


FORMS = {
    "contiguous": (lambda n: [*range(n)], plain),
    "channels-last": (lambda n: [0, *range(2, n), 1], plain),
    "transposed": (lambda n: [*range(n)][::-1], plain),
    "one sample": (lambda n: [*range(n)], one_sample),
}


def in_order(shape, order, seed=9):
    x = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return torch.empty_strided(shape, strides_in(order, shape), dtype=x.dtype).copy_(x)


def strides_of(results):
    return [leaf.stride() if isinstance(leaf, torch.Tensor) else leaf.strides for leaf in tree_leaves(results)
            if hasattr(leaf, "dtype")]  # fmt: skip


def outcome(call):
    """The strides of the results of a call, or "raises"."""
    try:
        return strides_of(call())
    except (RuntimeError, ValueError, IndexError, TypeError, AssertionError):  # without values, torch raises others
        return "raises"


def recorded(model, whole, order):
    arguments = ((whole,), {}), [(tuple(whole.shape), whole.dtype)]
    return Skeleton(model).record(*arguments, key_of_layer, InMemory([order], [True], True)).results


def misrecorded(function, shape, order, form):
    """The problem with the strides of the results; "" if none."""
    make = function if function.__name__ == "made" else lambda: Function(function)
    sequence = lambda: Function(lambda model, x: model(form(x)), make())  # noqa: E731
    whole = in_order(shape, order)
    expected = outcome(lambda: sequence()(whole.clone().requires_grad_().clone()))
    strides = outcome(lambda: recorded(sequence(), whole, order))
    return "" if expected in ("raises", strides) else f"{strides}, not {expected}"


@pytest.mark.ranks(1)
@pytest.mark.filterwarnings("ignore:.*weight_norm:FutureWarning", "ignore:.*non-contiguous:UserWarning")
@pytest.mark.drawn(6)
@pytest.mark.parametrize("part", range(4))
@pytest.mark.parametrize("name", FORMS)
def test_strides_of_functions(name, part):
    order_for, form = FORMS[name]
    problems = {}
    for case, (function, shape) in [*CASES.items()][part::4]:
        if len(shape) > 2:
            text = misrecorded(function, shape, order_for(len(shape)), form)
            problems.update({case: text} if text else {})
    assert not problems, problems


class Permuted(torch.nn.Module):
    def __init__(self, last):
        super().__init__()
        self.linear, self.last = torch.nn.Linear(8, 8), last

    def forward(self, x):
        return F.dropout(self.last(self.linear(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)), 0.5)


class Tokens(torch.nn.Module):
    """As segmentation networks make an image of tokens again."""

    def __init__(self):
        super().__init__()
        self.linear, self.conv = torch.nn.Linear(8, 8), torch.nn.Conv2d(8, 8, 3, padding=1)

    def forward(self, x):
        tokens = self.linear(x.view(*x.shape[:2], -1).transpose(1, 2).contiguous())
        return F.dropout(self.conv(tokens.transpose(1, 2).view(x.shape)), 0.5)


MODELS = {
    "group norm": lambda: Permuted(torch.nn.GroupNorm(4, 8)),
    "batch norm": lambda: Permuted(torch.nn.BatchNorm2d(8)),
    "tokens": Tokens,
    "dropout": lambda: torch.nn.Dropout(0.5),
}


@pytest.mark.ranks(2)
@pytest.mark.parametrize("samples", [1, 2])
@pytest.mark.parametrize("name", MODELS)
def test_dropout_in_the_order_of_memory(name, samples):
    for order in ([0, 1, 2, 3], [0, 2, 3, 1]) if name != "tokens" else ([0, 1, 2, 3],):
        whole = in_order((samples, 8, 4, 6), order)
        torch.manual_seed(3)
        model = MODELS[name]().double()
        expected = model(whole)
        after = torch.rand(())
        for split in ([1, 1, 2, 1], [1, 2, 1, 1]):
            P_x = grid(P_world, split)
            torch.manual_seed(3)
            model = MODELS[name]().double()
            ours = distdl.distribute(model, P_x, as_sequential=True)
            block = distdl.scatter(whole, P_x)
            y = ours(in_order(block.shape, order).copy_(block))
            assert torch.rand(()) == after
            result = distdl.gather(y, ours.output_partition)
            if job.rank == 0:
                torch.testing.assert_close(result, expected, rtol=1e-11, atol=1e-12)


@pytest.mark.ranks(2)
def test_inputs_in_another_order_are_noticed():
    P_x = grid(P_world, [1, 1, 2, 1])
    ours = distdl.distribute(torch.nn.Dropout(0.5), P_x, as_sequential=True)
    for order in ([0, 1, 2, 3], [0, 2, 3, 1], [3, 2, 1, 0]):
        whole = in_order((2, 4, 6, 5), order)
        torch.manual_seed(4)
        expected = F.dropout(whole, 0.5)
        torch.manual_seed(4)
        block = distdl.scatter(whole, P_x)
        result = distdl.gather(ours(in_order(block.shape, order).copy_(block)), P_x)
        if job.rank == 0:
            assert torch.equal(result, expected)


def test_orders():
    x = torch.zeros(2, 3, 4, 5)
    for order in ([0, 1, 2, 3], [0, 2, 3, 1], [3, 1, 0, 2]):
        assert order_of(in_order((2, 3, 4, 5), order)) == order
        assert in_order((2, 3, 4, 5), order)[:, :, 1:2].stride() == in_order((2, 3, 4, 5), order).stride()
    assert order_of(x[:, :1].expand(2, 3, 4, 5)) == [0, 1, 2, 3]

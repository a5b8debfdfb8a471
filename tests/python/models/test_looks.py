"""Models that look at values, with ``values="agree"``: the values of each call decide, on all ranks alike."""

import copy
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

import distdl
from support.blocks import grid
from support.ranks import job, raises_everywhere

pytestmark = pytest.mark.ranks(1, 2, 3)


def assert_equal(P_world, model, inputs, workers=None, seed=None, **options):
    """Calls with several inputs have the results and gradients of one process; returns the distributed model."""
    P_x = grid(P_world, [1, workers or job.size])
    sequential = copy.deepcopy(model)
    ours = distdl.distribute(model, P_x, values="agree", **options)
    for x in inputs:
        whole = x.clone().requires_grad_()
        if seed is not None:
            torch.manual_seed(seed)
        expected = sequential(whole)
        if seed is not None:
            torch.manual_seed(seed)
        block = distdl.scatter(x if job.rank == 0 else None, P_x).requires_grad_()
        y = ours(block)
        for loss in (y.sum(), expected.sum()):
            if loss.requires_grad:
                loss.backward()
        result = distdl.gather(y, ours.output_partition)
        gradient = None if block.grad is None and job.size == 1 else distdl.gather(block.grad, P_x)
        if job.rank == 0:
            assert torch.allclose(result, expected, rtol=1e-13, atol=1e-13)
            if gradient is not None:
                assert torch.allclose(gradient, whole.grad, rtol=1e-13, atol=1e-13)
    return sequential, ours


def numbers(*factors):
    x = torch.arange(-9.0, 15.0, dtype=torch.double).reshape(4, 6).sin()
    return [x * factor for factor in factors]


def choosing(x):
    return x.exp() if x.abs().max() > 1 else x * 3


def counting(x):
    n = int((x > 0).sum())
    return x * n + torch.arange(n).sum()


def with_items(x):
    y = x - x.min().item() if (x > 2).any().item() else x
    return y * max((x > 0).sum(1).tolist())


def looping(x):
    while x.norm() > 1:
        x = x / 2
    return x


def slicing(x):
    k = (x[0] > 0).sum()
    return x[:, :k].sin() + x[:, :k].mean()


def selecting(x):
    rows = x[:, 0].nonzero()[:, 0]
    return (x[rows] * 2).sum(1, keepdim=True) + x[x > 0].sort().values


def masking(x):
    return torch.masked_select(x.sin(), x[:, :1] > 0).view(torch.tensor(6), -1).cumsum(0)


def visiting(x):
    for row in (x.abs().sum(1) > 3).nonzero():
        i = row[0]
        x = x.index_add(0, row, x[i].exp()[None] * x[i, int(i)])
    return x


def reshaping(x):
    n = torch.div((x[0] > 9).sum() + 2, 1, rounding_mode="trunc")
    return x.view(n, -1) * x.repeat_interleave((x[:, 0] > 0).long() + 1, 0).sum()


def indexing(x):
    i = x.abs().sum(0).argmax()
    y = x.clone()
    y[0, i] = 2.0
    return y[:, i].exp() + x.select(1, i) + x[:, x[0] > 0].sum(1) + x.new_zeros((x[0] > 0).sum()).sum()


def changing(x):
    counts = (x > 0).sum(1).tolist()
    signs = x.detach().sign().sum(1).numpy()
    signs -= 1
    return x * counts.pop() + sum(counts) + x * float(signs[0])


def comparing(x):
    return x.abs() if torch.equal(x, x.abs()) or torch.allclose(x, x * 0) else -x


FUNCTIONS = (
    choosing, counting, with_items, looping, slicing, selecting, masking, visiting, reshaping, indexing, changing,
    comparing,
)  # fmt: skip


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda each: each.__name__)
def test_the_values_of_each_call_decide(P_world, function):
    assert_equal(P_world, function, numbers(1, 5, -3, 1, 0.1))


def test_a_call_without_random_numbers_takes_none(P_world):
    P_x = grid(P_world, [1, job.size])
    ours = distdl.distribute(lambda x: F.dropout(x) if x.max() > 2 else x * 1, P_x, values="agree")
    small, large = (distdl.scatter(x, P_x) for x in numbers(1, 9))
    for x in (large, small, large):
        torch.manual_seed(5)
        ours(x)
        drawn = torch.rand(1)
        torch.manual_seed(5)
        assert torch.equal(drawn, torch.rand(1)) == (x is small)


def asserting(x):
    assert x.max() < 2, "too large"
    return x


def test_exceptions_of_torch_and_python_keep_their_types(P_world):
    P_x = grid(P_world, [1, job.size])
    ours = distdl.distribute(asserting, P_x, values="agree")
    large = distdl.scatter(numbers(9)[0], P_x)
    raises_everywhere(AssertionError, "too large", lambda: ours(large))


def test_the_exception_of_a_hook_is_raised_after_another_outcome(P_world):
    P_x = grid(P_world, [1, job.size])
    ours = distdl.distribute(Layers().eval(), P_x, values="agree")
    good, other = (distdl.scatter(x, P_x) for x in numbers(1, float("nan")))
    ours(good)
    calls = []

    def failing(module, args, result):
        calls.append(result)
        if len(calls) == 1:
            raise ArithmeticError("once")

    ours.linear.register_forward_hook(failing)
    with pytest.raises(ArithmeticError, match="once"):
        ours(other)


class Layers(torch.nn.Module):
    """Looks in each of several layers, of which some write buffers, before a look that decides."""

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(6, 6, dtype=torch.double)
        self.norm = torch.nn.BatchNorm1d(6, dtype=torch.double)
        self.register_buffer("calls", torch.zeros(()))
        self.recorded = 0

    def layer(self, x):
        x = self.norm(self.linear(x))
        return x if torch.isfinite(x).all() else x.nan_to_num()

    def forward(self, x):
        self.calls += 1
        for _ in range(4):
            x = self.layer(x)
        x = checkpoint(self.layer, x, use_reentrant=False)
        return self.norm(x) if x[0, 0] > 0 else self.linear(x)


def test_layers_compute_once_what_they_write(P_world):
    torch.manual_seed(3)
    inputs = [torch.randn(4, 6, dtype=torch.double) for _ in range(4)]
    sequential, ours = assert_equal(P_world, Layers(), inputs)
    assert ours.calls == 4
    for (name, buffer), own in zip(sequential.named_buffers(), ours.buffers(), strict=True):
        assert torch.allclose(buffer, own), name
    with torch.no_grad():
        first = ours.program
        ours.eval()(distdl.scatter(inputs[0], grid(P_world, [1, job.size])))
    assert ours.program is not first


def only_looking(x):
    return checkpoint(choosing_finite, x * 2, use_reentrant=False)


def choosing_finite(x):
    return x if torch.isfinite(x).all() else x.nan_to_num()


def test_checkpoints_that_look(P_world):
    assert_equal(P_world, only_looking, numbers(1, 5))
    assert_equal(P_world, only_looking, numbers(1, 5), workers=max(1, job.size - 1))


def test_checkpoints_around_a_model_that_looks(P_world):
    torch.manual_seed(3)
    model = Layers()
    sequential, P_x = copy.deepcopy(model), grid(P_world, [1, job.size])
    ours = distdl.distribute(model, P_x, values="agree")
    for x in numbers(1, -2, 0.5):
        checkpoint(sequential, x, use_reentrant=False).sum().backward()
        checkpoint(ours, distdl.scatter(x, P_x), use_reentrant=False).sum().backward()
    gradients = distdl.sequential_gradients(ours)
    if job.rank == 0:
        for name, parameter in sequential.named_parameters():
            assert torch.allclose(gradients[name], parameter.grad), name


def test_other_outcomes_leave_buffers_of_evaluation_alone(P_world):
    torch.manual_seed(3)
    P_x = grid(P_world, [1, job.size])
    ours = distdl.distribute(Layers().eval(), P_x, values="agree")
    losses = [ours(distdl.scatter(x, P_x)).sum() for x in numbers(1, -1, 1, -1)]
    sum(losses).backward()
    assert all(parameter.grad is not None for parameter in ours.linear.parameters())


def drawing(x):
    x = torch.nn.functional.dropout(x, 0.5)
    return torch.nn.functional.dropout(x, 0.5) if x.sum() > 0 else x


def test_random_numbers_are_those_of_one_process(P_world):
    for seed in range(4):
        assert_equal(P_world, drawing, numbers(1, 1, -1), seed=seed, as_sequential=True)


def test_ranks_outside_of_the_partition_agree(P_world):
    assert_equal(P_world, choosing, numbers(1, 5), workers=max(1, job.size - 1))


def raising(x):
    if torch.isnan(x).any():
        raise ValueError("values that are no numbers")
    return x * 2


def test_a_branch_may_raise(P_world):
    P_x = grid(P_world, [1, job.size])
    ours = distdl.distribute(raising, P_x, values="agree")
    good = distdl.scatter(numbers(1)[0], P_x)
    bad = good * float("nan") if job.rank == job.size - 1 else good
    assert torch.equal(ours(good), good * 2)
    raises_everywhere(ValueError, "values that are no numbers", lambda: ours(bad))
    assert torch.equal(ours(good), good * 2)


def test_hooks_see_a_call_with_known_outcomes_once(P_world):
    P_x = grid(P_world, [1, job.size])
    ours = distdl.distribute(Layers(), P_x, values="agree")
    seen = []
    ours.linear.register_forward_hook(lambda module, args, result: seen.append(result))
    x = distdl.scatter(numbers(1)[0], P_x)
    ours(x)
    first = len(seen)
    ours(x)
    assert len(seen) == first + 5 + (1 if ours.program.looks[-1].outcome is False else 0)


def scaled(x):
    return x / float(x.abs().max().detach())


def test_many_outcomes_are_warned_of(P_world):
    P_x = grid(P_world, [1, job.size])
    ours = distdl.distribute(scaled, P_x, values="agree")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for factor in range(1, 18):
            ours(distdl.scatter(numbers(factor)[0], P_x))
    assert ["16 outcomes" in str(each.message) for each in caught] == [True]


def test_values_are_not_looked_at_without_asking(P_world):
    P_x = grid(P_world, [1, job.size])
    ours = distdl.distribute(choosing, P_x)
    x = distdl.scatter(numbers(1)[0], P_x)
    raises_everywhere(NotImplementedError, 'values="agree"', lambda: ours(x))

"""Values that depend on no input: a model looks at them, indexes with them, and keeps tables of them."""

import functools

import pytest
import torch

import distdl
from support.blocks import grid
from support.models import Function
from support.ranks import job, raises_everywhere

pytestmark = pytest.mark.ranks(1, 2, 3)


def assert_equal(P_world, model, x, calls=1, of_first_rank=False):
    """The model has the same results and gradients of its input; of_first_rank has called it before."""
    if of_first_rank and job.rank == 0:
        model(x)
    P_x = grid(P_world, [1, job.size])
    ours = distdl.distribute(model, P_x)
    for _ in range(calls):
        block = distdl.scatter(x, P_x).requires_grad_()
        results = distdl.gather(ours(block), ours.output_partition)
        sum(y.sum() for y in results).backward()
        gradient = distdl.gather(block.grad, P_x)
        if job.rank == 0:
            whole = x.clone().requires_grad_()
            expected = model(whole)
            sum(y.sum() for y in expected).backward()
            for y, other in zip((*results, gradient), (*expected, whole.grad), strict=True):
                assert torch.allclose(y, other)


def choosing(x):
    latitudes = torch.linspace(0, 90, 5)
    if not bool(torch.all(latitudes <= 90)) or (torch.arange(3) > 3).any().item():
        x = x * 2
    lengths = torch.tensor([x.shape[1]] * 2)
    assert lengths.max().item() <= 6
    return (x * int((torch.arange(6) % 2 == 0).sum()) + torch.arange(lengths[0]),)


def of_every_second(x):
    mask = torch.arange(x.shape[1]) % 2 == 0
    y = x[:, mask].cumsum(1)
    x = x.clone()
    x[:, mask] = y * 3
    return x, torch.masked_select(x, mask), x[0][mask.nonzero().flatten()]


def repeated(x):
    repeats = torch.arange(6) % 3
    return (torch.repeat_interleave(x, repeats, dim=1),)


def written(x):
    mask = torch.zeros(6, dtype=torch.bool)
    mask[1:3] = True
    mask.logical_not_()
    return x[:, mask], x * mask.tolist()[0]


def shaped(x):
    mask = torch.zeros_like(x)
    mask[:, 0] = 1
    return (x[mask > 0] if mask.flatten().any().item() else 2 * x,)


def batched(x):
    places = torch.arange(6)
    mask = torch.vmap(torch.vmap(lambda i, j: i <= j, (None, 0)), (0, None))(places, places)
    return (x @ mask.to(x.dtype),)


@pytest.mark.parametrize("function", [choosing, of_every_second, repeated, written, shaped, batched])
def test_known_values(P_world, function):
    assert_equal(P_world, Function(function), torch.rand(2, 6))


def test_unknown_values_are_refused(P_world):
    def at_random(x):
        return x * 2 if torch.rand(()) < 0.5 else x

    def by_values(x):
        return x if (x > 0).any() else 2 * x

    for function in (at_random, by_values):
        ours = distdl.distribute(Function(function), grid(P_world, [1, job.size]))
        call = functools.partial(ours, distdl.scatter(torch.rand(2, 6), ours.P_x))
        raises_everywhere(NotImplementedError, r"bool looks at .*test_known_values.py.*torch.where", call)


def table_of(scale):
    @functools.lru_cache(maxsize=4)
    def table(n):
        rows = torch.arange(n).float()
        return rows[:, None] * scale

    return table


@pytest.mark.parametrize("of_first_rank", [False, True])
def test_tables_that_a_function_keeps(P_world, of_first_rank):
    table = table_of(1.5)
    assert_equal(P_world, Function(lambda x: (x @ table(6),)), torch.rand(2, 6), 2, of_first_rank)
    assert torch.equal(table(6), torch.arange(6.0)[:, None] * 1.5)


class WithCache(torch.nn.Module):
    """A module that makes a buffer anew where it is too short."""

    def __init__(self):
        super().__init__()
        self.register_buffer("slopes", None, persistent=False)

    def forward(self, x):
        if self.slopes is None or len(self.slopes) < x.shape[1]:
            self.register_buffer("slopes", -0.5 * torch.arange(x.shape[1]), persistent=False)
        return (x + self.slopes[: x.shape[1]],)


@pytest.mark.parametrize("of_first_rank", [False, True])
def test_buffers_that_a_call_makes_anew(P_world, of_first_rank):
    model = WithCache()
    assert_equal(P_world, model, torch.rand(2, 6), calls=2)
    assert_equal(P_world, model, torch.rand(2, 8), calls=2)


def test_inputs_may_be_asked_for_gradients(P_world):
    def asking(x):
        x = x[:, None]
        if not x.requires_grad:
            x.requires_grad = True
        x.requires_grad_()
        return (x * x,)

    assert_equal(P_world, Function(asking), torch.rand(2, 6))


class Rotary(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.kinds = torch.nn.ParameterDict({"full": torch.rand(6), "sliding": torch.rand(6)})

    def forward(self, x, positions, kind):
        return (positions.float() * self.kinds[kind]).cos().to(x.dtype)


class InAnyOrder(torch.nn.Module):
    """A model that goes through a set, in another order on each rank."""

    def __init__(self):
        super().__init__()
        self.rotary, self.dropout = Rotary(), torch.nn.Dropout(0.5)

    def forward(self, x):
        positions = torch.arange(6)[None]
        kinds = ["full", "sliding"][:: -1 if job.rank % 2 else 1]
        tables = {kind: self.rotary(x, positions, kind) for kind in kinds}
        x = self.dropout(x * tables["full"])
        return self.dropout(x + tables["sliding"])


def test_calls_in_another_order_on_each_rank(P_world):
    torch.manual_seed(0)
    model, x = InAnyOrder(), torch.rand(2, 6)
    ours = distdl.distribute(model, grid(P_world, [1, job.size]), as_sequential=True)
    seen = []
    ours.rotary.register_forward_hook(lambda module, inputs, y: seen.append(tuple(y.shape)))
    torch.manual_seed(1)
    y = distdl.gather(ours(distdl.scatter(x, ours.P_x)), ours.output_partition)
    assert len(seen) == 2
    y.sum().backward()
    gradients = distdl.sequential_gradients(ours)
    if job.rank == 0:
        torch.manual_seed(1)
        expected = model(x)
        expected.sum().backward()
        assert torch.allclose(y, expected)
        assert all(torch.allclose(gradients[name], own.grad) for name, own in model.named_parameters())


# Buffers


class ByBuffers(torch.nn.Module):
    """Looks at buffers: selects by a mask, as the Well's ReFNO does, and chooses by a number and in a text."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mask", torch.tensor([True, False, True, True, False, False]))
        self.register_buffer("times", torch.tensor(2))
        self.scale = torch.nn.Parameter(torch.tensor(0.5))

    def forward(self, x):
        y = torch.masked_select(x, self.mask[None]).reshape(x.shape[0], self.mask.sum())
        for _ in range(self.times):
            y = y.cumsum(1) * self.scale
        x = x.clone()
        x[:, self.mask] = y
        return (x if bool(self.mask.any()) and "2" in f"{self.times}" else 2 * x,)


def test_buffers_decide_until_they_are_written(P_world):
    torch.manual_seed(0)
    model, x = ByBuffers(), torch.rand(2, 6)
    P_x = grid(P_world, [1, job.size])
    ours = distdl.distribute(model, P_x)
    for times, rolled in ((2, 0), (3, 1), (2, 1)):
        for each in (model, ours.module):
            each.times.fill_(times)
            each.mask.copy_(ByBuffers().mask.roll(rolled))
        (result,) = distdl.gather(ours(distdl.scatter(x, P_x)), ours.output_partition)
        if job.rank == 0:
            assert torch.allclose(result, model(x)[0])


class ByItsParameter(ByBuffers):
    """Looks at a parameter."""

    def forward(self, x):
        return x if self.scale > self.times else 2 * x


class ByItsInput(ByBuffers):
    """Selects by an input."""

    def forward(self, x):
        return x[x[0] > self.times].reshape(-1)


class ByChance(ByBuffers):
    """Draws random numbers like a buffer."""

    def forward(self, x):
        return x if torch.rand_like(self.times, dtype=torch.float) > 0.5 else 2 * x


@pytest.mark.parametrize("kind", [ByItsParameter, ByItsInput, ByChance])
def test_other_values_beside_buffers_are_refused(P_world, kind):
    P_x = grid(P_world, [1, job.size])
    ours = distdl.distribute(kind(), P_x)
    x = distdl.scatter(torch.rand(6, 6), P_x)
    raises_everywhere(NotImplementedError, 'values="agree"', lambda: ours(x), seconds=20.0)

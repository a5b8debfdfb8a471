"""Random numbers in models that distdl.distribute has split: as in one process, or the same on every partition."""

import pytest
import torch
import torch.nn.functional as F

import distdl
from support.blocks import grid
from support.models import Function
from support.ranks import job, raises_everywhere, together

P_world = distdl.Partition(job)


def stochastic_depth(x):
    """As torchvision has it."""
    noise = torch.empty([x.shape[0]] + [1] * (x.dim() - 1), dtype=x.dtype, device=x.device)
    noise = noise.bernoulli_(0.7)
    noise.div_(0.7)
    return x * noise


def filled(x, records):
    """A filled tensor: its derivative becomes 0, and without gradients stays as it was."""
    y = x.sin()
    with torch.set_grad_enabled(records):
        y.uniform_()
    return y


FUNCTIONS = {
    "uniform_ of what has a derivative": lambda x: x + filled(x[..., :1], True),
    "uniform_ without gradients": lambda x: x + filled(x[:1], False),
    "dropout without gradients": lambda x: x + torch.no_grad()(F.dropout)(x[..., :1].sin(), 0.5, True, True),
    "dropout": lambda x: F.dropout(x, 0.3),
    "dropout in place": lambda x: F.dropout(x * 1.0, 0.3, True, True),
    "dropout of all": lambda x: F.dropout(x, 1.0),
    "dropout of none": lambda x: F.dropout(x, 0.0),
    "dropout1d": lambda x: F.dropout1d(x[0], 0.4),
    "dropout2d": lambda x: F.dropout2d(x, 0.4),
    "dropout3d": lambda x: F.dropout3d(x, 0.4),
    "alpha_dropout": lambda x: F.alpha_dropout(x, 0.2, True),
    "feature_alpha_dropout": lambda x: F.feature_alpha_dropout(x, 0.2, True),
    "alpha_dropout by names": lambda x: torch.alpha_dropout(x, p=0.2, train=True),
    "feature_dropout": lambda x: torch.feature_dropout(x, 0.4, True),
    "stochastic depth": stochastic_depth,
    "rand_like": lambda x: x + torch.rand_like(x),
    "rand": lambda x: x * torch.rand(x.shape[-1], dtype=torch.float64),
    "uniform_": lambda x: x * torch.empty_like(x).uniform_(2.0, 5.0),
    "randn_like": lambda x: x + 0.1 * torch.randn_like(x),
    "randn": lambda x: x + torch.randn(x.shape, dtype=torch.float64),
    "normal_": lambda x: x * torch.empty_like(x).normal_(3.0, 0.5),
    "normal": lambda x: x * torch.normal(1.0, 2.0, x.shape[-2:]),
    "exponential_": lambda x: x * torch.empty_like(x).exponential_(2.0),
    "bernoulli_": lambda x: x * torch.empty_like(x).bernoulli_(),
    "bernoulli": lambda x: x * torch.bernoulli(x.sigmoid()),
    "bernoulli of one probability": lambda x: x * torch.bernoulli(x.detach(), p=0.3),
    "bernoulli_ of probabilities": lambda x: x * torch.empty_like(x).bernoulli_(x[:, :1].sigmoid()),
    "normal of means": lambda x: x * torch.normal(x, 2.0),
    "normal of deviations": lambda x: x * torch.normal(std=x.exp(), mean=1.5),
    "normal of both": lambda x: x * torch.normal(x[..., :1], x[:, :1].exp()),
    "log_normal_": lambda x: x * torch.empty_like(x).log_normal_(0.5, std=0.3),
    "cauchy_": lambda x: x * torch.empty_like(x).cauchy_(1.0, 0.1),
    "geometric_": lambda x: x * torch.empty_like(x).geometric_(0.3),
    "random_": lambda x: x * torch.empty_like(x).random_(3, 20),
    "random_ up to": lambda x: x * torch.empty_like(x).random_(to=5),
    "multinomial": lambda x: x[0, 0] * torch.multinomial(x[:, 0, :, 0].exp(), 3)[:, :1, None],
    "multinomial of one": lambda x: torch.multinomial(x[0, 0].exp(), num_samples=1, replacement=True) * x[1, 1],
    "multinomial of a row": lambda x: x[..., torch.multinomial(torch.arange(4.0), 2)],
    "multinomial with replacement": lambda x: torch.multinomial(x[0, 0].exp(), 9, True)[:, :4] * x[1, 1],
    "gumbel_softmax": lambda x: F.gumbel_softmax(x, tau=0.7, dim=1),
    "gumbel_softmax hard": lambda x: x * F.gumbel_softmax(x, hard=True, dim=-2),
    "randint": lambda x: x * torch.randint(2, 9, x.shape),
    "randint_like": lambda x: x * torch.randint_like(x, 7),
    "randperm": lambda x: x[:, :, torch.randperm(x.shape[2])],
    "dropout of a transposed tensor": lambda x: F.dropout(x.transpose(1, 2), 0.3),
    "rand_like of a transposed tensor": lambda x: x.mT + torch.rand_like(x.mT),
    "bernoulli of a transposed tensor": lambda x: x.mT * torch.bernoulli(x.mT.sigmoid()),
    "normal_ in a part": lambda x: x * torch.zeros(5, 40, dtype=torch.float64)[:, ::10].normal_(),
    "multinomial of a transposed tensor": lambda x: torch.multinomial(x[0, 0].exp().t(), 4) * x[1, 1, :4],
    "two in a row": lambda x: F.dropout(F.dropout(x, 0.5) + torch.rand_like(x), 0.5),
    "noise before attention": lambda x: (torch.rand_like(x) @ x.mT).softmax(-1),
}
SHAPE = (3, 2, 5, 4)


def whole_result(function, split, **options):
    """The result of a distributed model, the gradient of its input, both on rank 0, and the next random number."""
    P_x = grid(P_world, split)
    ours = distdl.distribute(Function(function), P_x, **options)
    whole = torch.linspace(-1.0, 2.0, 120, dtype=torch.float64).reshape(SHAPE)
    x = distdl.scatter(whole, P_x).detach().requires_grad_()
    torch.manual_seed(5)
    y = distdl.gather(ours(x), ours.output_partition)
    (y * y.detach()).sum().backward()
    after = torch.rand(())
    return y.detach(), distdl.gather(x.grad, P_x), after


def splits():
    """On one worker, along some dimensions over all ranks, and over one less."""
    size = P_world.size
    choices = [[1, 1, 1, 1], [size, 1, 1, 1], [1, 1, 1, size], [1, 1, size - 1, 1]]
    return choices[: 4 if size > 2 else 3 if size == 2 else 1]


@pytest.mark.shared
@pytest.mark.parametrize("name", FUNCTIONS)
def test_numbers_of_one_process(name):
    function = FUNCTIONS[name]
    whole = torch.linspace(-1.0, 2.0, 120, dtype=torch.float64).reshape(SHAPE).requires_grad_()
    torch.manual_seed(5)
    expected = function(whole)
    (expected * expected.detach()).sum().backward()
    after = torch.rand(())
    for split in splits():
        y, gradient, ours_after = whole_result(function, split, as_sequential=True)
        assert ours_after == after  # on all ranks, so that their generators stay in step
        if job.rank == 0:
            torch.testing.assert_close(y, expected.detach(), rtol=1e-12, atol=1e-13)
            torch.testing.assert_close(gradient, whole.grad, rtol=1e-12, atol=1e-13)


@pytest.mark.shared
@pytest.mark.parametrize("name", FUNCTIONS)
def test_numbers_of_every_partition(name):
    first, *others = (whole_result(FUNCTIONS[name], split) for split in splits())
    for other in others:
        assert other[2] == first[2]
        for tensor, expected in zip(other[:2], first[:2], strict=True):
            if job.rank == 0:
                torch.testing.assert_close(tensor, expected, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize(
    ("function", "mean", "deviation"),
    [
        (torch.rand_like, 0.5, 12**-0.5),
        (lambda x: torch.empty_like(x).uniform_(-2.0, 4.0), 1.0, 6 / 12**0.5),
        (torch.randn_like, 0.0, 1.0),
        (lambda x: torch.empty_like(x).normal_(3.0, 0.5), 3.0, 0.5),
        (lambda x: torch.empty_like(x).exponential_(4.0), 0.25, 0.25),
        (lambda x: torch.empty_like(x).bernoulli_(0.25), 0.25, (3 / 16) ** 0.5),
        (lambda x: torch.randint_like(x, 2, 6), 3.5, (15 / 12) ** 0.5),
    ],
    ids=["rand", "uniform", "randn", "normal", "exponential", "bernoulli", "randint"],
)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16], ids=str)
def test_distributions(function, mean, deviation, dtype):
    P_x = grid(P_world, [P_world.size, 1])
    ours = distdl.distribute(Function(function), P_x)
    torch.manual_seed(0)
    y = distdl.gather(ours(distdl.scatter(torch.zeros(100, 1000, dtype=dtype), P_x)), P_x).double()
    if job.rank == 0:
        assert y.isfinite().all()
        # The mean of n numbers is off by their deviation / sqrt(n), five times of which is rare.
        assert abs(y.mean() - mean) < 5 * deviation / y.numel() ** 0.5 + 1e-3
        assert abs(y.std() - deviation) < 0.02 * deviation


def test_calls_and_operations_draw_different_numbers():
    P_x = grid(P_world, [P_world.size, 1])
    ours = distdl.distribute(Function(lambda x: (torch.rand_like(x), torch.rand_like(x))), P_x)
    x = torch.zeros(1, 3)
    first, second = ours(x), ours(x)
    pairs = first, second, (first[0], second[0])
    assert all(together(all(not torch.equal(draw, other) for draw, other in pairs)))


def test_generators_in_step_beside_ranks_without_a_part():
    P_x = grid(P_world, [1, 1])
    ours = distdl.distribute(Function(lambda x: F.dropout(x, 0.5)), P_x)
    torch.manual_seed(3)
    ours(torch.ones(1, 3) if P_x.active else distdl.zero_volume_tensor())
    assert len(set(together(float(torch.rand(()))))) == 1


def test_generators_out_of_step_are_refused():
    P_x = grid(P_world, [P_world.size, 1])
    ours = distdl.distribute(Function(lambda x: F.dropout(x, 0.5)), P_x, as_sequential=True)
    x = torch.ones(1, 3)
    torch.manual_seed(job.rank)
    if job.size > 1:
        raises_everywhere(ValueError, "generators of the ranks are in different states", lambda: ours(x), seconds=20.0)
    torch.manual_seed(1)
    assert ours(x).shape == x.shape


def test_what_cannot_be_drawn_is_refused_by_name():
    P_x = grid(P_world, [P_world.size, 1])
    x = torch.full((1, 3), 0.5)
    refused = {
        "generator of its own": lambda x: torch.rand(3, generator=torch.Generator()) * x,
        "bernoulli with a generator": lambda x: torch.bernoulli(x, generator=torch.Generator()),
        "random numbers of poisson": lambda x: 2 * torch.poisson(x),
        "sign of the input": lambda x: F.rrelu(x, training=True),
        "largest number": lambda x: x * torch.empty_like(x).random_(),
    }
    for words, function in refused.items():
        ours = distdl.distribute(Function(function), P_x)
        error = raises_everywhere(NotImplementedError, words, lambda ours=ours: ours(x), seconds=20.0)
        assert "test_drawing.py" in error
        ours = distdl.distribute(Function(function), P_x, fallback="gather", as_sequential=True)
        raises_everywhere(NotImplementedError, words, lambda ours=ours: ours(x), seconds=20.0)


@pytest.mark.shared
@pytest.mark.parametrize("need_weights", [False, True])
@pytest.mark.parametrize("training", [False, True])
def test_dropout_of_attention_as_in_one_process(need_weights, training):
    def attend(layer, x):
        y, weights = layer(x, x.sin(), x.sin(), need_weights=need_weights, attn_mask=mask)
        return y if weights is None else y * weights.sum(-1, keepdim=True).detach()

    mask = torch.ones(5, 5).triu(1).bool()
    for batch_first in (False, True):
        torch.manual_seed(1)
        layer = torch.nn.MultiheadAttention(4, 2, dropout=0.5, batch_first=batch_first, dtype=torch.float64)
        shape = (3, 5, 4) if batch_first else (5, 3, 4)
        if not batch_first and need_weights:
            continue  # their shapes do not broadcast
        for split in ([P_world.size, 1, 1], [1, P_world.size, 1], [1, 1, P_world.size]):
            model = Function(attend, layer).train(training)
            P_x = grid(P_world, split)
            ours = distdl.distribute(model, P_x, as_sequential=True)
            whole = torch.linspace(-1.0, 2.0, 60, dtype=torch.float64).reshape(shape)
            results = []
            for network in (model, ours):
                x = whole.clone() if network is model else distdl.scatter(whole, P_x).detach()
                x.requires_grad_()
                torch.manual_seed(5)
                y = network(x)
                y = y if network is model else distdl.gather(y, ours.output_partition)
                (y * y.detach()).sum().backward()
                after = torch.rand(())
                gradient = x.grad if network is model else distdl.gather(x.grad, P_x)
                results.append([y.detach(), gradient, after])
            gradients = distdl.sequential_gradients(ours)
            assert results[0][2] == results[1][2]
            if job.rank == 0:
                results[0] += [parameter.grad for parameter in layer.parameters()]
                results[1] += [gradients[name] for name, _ in model.named_parameters()]
                torch.testing.assert_close(results[1], results[0], rtol=1e-10, atol=1e-12)
            layer.zero_grad()


@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("make", [torch.nn.TransformerEncoderLayer, torch.nn.TransformerDecoderLayer])
def test_dropout_after_attention_as_in_one_process(make, batch_first):
    """It draws numbers in the order in which attention has left its result in memory."""
    torch.manual_seed(1)
    layer = make(6, 3, 8, batch_first=batch_first, dtype=torch.float64)
    whole = torch.linspace(-1.0, 2.0, 4 * 9 * 6, dtype=torch.float64).reshape(4, 9, 6)
    given = [whole, whole.cos()] if make is torch.nn.TransformerDecoderLayer else [whole]
    for split in ([P_world.size, 1, 1], [1, P_world.size, 1]):
        P_x = grid(P_world, split)
        ours = distdl.distribute(layer, P_x, as_sequential=True)
        torch.manual_seed(7)
        expected = layer(*given)
        torch.manual_seed(7)
        y = distdl.gather(ours(*(distdl.scatter(x, P_x) for x in given)), ours.output_partition)
        if job.rank == 0:
            torch.testing.assert_close(y, expected, rtol=1e-10, atol=1e-12)


class Attending(torch.nn.Module):
    """Dropout of what attention has computed, with a mask that is an input."""

    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(6, 6)

    def forward(self, x, bias):
        q = self.first(x).unflatten(-1, (2, 3)).transpose(1, 2)
        return F.dropout(F.scaled_dot_product_attention(q, q, q, attn_mask=bias[:, None])).transpose(1, 2).flatten(2)


class OfFrozenAttention(torch.nn.Module):
    """For its attention torch takes other kernels, as for what asks for no gradients."""

    def __init__(self):
        super().__init__()
        self.attention = torch.nn.MultiheadAttention(6, 2, batch_first=True).requires_grad_(False)
        self.last = torch.nn.Sequential(torch.nn.Dropout(), torch.nn.Linear(6, 6))

    def forward(self, x):
        self.attention.eval()
        return self.last(self.attention(x, x, x)[0])


ONE_CHANNEL = torch.linspace(-1.0, 1.0, 144).reshape(4, 1, 6, 6).to(memory_format=torch.channels_last)
TOKENS = torch.linspace(-1.0, 1.0, 120).reshape(4, 5, 6)
CALLS = {
    "one channel, in channels_last": (
        lambda: torch.nn.Sequential(torch.nn.Conv2d(1, 4, 3, padding=1), torch.nn.Dropout()),
        [ONE_CHANNEL],
    ),
    "a mask that is an input": (Attending, [TOKENS, TOKENS[:, :, :5].sin()]),
    "frozen attention": (OfFrozenAttention, [TOKENS]),
}


@pytest.mark.parametrize("records", [True, False])
@pytest.mark.parametrize("name", CALLS)
def test_order_in_memory_of_what_asks_for_gradients(name, records):
    make, given = CALLS[name]
    torch.manual_seed(1)
    model = make()
    P_x = grid(P_world, [P_world.size, *[1] * (given[0].dim() - 1)])
    ours = distdl.distribute(model, P_x, as_sequential=True)
    blocks = [distdl.scatter(x, P_x).to(memory_format=form_of(x)) for x in given]
    for asks in (False, True):
        inputs, own = ([x.detach().requires_grad_(asks) for x in tensors] for tensors in (given, blocks))
        with torch.set_grad_enabled(records):
            torch.manual_seed(7)
            expected = model(*inputs).detach()
            torch.manual_seed(7)
            y = distdl.gather(ours(*own).detach(), ours.output_partition)
        if job.rank == 0:
            torch.testing.assert_close(y, expected, rtol=1e-4, atol=1e-5)


def form_of(x):
    is_last = x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last)
    return torch.channels_last if is_last else torch.contiguous_format


class HooksInTheFirstCall(torch.nn.Module):
    """As models of transformers capture what modules return."""

    def __init__(self):
        super().__init__()
        self.linear, self.dropout, self.has_hook = torch.nn.Linear(4, 4, dtype=torch.float64), torch.nn.Dropout(), False

    def forward(self, x):
        if not self.has_hook:
            self.linear.register_forward_hook(lambda module, args, y: y + 1.0)
            self.has_hook = True
        return self.dropout(self.linear(x))


def test_hooks_that_the_first_call_registers(P_world):
    """The model is recorded more than once, each time without what the recording before has registered."""
    P_x = grid(P_world, [1, P_world.size, 1])
    torch.manual_seed(1)
    model = HooksInTheFirstCall()
    ours, x = distdl.distribute(model, P_x, as_sequential=True), torch.ones(2, 6, 4, dtype=torch.float64)
    for _ in range(2):
        torch.manual_seed(7)
        expected = model(x)
        torch.manual_seed(7)
        y = distdl.gather(ours(distdl.scatter(x, P_x)), ours.output_partition)
        if job.rank == 0:
            torch.testing.assert_close(y, expected, rtol=1e-10, atol=1e-12)

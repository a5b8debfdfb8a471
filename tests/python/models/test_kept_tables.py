"""Models that keep tables of parameters from an earlier call."""

import copy
from collections import OrderedDict

import pytest
import torch

import distdl
from support.blocks import grid
from support.distributed import assert_none, noise, off
from support.ranks import job, raises_everywhere

P_world = distdl.Partition(job)


class Biased(torch.nn.Module):
    """Adds biases, which it keeps in evaluation, until its mode is set again; as timm's LeViT does."""

    def __init__(self):
        super().__init__()
        self.biases = torch.nn.Parameter(noise((3, 5)))
        self.register_buffer("indices", torch.tensor([4, 0, 1, 3, 2, 1]), persistent=False)
        self.kept = {}

    def train(self, mode=True):
        super().train(mode)
        if self.kept:
            self.kept = {}
        return self

    def table(self, device):
        if self.training:
            return self.biases[:, self.indices]
        if str(device) not in self.kept:
            self.kept[str(device)] = self.biases[:, self.indices]
        return self.kept[str(device)]

    def forward(self, x):
        return (x + self.table(x.device)).tanh()


class Model(torch.nn.Module):
    """Layers around two modules with tables."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(6, 6), Biased(), torch.nn.Linear(6, 6), torch.nn.Dropout(0.0), Biased()
        ).double()

    def forward(self, x):
        return self.layers(x)


class KeepsFeatures(torch.nn.Module):
    """Keeps a table of a parameter and a buffer, for good."""

    table = None

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(noise((5,)))
        self.register_buffer("scale", noise((1,), 1))

    def forward(self, x):
        if self.table is None:
            self.table = self.weight.exp() * self.scale
            self.table[0] = 1.0
        return x * self.table


class Sloped(torch.nn.Module):
    """Keeps biases of positions in a buffer that its calls make, of slopes in a buffer; as x_transformers' ALiBi does.

    Args:
        learns, counts: whether the biases depend on a parameter, and on a buffer into which the call writes.
    """

    def __init__(self, learns=False, counts=False):
        super().__init__()
        self.learns, self.counts = learns, counts
        self.weight = torch.nn.Parameter(noise((1,)))
        self.register_buffer("slopes", noise((3, 1), 1), persistent=False)
        self.register_buffer("calls", torch.zeros(1, dtype=torch.float64))
        self.register_buffer("bias", None, persistent=False)

    def forward(self, x):
        if self.bias is None or self.bias.shape[-1] < x.shape[-1]:
            bias = torch.arange(x.shape[-1], dtype=x.dtype) * self.slopes
            bias = bias * self.weight.detach() if self.learns else bias
            self.register_buffer("bias", bias + self.calls if self.counts else bias, persistent=False)
        if self.counts:
            self.calls += 1
        return x * self.weight + self.bias[:, : x.shape[-1]]


class Frozen(OrderedDict):
    """A dict that nobody may change; as the configurations of diffusers."""

    def refuse(self, *_, **__):
        raise RuntimeError("frozen")

    __delitem__ = clear = pop = setdefault = update = refuse


class Configured(torch.nn.Module):
    """Reads a configuration, and counts its calls in a list."""

    def __init__(self):
        super().__init__()
        self.config = Frozen(scale=2.0)
        self.calls = ["none yet"]

    def forward(self, x):
        self.calls[0] = "some"
        return x * self.config["scale"]


class KeepsNoise(torch.nn.Module):
    """Keeps random numbers of its first call."""

    table = None

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(noise((5,)))

    def forward(self, x):
        if self.table is None:
            self.table = torch.rand_like(self.weight)
        return x * self.table * self.weight


def splits(shape):
    return list(dict.fromkeys([(job.size, *[1] * (len(shape) - 1)), (*[1] * (len(shape) - 2), job.size, 1)]))


def compared(model, ours, P_x, shape, seed, gradients=True):
    """Call both, and compare results and gradients."""
    x = noise(shape, seed)
    with torch.set_grad_enabled(gradients):
        expected = model(x)
        y = ours(distdl.scatter(x, P_x))
        problems = [off(distdl.gather(y, ours.output_partition), expected)]
    if gradients:
        for each, result in ((model, expected), (ours, y)):
            each.zero_grad()
            result.square().sum().backward()
        found = distdl.sequential_gradients(ours)
        for name, parameter in model.named_parameters():
            expected = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            ours_is = found.get(name) if job.rank == 0 else None
            problems.append(off(torch.zeros_like(parameter) if ours_is is None else ours_is, expected))
    assert_none(problems)


def stepped(*models):
    for model in models:
        torch.optim.SGD(model.parameters(), lr=0.1).step()


@pytest.mark.parametrize("split", splits((4, 3, 6)), ids=str)
def test_tables_of_evaluation(split):
    model = Model()
    P_x = grid(P_world, split)
    ours = distdl.distribute(copy.deepcopy(model), P_x)
    for seed in range(2):
        for each in (model, ours):
            each.eval()
        compared(model, ours, P_x, (4, 3, 6), seed)
        stepped(model, ours)
        for each in (model, ours):
            each.train()
        compared(model, ours, P_x, (4, 3, 6), seed)
        stepped(model, ours)
    for each in (model, ours):
        each.eval()
    for shape in ((4, 3, 6), (4, 3, 6), (6, 3, 6)):
        compared(model, ours, P_x, shape, 3, gradients=False)
    compared(model, ours, P_x, (4, 3, 6), 4)  # one process gives the biases no gradients
    for each in (model, ours):
        each.eval()
    compared(model, ours, P_x, (4, 3, 6), 4)
    compared(model.train(), ours.train(), P_x, (4, 3, 6), 4)


@pytest.mark.parametrize("change", ["a step", "a state"])
def test_old_tables_are_refused(change):
    model = Model()
    P_x = grid(P_world, [job.size, 1, 1])
    ours = distdl.distribute(copy.deepcopy(model), P_x)
    for each in (model, ours):
        each.eval()
    compared(model, ours, P_x, (4, 3, 6), 0)
    if change == "a step":
        stepped(model, ours)
    else:
        state = {name: value + 1 for name, value in model.state_dict().items()}
        model.load_state_dict(state)
        distdl.load_sequential(ours, state)
    x, longer = (distdl.scatter(noise((n, 3, 6)), P_x) for n in (4, 7))
    words = "keeps layers.1.kept from an earlier call, and layers.1.biases has changed since"
    for each in (x, longer, x):
        raises_everywhere(NotImplementedError, words, lambda each=each: ours(each), seconds=20.0)
    for each in (model, ours):
        each.eval()
    compared(model, ours, P_x, (4, 3, 6), 1)


def test_tables_that_are_kept_for_good():
    model = KeepsFeatures()
    P_x = grid(P_world, [job.size, 1])
    ours = distdl.distribute(copy.deepcopy(model), P_x)
    compared(model, ours, P_x, (4, 5), 0)
    compared(model, ours, P_x, (4, 5), 1, gradients=False)
    stepped(ours)
    x = distdl.scatter(noise((4, 5)), P_x)
    raises_everywhere(NotImplementedError, "keeps table from an earlier call", lambda: ours(x), seconds=20.0)
    ours.module.table = None
    ours(x)
    copy.deepcopy(ours)(x)


@pytest.mark.parametrize("split", splits((4, 3, 6)), ids=str)
def test_tables_of_buffers_in_buffers(split):
    model = Sloped()
    P_x = grid(P_world, split)
    ours = distdl.distribute(copy.deepcopy(model), P_x)
    for seed, shape in enumerate([(4, 3, 6), (4, 3, 6), (4, 3, 8), (4, 3, 6)]):
        compared(model, ours, P_x, shape, seed)
        stepped(model, ours)


@pytest.mark.parametrize("option", ["learns", "counts"])
def test_other_tables_in_buffers_are_refused(option):
    P_x = grid(P_world, [job.size, 1, 1])
    ours = distdl.distribute(Sloped(**{option: True}), P_x)
    x = distdl.scatter(noise((4, 3, 6)), P_x)
    raises_everywhere(NotImplementedError, "gives its buffer bias the shape", lambda: ours(x), seconds=20.0)


def test_other_tensors_than_those_of_the_given_model_are_refused():
    model = Model().eval()
    with torch.no_grad():
        model(noise((4, 3, 6)))
    P_x = grid(P_world, [job.size, 1, 1])
    ours = distdl.distribute(model, P_x)
    x = distdl.scatter(noise((4, 3, 6)), P_x)
    ours(x)
    ours.module.layers[1].kept = {"cpu": noise((3, 6))}
    raises_everywhere(ValueError, "layers.1.kept holds other tensors", lambda: ours(x), seconds=20.0)


def test_tables_with_gradients_of_the_given_model_are_refused():
    model = Model().eval()
    model(noise((4, 3, 6)))
    P_x = grid(P_world, [job.size, 1, 1])
    raises_everywhere(
        NotImplementedError, r"kept\[0\] of layers.1 .* or empty it", lambda: distdl.distribute(model, P_x)
    )
    distdl.distribute(model.eval(), P_x)


def test_tables_of_random_numbers_are_refused():
    P_x = grid(P_world, [job.size, 1])
    ours = distdl.distribute(KeepsNoise(), P_x)
    x = distdl.scatter(noise((4, 5)), P_x)
    raises_everywhere(NotImplementedError, "kept in a buffer", lambda: ours(x), seconds=20.0)


@pytest.mark.parametrize("split", splits((4, 3, 6)), ids=str)
def test_tables_that_the_given_model_has(split):
    model = Model().eval()
    with torch.no_grad():
        model(noise((4, 3, 6)))
    P_x = grid(P_world, split)
    ours = distdl.distribute(copy.deepcopy(model), P_x)
    compared(model, ours, P_x, (4, 3, 6), 0)
    stepped(model, ours)
    compared(model, ours, P_x, (4, 3, 6), 1)  # both with the old tables
    for each in (model, ours):
        each.train().eval()
    compared(model, ours, P_x, (4, 3, 6), 2)


def test_a_dict_that_refuses_changes_and_one_that_a_call_changes():
    model, P_x = Configured(), grid(P_world, [1, P_world.size])
    ours = distdl.distribute(model, P_x)
    x = noise((2, 7))
    y = distdl.gather(ours(distdl.scatter(x, P_x)), ours.output_partition)
    assert_none([] if P_world.rank else off(y, x * 2.0))
    assert model.config == {"scale": 2.0}
    assert model.calls == ["none yet"]

"""Calls of distributed models as programs make them: further inputs, changed attributes."""

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

import distdl
from support.blocks import grid
from support.distributed import assert_none, noise, off, over_rows, partitions, whole
from support.models import Function
from support.ranks import job, raises_everywhere, together

P_world = distdl.Partition(job)


# Inputs with fewer dimensions


class Conditioned(torch.nn.Module):
    """A convolution that is told times, classes and a scale, as in diffusion."""

    def __init__(self):
        super().__init__()
        self.conv, self.classes = torch.nn.Conv2d(2, 4, 3, padding=1), torch.nn.Embedding(5, 6)
        self.embed = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.SiLU(), torch.nn.Linear(8, 4))

    def forward(self, x, times, classes, scale):
        phases = times[:, None] * torch.linspace(0.0, 1.0, 3, dtype=times.dtype)
        said = self.embed(torch.cat([phases.sin(), phases.cos()], 1) + self.classes(classes))
        return torch.relu(self.conv(x) + said[:, :, None, None]) * scale, said


def test_inputs_with_fewer_dimensions_are_whole_on_each_worker():
    torch.manual_seed(0)
    model = Conditioned().double()
    classes, image = torch.tensor([1, 4, 1]), noise((3, 2, 5, 7))
    for split in partitions(4):
        P_x = grid(P_world, split)
        ours = distdl.distribute(model, P_x)
        times, scale = noise((3,)).requires_grad_(), torch.tensor(1.5, dtype=torch.float64, requires_grad=True)
        with torch.no_grad():
            times.add_(job.rank)  # the values of the first worker count
        results = whole(ours, distdl.scatter(image, P_x), times, classes, scale=scale)
        sum(result.square().sum() for result in results).backward()
        gradients, problems = distdl.sequential_gradients(ours), []
        own = [times.grad, scale.grad]
        if job.rank == 0:
            inputs = [tensor.detach().clone().requires_grad_() for tensor in (times, scale)]
            model.zero_grad()
            expected = model(image, inputs[0], classes, inputs[1])
            sum(result.square().sum() for result in expected).backward()
            problems += [off(*both) for both in zip(results, expected, strict=True)]
            problems += [off(gradient, leaf.grad, 1e-9) for gradient, leaf in zip(own, inputs, strict=True)]
            problems += [off(gradients[name], parameter.grad, 1e-9) for name, parameter in model.named_parameters()]
        assert_none([" ".join(filter(None, problems))])


@pytest.mark.mpi(min_size=2)
def test_whole_inputs_are_as_large_on_each_worker():
    ours, P_x = over_rows(Conditioned())
    x, times = distdl.scatter(torch.rand(3, 2, 5, 7), P_x), torch.rand(3 + (job.rank == 1))
    call = lambda: ours(x, times, torch.tensor([1, 2, 3]), torch.tensor(1.0))  # noqa: E731
    raises_everywhere(ValueError, r"times has fewer dimensions than P_x", call, seconds=20.0)


# Tensors that say a shape or a dtype alone


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x * torch.linspace(0, 1, 11).to(x).sum(),
        lambda x: x.mean((2, 3)).type_as(x.to(torch.float32)),
        lambda x: x.mean((2, 3), keepdim=True).expand_as(x) * x,
        lambda x: x.flatten(2).softmax(-1).view_as(x),
        lambda x: x[:, :1].reshape_as(x[:, 1:2]),
        lambda x: torch.meshgrid(x[0, 0, :, 0], x[0, 0, 0], indexing="xy")[0],
        lambda x: torch.stack(torch.meshgrid(x[0, 0, :, 0], x[0, 0, 0], indexing="ij")),
        lambda x: torch.broadcast_tensors(x[:, :1], x[:1])[0],
    ],
    ids=["to", "type_as", "expand_as", "view_as", "reshape_as", "meshgrid", "both of meshgrid", "broadcast_tensors"],
)
def test_tensors_that_say_a_shape_or_a_dtype(function):
    class Model(torch.nn.Module):
        def forward(self, x):
            return function(x)

    image = noise((2, 3, 5, 7))
    for split in partitions(4):
        P_x = grid(P_world, split)
        ours = distdl.distribute(Model(), P_x)
        x = distdl.scatter(image, P_x).detach().requires_grad_()
        output = whole(ours, x)
        output.square().sum().backward()
        expected, gradient = image.clone().requires_grad_(), distdl.gather(x.grad, P_x)
        result = function(expected)
        result.square().sum().backward()
        tolerance = 1e-6 if result.dtype == torch.float32 else 1e-10
        problems = [off(output, result, tolerance), off(gradient, expected.grad, tolerance)] if job.rank == 0 else []
        assert_none([" ".join(filter(None, [str(split), *problems])) if any(problems) else ""])


# Inputs that ask for no gradients


class Weighted(torch.nn.Module):
    """A loss with weights that the target says, by which torch has no derivative."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x, target):
        return self.function(x, target)


WEIGHTED = {
    "bce": lambda x, t: F.binary_cross_entropy(x.sigmoid(), t, weight=1 + 3 * t),
    "bce with logits": lambda x, t: F.binary_cross_entropy_with_logits(x, t, 1 + t, pos_weight=2 + t),
    "soft_margin_loss": lambda x, t: F.soft_margin_loss(x, t - 0.5, reduction="none"),
    "nll_loss": lambda x, t: F.nll_loss(x.log_softmax(1), (t[:, 0] > 0.5).long(), t[0, :, 0, 0] + 0.5),
}


@pytest.mark.parametrize("function", WEIGHTED.values(), ids=WEIGHTED)
def test_torch_has_no_derivative_by_a_target(function):
    """The target may be an input that asks for no gradients, or be computed from it; otherwise all ranks say so."""
    image, labels = noise((3, 2, 5, 7)), noise((3, 2, 5, 7), seed=1).sigmoid()
    for split in partitions(4):
        P_x = grid(P_world, split)
        ours = distdl.distribute(Weighted(function), P_x)
        x, target = distdl.scatter(image, P_x).detach().requires_grad_(), distdl.scatter(labels, P_x).detach()
        output = whole(ours, x, target)
        output.sum().backward()
        expected, gradient = image.clone().requires_grad_(), distdl.gather(x.grad, P_x)
        result = function(expected, labels)
        result.sum().backward()
        problems = [off(output, result), off(gradient, expected.grad)] if job.rank == 0 else []
        assert_none([" ".join(filter(None, [str(split), *problems])) if any(problems) else ""])
        target.requires_grad_()
        raises_everywhere(RuntimeError, "no derivative of", lambda y=(x, target), f=ours: f(*y), seconds=20.0)


# Buffers


class Frequencies(torch.nn.Module):
    """A buffer that is in no state, as rotary embeddings have."""

    def __init__(self, by):
        super().__init__()
        self.register_buffer("frequencies", torch.arange(7.0) * by, persistent=False)

    def forward(self, x):
        return x * self.frequencies


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize("within", [False, True])
def test_buffers_that_are_in_no_state_come_from_the_first_worker(within, device):
    with torch.device("cpu" if job.rank == 0 else device):
        model = Frequencies(1.0 + job.rank)
        model = torch.nn.Sequential(model) if within else model
    ours, P_x = over_rows(model)
    assert not ours.state_dict()
    x = torch.rand(1, 2, 5, 7)
    output = whole(ours, distdl.scatter(x, P_x))
    assert_none([off(output, x * torch.arange(7.0)) if job.rank == 0 else ""])


# Assignments after the first call


class Tempered(torch.nn.Module):
    """A model with a number of its own."""

    def __init__(self):
        super().__init__()
        self.temperature, self.leaky, self.norm = 1.0, torch.nn.LeakyReLU(), torch.nn.BatchNorm2d(2)

    def forward(self, x):
        return self.norm(self.leaky(x) / self.temperature)


CHANGES = {
    "its own": lambda model: setattr(model, "temperature", 0.5),
    "of a layer": lambda model: setattr(model.leaky, "negative_slope", 0.9),
    "of a norm": lambda model: (setattr(model.norm, "eps", 3.0), setattr(model.norm, "momentum", 0.5)),
    "a new one": lambda model: setattr(model.leaky, "inplace", False),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_what_is_assigned_after_the_first_call_counts(change):
    model, image = Tempered().double(), noise((2, 2, 5, 7))
    ours, P_x = over_rows(model)
    x = distdl.scatter(image, P_x)
    problems = []
    for changes in ([], [change], []):
        for assign in changes:
            assign(ours)
            assign(model)
        output, expected = whole(ours, x), model(image)
        problems += [off(output, expected), *(off(*both) for both in zip(ours.buffers(), model.buffers(), strict=True))]
    assert_none([" ".join(filter(None, problems))])


@pytest.mark.mpi(min_size=2)
def test_what_one_rank_assigns_raises_on_all():
    ours, P_x = over_rows(Tempered())
    x = distdl.scatter(torch.rand(2, 2, 5, 7), P_x)
    ours(x)
    if job.rank == 1:
        ours.module.temperature = 0.5
    raises_everywhere(ValueError, "temperature=0.5", lambda: ours(x))
    ours.module.temperature = [1.0, 0.5][1]
    assert together(tuple(ours(x).shape))
    if job.rank == 0:
        ours.module.temperature = torch.ones(1)
    raises_everywhere(ValueError, "temperature became a Tensor", lambda: ours(x))


# Names, programs and warnings


class OwnNames(torch.nn.Module):
    """A model whose attributes have names that layers use, too."""

    def __init__(self):
        super().__init__()
        self.agreement, self.is_set_up = torch.nn.Linear(6, 6), 3

    def forward(self, x):
        return self.agreement(x) * self.is_set_up


def test_models_may_have_attributes_of_any_name():
    torch.manual_seed(0)
    model, x = OwnNames(), torch.ones(2 * job.size, 6)
    P_x = grid(P_world, [job.size, 1])
    for ours in (distdl.distribute(model, P_x), distdl.nn.Local(P_x, model)):
        for _ in range(2):
            y = ours(distdl.scatter(x, P_x))
        assert torch.allclose(y, model(x[: len(y)]))


def test_programs_that_were_not_used_for_longest_are_forgotten(monkeypatch):
    monkeypatch.setattr("distdl.models.program_cache._MOST_OPERATIONS", 6)
    P_x = grid(P_world, [job.size, 1])
    model = distdl.distribute(torch.nn.Sequential(torch.nn.ReLU(), torch.nn.Tanh()), P_x)

    def program(rows):
        model(distdl.scatter(torch.ones(job.size * rows, 2), P_x))
        return model.program

    programs = {rows: program(rows) for rows in (1, 2, 3)}  # of two operations
    assert program(1) is programs[1]
    program(4)
    assert program(1) is programs[1]
    assert program(3) is programs[3]
    assert program(2) is not programs[2]


class Scaled(torch.nn.Module):
    """A layer whose result is multiplied by an argument and by an attribute."""

    def __init__(self):
        super().__init__()
        self.linear, self.weight = torch.nn.Linear(3, 3), 1.0

    def forward(self, x, factor):
        return self.linear(x) * factor * self.weight


@pytest.mark.parametrize("assigned", [False, True], ids=["arguments", "attributes"])
def test_a_warning_of_numbers_that_change_in_each_call(recwarn, assigned):
    P_x = grid(P_world, [job.size, 1])
    model, x = Scaled().double(), torch.ones(job.size, 3, dtype=torch.double)
    ours, block = distdl.distribute(model, P_x), x[:1]

    def call(number, make=float):
        factor = make(number)
        if assigned and make is float:
            model.weight = ours.weight = number
            factor = 1.0
        y = distdl.gather(ours(block, factor), P_x)
        assert_none([off(y, model(x, factor)) if job.rank == 0 else ""])
        return [str(warning.message) for warning in recwarn]

    for number in (0.5, 2, -1e-3):
        assert call(number) == []
    (text,) = call(3.5)
    assert "test_calls.py" in text
    assert ("weight=3.5" if assigned else "with 3.5 at") in text
    assert call(4.5) == [text]
    for number in (5.5, 6.5, 7.5, 8.5, 9.5):  # the remedy
        assert call(number, torch.tensor) == [text]


def test_the_line_of_a_model_of_torch_is_that_of_the_program():
    model = distdl.distribute(torch.nn.Sequential(torch.nn.Linear(4, 4)), grid(P_world, [job.size, 1]))
    model(torch.ones(2, 4))
    assert Path(__file__).name in str(model.program.plan.recording.nodes[0].source)


def activated(x, activation):
    return activation(x)


def test_functions_of_torch_as_arguments():
    P_x = grid(P_world, [job.size, 1])
    ours, whole = distdl.distribute(activated, P_x), noise((4, 3))
    for activation in (torch.sigmoid, torch.tanh, torch.sigmoid):
        y = distdl.gather(ours(distdl.scatter(whole, P_x), activation), P_x)
        assert job.rank or torch.equal(y, activation(whole))


@pytest.mark.filterwarnings("ignore:.*non-tuple sequence:UserWarning")  # of torch
def test_slices_in_a_list_are_a_tuple():
    P_x, whole = grid(P_world, [job.size, 1]), noise((4, 6))
    ours = distdl.distribute(Function(lambda x: x[[slice(None), slice(1, 3), None]] * 2), P_x)
    y = distdl.gather(ours(distdl.scatter(whole, P_x)), ours.output_partition)
    assert job.rank or torch.equal(y, whole[:, 1:3, None] * 2)

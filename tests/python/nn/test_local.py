"""Local beside the module on the whole: values, derivatives, parameters; and what it refuses."""

import copy
import gc
import weakref

import pytest
import torch

import distdl
import distdl.nn as dnn
from distdl.nn import DistributedLinear, Local
from support.blocks import balanced, grid, grid_shapes
from support.families import Example
from support.ranks import job, raises_everywhere, together
from support.sequential import as_tuple, assert_equals_sequential, block
from support.tensors import fill_with_integers, values

double = torch.float64


class TwoByTwo(torch.nn.Module):
    """Two tensors in, two out; a parameter of its own, another used twice, another unused, and a buffer."""

    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(3, dtype=double))
        self.blocks = torch.nn.ModuleList([torch.nn.Linear(3, 3, dtype=double) for _ in range(2)])
        self.blocks[1].weight = self.blocks[0].weight
        self.unused = torch.nn.Parameter(torch.ones(2, dtype=double))
        self.register_buffer("shift", torch.arange(3.0, dtype=double))

    def forward(self, x, y, factor=1.0):
        z = self.blocks[1](torch.tanh(self.blocks[0](x) * self.scale)) + self.shift
        return z * factor, y * z


class WhereEmpty(torch.nn.Module):
    """Uses its parameters only where it has elements."""

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(3, 2, dtype=double)

    def forward(self, x):
        return torch.sin(self.linear(x)) if x.numel() else x.detach().new_zeros((*x.shape[:-1], 2))


class Recurrent(torch.nn.Module):
    """An LSTM and its last hidden state."""

    def __init__(self):
        super().__init__()
        self.lstm = torch.nn.LSTM(3, 2, batch_first=True, dtype=double)

    def forward(self, x):
        return self.lstm(x)[0]


def filled(make):
    """The same module on all ranks, with weights that are neither equal nor zero."""

    def made():
        torch.manual_seed(3)
        return make()

    return made


def test_the_whole_module_is_not_kept(P_world):
    module = torch.nn.Linear(3, 2)
    layer = Local(grid(P_world, [job.size, 1]), module)
    whole = weakref.ref(module)
    del module
    gc.collect()
    assert whole() is None
    assert layer.passed["module"] is layer.module


def test_the_first_call_alone_is_compared_among_the_ranks(P_world, monkeypatch):
    compared = []
    monkeypatch.setattr("distdl.nn.local.compare", lambda *facts: compared.append(facts))
    layer = Local(grid(P_world, [job.size, 1]), torch.nn.Linear(3, 2))
    for _ in range(3):
        layer(torch.ones(2, 3))
    assert len(compared) == 1


def local(outputs=1):
    return lambda twin, P_x: Local(P_x, twin, outputs)


def like_input(make, shape=(4, 3), whole=(), outputs=1, inputs=1, **options):
    """An example whose results are in the same blocks as its inputs."""
    cut = tuple(range(len(shape)))
    return Example(
        filled(make),
        lambda: tuple(values(shape, seed=i) / 3 for i in range(inputs)),
        len(shape),
        (cut,) * inputs,
        (cut,) * outputs,
        whole=whole,
        layer=local(outputs),
        **options,
    )


def linear(*sizes, **options):
    return torch.nn.Linear(*sizes, dtype=double, **options)


def frozen():
    made = torch.nn.Sequential(linear(3, 4), torch.nn.Tanh(), linear(4, 2))
    made[0].weight.requires_grad_(False)
    return made


EXAMPLES = {
    "GELU": like_input(torch.nn.GELU),
    "Linear": like_input(lambda: linear(3, 2), whole=(1,)),
    "Sequential": like_input(lambda: torch.nn.Sequential(linear(3, 4), torch.nn.SiLU(), linear(4, 2)), whole=(1,)),
    "frozen": like_input(frozen, whole=(1,)),
    "two by two": like_input(TwoByTwo, whole=(1,), outputs=2, inputs=2),
    "where empty": like_input(WhereEmpty, whole=(1,)),
    "an option": like_input(TwoByTwo, whole=(1,), outputs=2, inputs=2, call={"factor": 2.0}),
    "BatchNorm": like_input(lambda: torch.nn.BatchNorm1d(3, dtype=double).eval(), whole=(1,)),
    "LayerNorm": like_input(lambda: torch.nn.LayerNorm(3, dtype=double), (2, 4, 3), whole=(2,)),
    "LSTM": like_input(Recurrent, (4, 2, 3), whole=(1, 2)),
    "Softmax": like_input(lambda: torch.nn.Softmax(1), whole=(1,)),
}  # fmt: skip
every_example = pytest.mark.parametrize("example", EXAMPLES.values(), ids=EXAMPLES)


@pytest.mark.shared
@every_example
@pytest.mark.parametrize("layout", ["owner", "sharded"])
def test_equals_the_module(P_world, example, layout):
    """On all workers; with blocks of size 0; and beside ranks that have no part."""
    for shape in grid_shapes(example.dims, job.size, fixed=example.whole):
        P = grid(P_world, shape)
        assert_equals_sequential(example, P, layout=layout)
        n = example.inputs()[0].shape[0]
        assert_equals_sequential(example, P, [[n, *[0] * (shape[0] - 1)], *[None] * (example.dims - 1)], layout)


@pytest.mark.ranks(2, 3)
@every_example
def test_replicated(P_world, example):
    """Each worker has the whole gradient of each parameter."""
    twin, P = example.twin(), grid(P_world, grid_shapes(example.dims, 2, fixed=example.whole)[-1])
    with distdl.parameter_layout("replicated"):
        layer = example.make(twin, P)
    own = [block(x, P, cut) for x, cut in zip(example.inputs(), example.cuts, strict=True)]
    for model, inputs in ((twin, example.inputs()), (layer, own)):
        loss = sum(y.square().sum() for y in as_tuple(model(*inputs, **example.call)))
        if loss.requires_grad:
            loss.backward()
    for name, whole in twin.named_parameters():
        parameter = layer.get_parameter(name)
        if P.active and whole.grad is not None:
            assert torch.allclose(parameter.grad, whole.grad, atol=1e-12), name


@pytest.mark.shared
@every_example
def test_other_conditions(P_world, example):
    """Copied, without gradients, twice backward; and the module that was given stays as it is."""
    module = example.twin()
    before = copy.deepcopy(module.state_dict())
    P = grid(P_world, grid_shapes(example.dims, job.size, fixed=example.whole)[-1])
    layer = copy.deepcopy(example.make(module, P))
    own = [block(x, P, cut) for x, cut in zip(example.inputs(), example.cuts, strict=True)]
    first = layer(*own, **example.call)
    first = first[0] if isinstance(first, tuple) else first
    with torch.inference_mode():
        again = layer(*own, **example.call)
    again = again[0] if isinstance(again, tuple) else again
    assert all(together(torch.allclose(first, again, rtol=0, atol=1e-14)))  # torch's LSTM has another kernel there
    if first.requires_grad:
        first.sum().backward(retain_graph=True)
        first.sum().backward()
    assert all(torch.equal(tensor, before[name]) for name, tensor in module.state_dict().items())


@pytest.mark.ranks(2)
def test_one_optimizer_step(P_world):
    """The parameters count once, and a step is the sequential step, as `float()` and `train()` are."""
    twin = filled(TwoByTwo)()
    P = grid(P_world, (2, 1))
    layer = Local(P, twin, outputs=2).float()
    twin = twin.float()
    assert layer.eval().module.training is True  # until the next call
    x = values((4, 3)).float()
    for model, tensor in ((twin, x), (layer, block(x, P, (0, 1)))):
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        sum(y.sum() for y in model(tensor, tensor)).backward()
        optimizer.step()
    assert layer.module.training is False
    state = distdl.sequential_state_dict(layer)
    if job.rank == 0:
        for name, whole in twin.state_dict().items():
            assert torch.allclose(state[name], whole, atol=1e-5), name
    assert sum(together(sum(p.numel() for p in layer.parameters()))) == sum(p.numel() for p in twin.parameters())


@pytest.mark.ranks(2, 3)
def test_weights_of_one_rank(P_world):
    """from_sequential takes them, and load_sequential the other way."""
    torch.manual_seed(job.rank)
    twin = torch.nn.Sequential(linear(3, 2), torch.nn.BatchNorm1d(2, dtype=double)).eval()
    layer = Local.from_sequential(twin, grid(P_world, (2, 1)), root=1)
    state = distdl.sequential_state_dict(layer)
    if job.rank == 0:
        torch.manual_seed(1)
        other = torch.nn.Sequential(linear(3, 2), torch.nn.BatchNorm1d(2, dtype=double))
        assert list(state) == list(other.state_dict())
        assert all(torch.equal(state[name], tensor) for name, tensor in other.state_dict().items())
    assert not layer.training


@pytest.mark.ranks(2)
def test_reset_parameters(P_world):
    """As the module does with the same seed; a layer that has no such method keeps its parameters."""
    layer = Local(grid(P_world, (2, 1)), fill_with_integers(TwoByTwo()), outputs=2)
    torch.manual_seed(5)
    layer.reset_parameters()
    twin = fill_with_integers(TwoByTwo())
    torch.manual_seed(5)
    for module in twin.blocks:
        module.reset_parameters()
    state = distdl.sequential_state_dict(layer)
    if job.rank == 0:
        assert all(torch.equal(state[name], tensor) for name, tensor in twin.state_dict().items())


class Counting(torch.nn.Module):
    """Writes into a buffer, in place or by another tensor."""

    def __init__(self, in_place):
        super().__init__()
        self.in_place = in_place
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        if self.in_place:
            self.calls += 1
        else:
            self.calls = self.calls + 1
        return x


class Around(torch.nn.Module):
    """A module of the user's."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x)


class Unequal(torch.nn.Module):
    """Fails on one block."""

    def forward(self, x):
        if x.sum() > 0:
            raise KeyError("here")
        return x


class OwnSoftmax(torch.nn.Softmax):
    """A class of the user's that does what torch's does."""


def parametrized():
    """A class that torch makes from LayerNorm."""
    return torch.nn.utils.parametrizations.weight_norm(torch.nn.Conv1d(4, 4, 3, padding=1))


REFUSED = {
    "derived": (lambda: OwnSoftmax(0), "use DistributedSoftmax"),
    "parametrized": (parametrized, "use DistributedConv1d"),
    "dropout of LSTM": (lambda: Around(torch.nn.LSTM(3, 2, 2, dropout=0.5)), "dropout=0.5 draws random numbers"),
    "Softmax": (lambda: torch.nn.Softmax(0), "use DistributedSoftmax"),
    "LayerNorm": (lambda: torch.nn.LayerNorm([4, 3], dtype=double), "use DistributedLayerNorm"),
    "Dropout": (lambda: torch.nn.Dropout(0.1), "use DistributedDropout"),
    "BatchNorm": (lambda: torch.nn.BatchNorm1d(3), "use DistributedBatchNorm1d"),
    "Flatten": (lambda: torch.nn.Flatten(0), "use DistributedFlatten"),
    "behind another": (
        lambda: torch.nn.Sequential(torch.nn.Unflatten(1, (1, 3)), torch.nn.LayerNorm([4, 1, 3])),
        "LayerNorm",
    ),
    "inside": (lambda: Around(torch.nn.BatchNorm1d(3)), "use DistributedBatchNorm1d"),
    "in a row": (lambda: torch.nn.Sequential(torch.nn.ReLU(), torch.nn.Dropout()), "use DistributedDropout"),
    "time": (lambda: torch.nn.GRU(3, 2), "must not split time"),
    "another way to split": (lambda: torch.nn.DataParallel(torch.nn.ReLU()), "split the batch by P_x"),
    "buffer": (lambda: Counting(True), "writes into its buffer calls"),
    "another buffer": (lambda: Counting(False), "writes into its buffer calls"),
    "outputs": (lambda: Around(torch.nn.LSTM(3, 2)), r"\(1, \(1, 1\)\)"),
}


@pytest.mark.ranks(2)
@pytest.mark.parametrize("name", REFUSED)
def test_refused(P_world, name):
    """By the name of what to use instead, each time; on one worker it is right."""
    make, match = REFUSED[name]
    x = values((4, 3)).float()
    P = grid(P_world, (2, 1))
    layer = Local(P, make())
    for _ in range(2):
        raises_everywhere(ValueError, match, lambda: layer(block(x, P, (0, 1)).to(next_dtype(layer))))
    if name in ("Softmax", "Dropout", "BatchNorm", "buffer", "another buffer"):
        alone = grid(P_world, (1, 1))
        layer = Local(alone, make())
        twin = make()
        torch.manual_seed(1)
        y = layer(block(x, alone, (0, 1)))
        torch.manual_seed(1)
        expected = twin(x)
        if alone.active:
            assert torch.equal(y, expected)
            assert all(torch.equal(buffer, twin.get_buffer(name)) for name, buffer in layer.named_buffers())


def next_dtype(layer):
    """Of the parameters."""
    return next((p.dtype for p in layer.parameters()), torch.float32)


@pytest.mark.ranks(2)
def test_right_again(P_world):
    """A module refused in training is right in evaluation, and refused again."""
    P = grid(P_world, (2, 1))
    layer = Local(P, torch.nn.Sequential(torch.nn.BatchNorm1d(3), torch.nn.Dropout()))
    x = block(values((4, 3)).float(), P, (0, 1))
    for _ in range(2):
        raises_everywhere(ValueError, "DistributedBatchNorm1d", lambda: layer.train()(x))
        assert torch.allclose(layer.eval()(x), x, atol=1e-4)


@pytest.mark.ranks(2, 3)
def test_mistakes(P_world):
    """Of one rank alone, in a call."""
    P = grid(P_world, (2, 1))
    layer = Local(P, TwoByTwo(), outputs=2)
    good = (block(values((4, 3)), P, (0, 1)), block(values((4, 3)), P, (0, 1)))
    here = job.rank == 1
    wrong = {
        "no tensor": (None, good[1]),
        "a text": ("a", good[1]),
        "no second tensor": (good[0], None),
        "one tensor": good[:1],
        "four": (*good, 1.0, 2.0),
        "another dtype": (good[0].float(), good[1]),
        "another shape": (good[0], good[1][..., :2]),
        "an option": (*good, 3.0),
    }
    layer(*good)
    for mistake in wrong.values():
        arguments = mistake if here else good
        raises_everywhere(Exception, ".", lambda arguments=arguments: layer(*arguments), involved=P.active)
        layer(*good)
    fails = Local(P, Unequal())
    for _ in range(2):
        x = good[0] * (1.0 if here else 0.0)
        raises_everywhere(RuntimeError, "here", lambda x=x: fails(x), involved=P.active)
    raises_everywhere(TypeError, "layer over partitions", lambda: Local(P, Around(DistributedLinear(P, 3, 2))))
    raises_everywhere(TypeError, "not initialized", lambda: Local(P, torch.nn.LazyLinear(3)))
    raises_everywhere(TypeError, "takes a torch.nn.Module", lambda: Local.from_sequential(3, P))


def test_balanced_blocks_are_not_needed(P_world):
    """The sizes of the blocks are the caller's business."""
    shapes = [shape for shape in grid_shapes(2, job.size, fixed=(1,)) if shape[0] == job.size]
    P = grid(P_world, shapes[0])
    sizes = [balanced(6, job.size, i) for i in range(job.size)][::-1]
    assert_equals_sequential(EXAMPLES["Linear"], P, [[b - a for a, b in sizes], None])


@pytest.mark.ranks(2)
def test_a_module_under_two_names(P_world):
    """With parameters it is refused; an activation may stand in several places."""
    P, linear, relu = grid(P_world, (2, 1)), torch.nn.Linear(3, 3), torch.nn.ReLU()
    raises_everywhere(ValueError, "two names", lambda: Local(P, torch.nn.Sequential(linear, relu, linear)))
    layer = Local(P, torch.nn.Sequential(linear, relu, torch.nn.Linear(3, 2), relu))
    assert layer(values((2, 3)).float()).shape == (2, 2)


@pytest.mark.ranks(2)
def test_from_evaluation_to_training(P_world):
    layer = Local(grid(P_world, (2, 1)), torch.nn.Dropout().eval())
    layer(values((2, 3)))
    layer.train()
    raises_everywhere(ValueError, "use DistributedDropout", lambda: layer(values((2, 3))))


@pytest.mark.ranks(2)
def test_in_place_of_its_parameters(P_world):
    """Tensors, by torch.func, and a module on the meta device, whose layers give the first values."""
    P, x = grid(P_world, (2, 1)), values((2, 3))
    layer = Local(P, torch.nn.Linear(3, 2, dtype=double))
    doubled = {name: 2 * parameter.detach() for name, parameter in layer.named_parameters()}
    assert torch.equal(torch.func.functional_call(layer, doubled, (x,)), 2 * layer(x))
    torch.manual_seed(1)
    layer = Local.from_sequential(torch.nn.Linear(3, 2, dtype=double, device="meta"), P)
    torch.manual_seed(1)
    expected = torch.nn.Linear(3, 2, dtype=double)
    assert torch.allclose(layer(x), expected(x), rtol=1e-14)


@pytest.mark.ranks(2)
def test_gradients_are_asked_for_on_one_rank(P_world):
    """The result requires gradients on every rank, also where nothing travels."""
    x = values((2, 3)).requires_grad_(job.rank == 1)
    for layer in (Local(grid(P_world, (2, 1)), torch.nn.Tanh()), dnn.DistributedFlatten(grid(P_world, (2, 1)), 1)):
        y = layer(x)
        assert y.requires_grad
        y.sum().backward()
    assert (x.grad is not None) == (job.rank == 1)


@pytest.mark.parametrize("other", [torch.nn.Tanh(), torch.nn.Linear(3, 3), None], ids=str)
@pytest.mark.parametrize("called", [False, True])
def test_a_module_that_is_replaced_on_one_rank(P_world, other, called):
    layer = dnn.Local(grid(P_world, [job.size, 1]), torch.nn.Linear(3, 3))
    if called:
        layer(torch.ones(2, 3))
    copied = copy.deepcopy(layer)
    if job.rank == job.size - 1:
        layer.module = other
    raises_everywhere(TypeError, "another module than at construction", lambda: layer(torch.ones(2, 3)))
    copied(torch.ones(2, 3))


@pytest.mark.ranks(1, 2)
def test_a_parameter_that_is_not_there(P_world):
    """A parametrization of the layer on one rank takes a parameter away from the module: all ranks raise."""
    layer, x = dnn.Local(grid(P_world, [job.size, 1]), torch.nn.Linear(3, 3)), torch.ones(2, 3)
    if job.rank == job.size - 1:
        torch.nn.utils.parametrize.register_parametrization(layer, "weight", torch.nn.Tanh())
    raises_everywhere(ValueError, "parameter that is not there", lambda: layer(x))


@pytest.mark.ranks(1, 2)
def test_a_parameter_without_values(P_world):
    layer, x = dnn.Local(grid(P_world, [job.size, 1]), torch.nn.Linear(3, 3)), torch.ones(2, 3)
    layer(x)
    if job.rank == job.size - 1:
        layer._parameters["weight"] = torch.nn.Parameter(layer.weight.to("meta"))
    raises_everywhere(TypeError, "has no values", lambda: layer(x))


def assigned(name, value):
    """A change of an attribute of the module within."""
    return lambda layer: setattr(layer.module[0], name, value)


CHANGES = {
    "no parameter": assigned("bias", None),
    "a parameter that was deleted": lambda layer: delattr(layer.module[0], "bias"),
    "another parameter": assigned("weight", torch.nn.Parameter(torch.ones(3, 3))),
    "a parameter of another shape": assigned("weight", torch.nn.Parameter(torch.ones(2, 3))),
    "a parameter of another dtype": assigned("weight", torch.nn.Parameter(torch.ones(3, 3, dtype=double))),
    "a parameter more": lambda layer: layer.module[0].register_parameter("more", torch.nn.Parameter(torch.ones(2))),
    "a parameter that is no leaf": lambda layer: layer.module[0].weight.requires_grad_(False).mul_(2.0),
    "a frozen parameter": lambda layer: layer.module[0].weight.requires_grad_(False),
    "frozen": lambda layer: layer.requires_grad_(False),
    "parametrized": lambda layer: torch.nn.utils.parametrize.register_parametrization(
        layer.module[0], "weight", torch.nn.Tanh()
    ),
    "dtype": lambda layer: layer.double(),
    "dtype of a part": lambda layer: layer.module[2].double(),
    "dtype of a buffer": lambda layer: setattr(layer.module[2], "running_mean", torch.zeros(3, dtype=double)),
    "no buffer": lambda layer: setattr(layer.module[2], "running_mean", None),
    "a buffer of another shape": lambda layer: setattr(layer.module[2], "running_mean", torch.zeros(2)),
    "meta": lambda layer: layer.to("meta"),
    "meta within": lambda layer: layer.module[2].to("meta"),
    "in training": lambda layer: layer.train(),
    "a part in training": lambda layer: layer.module[2].train(),
    "the module in training": lambda layer: layer.module.train(),
    "another submodule": lambda layer: layer.module.__setitem__(1, torch.nn.Tanh()),
    "no submodule": lambda layer: layer.module.__delitem__(1),
    "a submodule more": lambda layer: layer.module.append(torch.nn.Linear(3, 3)),
    "an option": lambda layer: setattr(layer.module[1], "negative_slope", 0.5),
    "an option of no use": lambda layer: setattr(layer.module[1], "negative_slope", "a"),
    "outputs": lambda layer: setattr(layer, "outputs", 2),
    "no outputs": lambda layer: setattr(layer, "outputs", None),
    "no module": lambda layer: setattr(layer, "module", None),
    "a deleted module": lambda layer: vars(layer).pop("module"),
}


@pytest.mark.ranks(2, 3)
@pytest.mark.parametrize("called", [False, True])
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_changed_on_one_rank(P_world, change, called):
    """It raises on all ranks, or is right on all of them."""
    P, x = grid(P_world, [job.size, 1]), torch.ones(2, 3)
    for rank in (job.size - 1, 0):
        module = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.LeakyReLU(), torch.nn.BatchNorm1d(3))
        layer = Local(P, module.eval())
        if called:
            layer(x).sum().backward()
        if job.rank == rank:
            change(layer)
        outcome = None
        for _ in range(2):
            try:
                layer(x).sum().backward()
            except Exception as error:
                outcome = type(error).__name__, str(error).split(" (raised on rank")[0]
            outcomes = job.allgather(outcome)
            assert len(set(outcomes)) == 1, outcomes

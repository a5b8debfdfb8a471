"""Models that distdl.distribute has split, beside themselves in one process."""

import copy
import gc
import weakref

import pytest
import torch
from torch.utils._pytree import tree_structure

import distdl
from support.blocks import grid
from support.distributed import assert_equal_models, assert_none, noise, off, partitions
from support.models import Dense, Line, Residual, Tokens, Volume
from support.ranks import job, together

P_world = distdl.Partition(job)


MODELS = {
    "residual": (Residual, (3, 2, 9, 7)),
    "dense": (Dense, (2, 2, 8, 6)),
    "tokens": (Tokens, (2, 2, 9, 10)),
    "line": (Line, (2, 2, 11)),
    "volume": (Volume, (2, 1, 6, 5, 4)),
}


@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
@pytest.mark.parametrize("name", MODELS)
def test_models_equal_themselves_in_one_process(name, training):
    make, shape = MODELS[name]
    torch.manual_seed(0)
    model = make().double()
    for split in partitions(len(shape)):
        assert_equal_models(model, shape, split, training)


@pytest.mark.parametrize("name", MODELS)
def test_parameters_that_travel_apart(monkeypatch, name):
    """As parameters of large models do."""
    monkeypatch.setattr("distdl.models.run.parameter_buckets.BUCKET", 1)
    make, shape = MODELS[name]
    torch.manual_seed(0)
    assert_equal_models(make().double(), shape, [1, 1, P_world.size, *[1] * (len(shape) - 3)])


@pytest.mark.parametrize("shape", [(1, 2, 1, 1), (2, 2, 3, 1), (1, 2, 2, 17)], ids=str)
def test_images_of_any_size(shape):
    torch.manual_seed(0)
    model = Residual().double().eval()
    for split in partitions(4):
        assert_equal_models(model, shape, split, training=False)


def test_norms_that_average_all_batches():
    torch.manual_seed(0)
    norm = torch.nn.BatchNorm2d(2, momentum=None)
    model = torch.nn.Sequential(norm, torch.nn.Conv2d(2, 2, 3), norm).double()
    for split in partitions(4):
        assert_equal_models(model, (2, 2, 9, 7), split)


@pytest.fixture
def _without_collections():
    """Memory of a model is scarce: what is dropped goes at once, not when Python looks for cycles."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("_without_collections")
def test_neither_the_whole_model_nor_a_dropped_one_is_kept():
    model = Residual().double()
    P = grid(P_world, [1, 1, P_world.size, 1])
    ours = distdl.distribute(model, P)
    whole, split = weakref.ref(model), weakref.ref(ours)
    del model
    assert whole() is None
    y = ours(distdl.scatter(noise((2, 2, 9, 7)), P))
    distdl.gather(y, ours.output_partition).sum().backward()
    del y, ours
    assert split() is None


class Tapped(torch.nn.Module):
    """Two layers of a MiB each, and what passes between them."""

    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Linear(520, 520), torch.nn.Linear(520, 520)

    def forward(self, x):
        between = self.first(x)
        return self.second(between), between


def test_gradients_of_parameters_leave_before_earlier_ones_are_computed():
    P_x = grid(P_world, [P_world.size, 1])
    ours = distdl.distribute(Tapped(), P_x)
    y, between = ours(distdl.scatter(torch.ones(4, 520), P_x))
    seen = []
    between.register_hook(lambda gradient: seen.append("between"))
    for name, parameter in ours.named_parameters():
        parameter.register_post_accumulate_grad_hook(lambda parameter, name=name: seen.append(name))
    (y.sum() + between.sum()).backward()
    position = [seen.index(event) for event in ("second.weight", "between", "first.weight")]
    assert all(together(position == sorted(position))), seen


class Heads(torch.nn.Module):
    """Several results, of which a loss may take some, and parameters without a derivative."""

    def __init__(self):
        super().__init__()
        self.body = torch.nn.Linear(3, 3)
        self.heads = torch.nn.ModuleList(torch.nn.Linear(3, 2) for _ in range(2))
        self.detached, self.bare = torch.nn.Linear(3, 3), torch.nn.Parameter(torch.ones(3))

    def forward(self, x):
        with torch.no_grad():
            x = x * self.bare
        y = self.body(x) + self.detached(x).detach()
        return [head(y) for head in self.heads]


@pytest.mark.parametrize("layout", ["owner", "sharded", "replicated"])
@pytest.mark.parametrize("taken", [[0], [1], [0, 1]], ids=str)
def test_parameters_that_a_loss_does_not_depend_on_have_no_gradient(taken, layout):
    """By a gradient of zeros, optimizers that decay weights would change them."""
    model, P_x = Heads(), grid(P_world, [P_world.size, 1])
    with distdl.parameter_layout(layout):
        ours = distdl.distribute(model, P_x)
    for network, x in ((model, torch.ones(4, 3)), (ours, distdl.scatter(torch.ones(4, 3), P_x))):
        results = network(x)
        sum(results[i].sum() for i in taken).backward()
    names, expected = ({name for name, p in net.named_parameters() if p.grad is not None} for net in (ours, model))
    assert all(together(names == expected)), names


class Mixed(torch.nn.Module):
    """Parameters of several dtypes, each of which is used as it is."""

    def __init__(self):
        super().__init__()
        self.low, self.norm = torch.nn.Linear(3, 3).bfloat16(), torch.nn.LayerNorm(3).double()
        self.scale, self.phase = torch.nn.Parameter(torch.ones(3)), torch.nn.Parameter(torch.ones(3).cfloat())

    def forward(self, x):
        y = self.low(x.bfloat16()).float() * self.scale
        return y, self.norm(y.double()), y * self.phase


@pytest.mark.parametrize("layout", ["owner", "sharded", "replicated"])
def test_parameters_of_different_dtypes(layout):
    torch.manual_seed(0)
    model, P_x = Mixed(), grid(P_world, [P_world.size, 1])
    with distdl.parameter_layout(layout):
        ours = distdl.distribute(model, P_x)
    x = noise((4, 3))
    problems = []
    for _ in range(2):
        results, expected = distdl.gather(ours(distdl.scatter(x, P_x)), ours.output_partition), model(x)
        pairs = zip(results, expected, strict=True)
        problems += [f"{a.dtype}" for a, b in pairs if job.rank == 0 and (a.dtype != b.dtype or not a.allclose(b))]
        for network in (ours, model):
            network.low.half()  # a module within alone
            network.low.bfloat16()
            network.norm.float().double()
    assert_none([" ".join(problems)])


@pytest.mark.parametrize("step", [1, -1])
def test_weights_come_from_the_first_worker(step):
    """The first worker need not be rank 0: each replica may have ranks of its own."""
    torch.manual_seed(job.rank)
    model = Residual().double()
    P = grid(P_world, [1, 1, P_world.size, 1], range(job.size)[::step])
    state = distdl.sequential_state_dict(distdl.distribute(model, P), P.ranks[0])
    assert all(together(all(torch.equal(value, model.state_dict()[name]) for name, value in state.items())))
    P_own = P_world.create_cartesian_topology_partition([job.size, 1, 1, 1, 1])
    own = distdl.distribute(model, P_own.create_cartesian_subtopology_partition([False, *[True] * 4]))
    state = distdl.sequential_state_dict(own, job.rank)
    assert all(together(all(torch.equal(state[name], value) for name, value in model.state_dict().items())))


def test_a_model_on_the_meta_device_takes_weights_afterwards():
    torch.manual_seed(0)
    model = Residual().double()
    with torch.device("meta"):
        empty = Residual().double()
    P_x = grid(P_world, [1, 1, P_world.size, 1])
    ours = distdl.distribute(empty, P_x)
    distdl.load_sequential(ours, model.state_dict())
    whole = noise((2, 2, 8, 8))
    y = ours.eval()(distdl.scatter(whole, P_x))
    assert_none([off(distdl.gather(y, ours.output_partition), model.eval()(whole))])


@pytest.mark.parametrize("kind", ["sharded", "replicated"])
def test_parameter_layouts_give_the_same_numbers(kind):
    torch.manual_seed(0)
    model = Dense().double()
    with distdl.parameter_layout(kind):
        assert_equal_models(model, (2, 2, 8, 6), [1, 1, P_world.size, 1])


def test_second_derivatives():
    torch.manual_seed(0)
    model = Tokens().double()
    P_x = grid(P_world, [1, 1, 1, P_world.size])
    ours = distdl.distribute(model, P_x)

    def second(network, x, parameters, gather=lambda y: y):
        loss = gather(network(x)).tanh().sum()
        first = torch.autograd.grad(loss, parameters, create_graph=True)
        torch.stack([gradient.square().sum() for gradient in first]).sum().backward()

    whole = noise((2, 2, 6, 9))
    second(ours, distdl.scatter(whole, P_x), [*ours.parameters()], lambda y: distdl.gather(y, ours.output_partition))
    second(model, whole, [*model.parameters()])
    gradients = distdl.sequential_gradients(ours)
    expected = {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}
    assert_none([off(gradients.get(name), gradient, 1e-8) for name, gradient in expected.items()])


def test_modes_converted_and_copied_models():
    torch.manual_seed(0)
    model = Residual().double()
    P_x = grid(P_world, [1, 1, P_world.size, 1])
    ours = distdl.distribute(model, P_x)
    whole = noise((2, 2, 8, 6))
    for training in (False, True, False):
        y = ours.train(training)(distdl.scatter(whole, P_x))
        assert_none([off(distdl.gather(y, ours.output_partition), model.train(training)(whole))])
    twin = copy.deepcopy(ours)
    x = distdl.scatter(whole, P_x)
    assert torch.equal(twin(x), ours(x))
    ours.float()
    y = ours(x.float())
    assert y.dtype == torch.float32
    assert_none([off(distdl.gather(y, ours.output_partition), model(whole), 1e-4)])


class Mode(torch.nn.Module):
    """Computes something else in training, without layers."""

    def forward(self, x):
        return (x, x * 2) if self.training else x * 3


def test_modes_of_the_model_itself():
    ours = distdl.distribute(Mode(), grid(P_world, [P_world.size, 1]))
    x = torch.ones(1, 2)
    assert len(ours(x)) == 2
    assert together(torch.equal(ours.eval()(x), x * 3)) == [True] * job.size
    assert len(ours.train()(x)) == 2


def test_autocast():
    torch.manual_seed(0)
    model = Residual().eval()
    P_x = grid(P_world, [1, 1, P_world.size, 1])
    ours = distdl.distribute(model, P_x)
    whole = noise((2, 2, 8, 6)).float()
    with torch.autocast("cpu", torch.bfloat16):
        y = distdl.gather(ours(distdl.scatter(whole, P_x)), ours.output_partition)
        expected = model(whole)
    assert_none(["" if job.rank or y.dtype == expected.dtype else str(y.dtype), off(y, expected, 0.05)])  # of 8 bits


class Remembering(torch.nn.Module):
    """Counts its calls, and keeps a running mean and the last row of means."""

    def __init__(self):
        super().__init__()
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.register_buffer("mean", torch.zeros(2, dtype=torch.float64))
        self.register_buffer("rows", torch.zeros(3, 2, dtype=torch.float64))

    def forward(self, x):
        self.size = x.shape[-1]  # is noted in each call
        with torch.no_grad():
            mean = x.mean((0, 2))
            self.count += 1
            self.mean.mul_(0.9).add_(0.1 * mean)
            self.rows = torch.cat([self.rows[1:], mean[None]])
        return x - self.mean[:, None], self.mean


def test_buffers_that_a_model_writes():
    for split in partitions(3):
        model, P_x = Remembering(), grid(P_world, split)
        ours = distdl.distribute(model, P_x)
        for i in range(3):
            whole = noise((2, 2, 5), seed=i)
            y = distdl.gather(ours(distdl.scatter(whole, P_x)), ours.output_partition)
            assert_none([off(result, expected) for result, expected in zip(y, model(whole), strict=True)])
        state = distdl.sequential_state_dict(ours)
        assert_none([off(state[name], buffer) if job.rank == 0 else "" for name, buffer in model.named_buffers()])
        for name, buffer in ours.module.named_buffers() if P_x.active else ():
            torch.testing.assert_close(buffer, model.get_buffer(name))  # on each worker


def test_output_partition_has_the_structure_of_the_results():
    P_x = grid(P_world, [1, 1, P_world.size, 1])
    ours = distdl.distribute(Dense(), P_x)
    y = ours(distdl.scatter(torch.rand(1, 2, 8, 8), P_x))
    assert tree_structure(y) == tree_structure(tree_leaves_replaced(ours.output_partition))
    assert list(ours.output_partition["fine"].shape) == [1, 1, P_world.size, 1]


def tree_leaves_replaced(partitions):
    """Partitions are leaves, like tensors."""
    return torch.utils._pytree.tree_map(lambda partition: 0, partitions)


def test_checkpoints_go_to_the_sequential_model_and_back(tmp_path):
    torch.manual_seed(0)
    model = Residual()
    P_x = grid(P_world, [1, 1, P_world.size, 1])
    ours = distdl.distribute(model, P_x)
    path = job.bcast(str(tmp_path / "model.safetensors"))
    distdl.save(path, ours)
    with torch.device("meta"):
        empty = Residual()
    other = distdl.distribute(empty, P_x)
    distdl.load(path, other)
    state = distdl.sequential_state_dict(other)
    equal = (
        all(torch.equal(state[name], value) for name, value in model.state_dict().items()) if job.rank == 0 else True
    )
    assert all(together(equal))


class Named(torch.nn.Module):
    """Children under names that layers use themselves, and a child under two names."""

    def __init__(self):
        super().__init__()
        self.blocks = torch.nn.ModuleList([torch.nn.Conv2d(2, 2, 3, padding=1), torch.nn.BatchNorm2d(2)])
        self.compute = self.blocks[0]

    def forward(self, x):
        return self.compute(self.blocks[1](self.blocks[0](x)))


@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
def test_names_that_layers_have_too_and_modules_under_two_names(training):
    torch.manual_seed(0)
    model = Named().double()
    assert_equal_models(model, (2, 2, 5, 4), [1, 1, P_world.size, 1], training)
    state = distdl.sequential_state_dict(distdl.distribute(model, grid(P_world, [1, 1, P_world.size, 1])))
    assert job.rank or state.keys() == model.state_dict().keys()


def test_a_sequential_is_indexed_counted_and_iterated():
    ours = distdl.distribute(Dense(), grid(P_world, [1, 1, P_world.size, 1]))
    assert ours  # it cannot be counted
    for look in (lambda: ours[0], lambda: len(ours), lambda: list(ours)):
        with pytest.raises(TypeError, match="a Dense has no modules by numbers or keys"):
            look()
    model = torch.nn.Sequential(torch.nn.Conv2d(2, 3, 3), torch.nn.ReLU(), torch.nn.Conv2d(3, 2, 1)).double()
    ours = distdl.distribute(model, grid(P_world, [1, 1, P_world.size, 1]))
    assert len(ours) == 3
    assert [*ours] == [ours[0], ours[1], ours[2]]
    assert ours[-1].weight is ours.get_parameter("2.weight")
    assert [*ours[:2]] == [ours[0], ours[1]]
    ours[0].requires_grad_(False)
    ours(distdl.scatter(noise((2, 2, 9, 7)), ours.P_x)).sum().backward()
    assert all(parameter.grad is None for parameter in ours[0].parameters())
    assert all(parameter.grad is not None for parameter in ours[2].parameters())

"""Models that distdl.distribute has split, beside themselves in one process."""

import copy
import math
import xml.etree.ElementTree

import pytest
import torch
import torch.nn.functional as F
from torch.utils._pytree import tree_leaves, tree_structure

import distdl
from support.blocks import grid
from support.models import Dense, Line, Residual, Tokens, Volume
from support.ranks import job, raises_everywhere, together
from support.tensors import values

P_world = distdl.Partition(job)


def partitions(dims):
    """Ways to split the batch and space over all ranks of the job, and over one less."""
    found = []
    for size in sorted({P_world.size, max(1, P_world.size - 1)}):
        found += [[size if i == d else 1 for i in range(dims)] for d in (0, *range(2, dims))]
        if size == 4 and dims > 3:
            found.append([1] * (dims - 2) + [2, 2])
    return found


def noise(shape, seed=0):
    """Numbers that no operation maps to equal ones."""
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def off(ours, expected, tolerance=1e-10):
    """What is wrong with a tensor on the first rank: "" if it is the expected one up to rounding."""
    if job.rank:
        return ""
    if ours.shape != expected.shape:
        return f"shape {list(ours.shape)}, not {list(expected.shape)}"
    largest = max(1e-3, float(expected.detach().abs().max())) if expected.numel() else 1.0
    error = float((ours.double() - expected.double()).detach().abs().max()) if ours.numel() else 0.0
    return "" if error <= tolerance * largest else f"off by {error:.1e} of {largest:.1e}"


def assert_none(problems):
    """On all ranks, so that none goes on alone."""
    found = [together(problem)[0] for problem in problems]
    assert not any(found), found


def step(model, x, gather=lambda y: y):
    """What a model returns, and the loss of it."""
    leaves = [one for one in tree_leaves(gather(model(x))) if isinstance(one, torch.Tensor)]
    loss = sum((one * noise(one.shape, seed=i)).sum() for i, one in enumerate(leaves))
    return leaves, loss


def assert_equal_models(model, shape, split, training=True, plan=None):
    """Results and gradients, and what training leaves in buffers. Returns the model over partitions."""
    sequential = copy.deepcopy(model).train(training)
    P_x = grid(P_world, split)
    ours = distdl.distribute(model, P_x, plan=plan).train(training)
    whole = noise(shape, seed=1).requires_grad_()
    x = distdl.scatter(whole.detach(), P_x).detach().requires_grad_()
    leaves, loss = step(ours, x, lambda y: distdl.gather(y, ours.output_partition))
    loss.backward()
    expected, loss = step(sequential, whole)
    loss.backward()
    gradients, state = distdl.sequential_gradients(ours), distdl.sequential_state_dict(ours)
    gradient_of_x = distdl.gather(x.grad, P_x)
    problems = []
    if job.rank == 0:
        problems += [off(one, other) for one, other in zip(leaves, expected, strict=True)]
        problems.append(off(gradient_of_x, whole.grad, 1e-9))
        for name, parameter in sequential.named_parameters():
            wrong = off(gradients[name], parameter.grad, 1e-9)
            problems.append(wrong and f"gradient of {name} {wrong}")
        problems += [off(state[name], buffer) for name, buffer in sequential.named_buffers()]
    assert_none([" ".join(filter(None, [str(split), *problems])) if any(problems) else ""])
    return ours


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


@pytest.mark.parametrize("shape", [(1, 2, 1, 1), (2, 2, 3, 1), (1, 2, 2, 17)], ids=str)
def test_images_of_any_size(shape):
    torch.manual_seed(0)
    model = Residual().double().eval()
    for split in partitions(4):
        assert_equal_models(model, shape, split, training=False)


def test_weights_come_from_the_first_worker():
    torch.manual_seed(job.rank)
    model = Residual().double()
    ours = distdl.distribute(model, grid(P_world, [1, 1, P_world.size, 1]))
    state = distdl.sequential_state_dict(ours)
    equal = (
        all(torch.equal(state[name], value) for name, value in model.state_dict().items()) if job.rank == 0 else True
    )
    assert all(together(equal))


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


def workers_of(model, path):
    """The workers along each dimension, and the ranks, of each operation in a module."""
    steps = model.program.plan.steps
    return {(one.workers.splits, one.workers.ranks) for one in steps if one.node.path == path}


def test_plans_say_which_workers_compute_a_module():
    torch.manual_seed(0)
    n, last = P_world.size, P_world.size - 1
    columns, alone, batch = grid(P_world, [1, 1, 1, n]), grid(P_world, [1], [last]), grid(P_world, [n, 1, 1, 1])
    for plan in (
        {"conv": columns, "norm": columns},
        {"stem": batch, "head": alone},
        {"*": columns, "n*": grid(P_world, [1, 1, 1, 1], [last]), "norm": columns, "head": alone},
    ):
        ours = assert_equal_models(Residual().double(), (3, 2, 9, 7), [1, 1, n, 1], plan=plan)
        if "stem" in plan:
            assert workers_of(ours, "stem") == {((n, 1, 1, 1), tuple(range(n)))}
        else:
            assert workers_of(ours, "conv") == workers_of(ours, "norm") == {((1, 1, 1, n), tuple(range(n)))}
        if "head" in plan:
            assert workers_of(ours, "head") == {((1, 1), (last,))}
    assert_equal_models(Dense().double(), (2, 2, 8, 6), [1, 1, n, 1], plan={"": alone})
    channels = grid(P_world, [1, n, 1, 1, 1])  # in which nothing with parameters can be split
    assert_equal_models(Volume().double(), (2, 1, 6, 5, 4), [n, 1, 1, 1, 1], plan={"*": channels})


def test_plans_are_checked_on_all_ranks():
    P_x = grid(P_world, [1, 1, P_world.size, 1])
    alone = grid(P_world, [1], [0])
    raises_everywhere(TypeError, "plan is a list", lambda: distdl.distribute(Residual(), P_x, plan=[alone]))
    raises_everywhere(ValueError, "no module", lambda: distdl.distribute(Residual(), P_x, plan={"body": alone}))
    if P_world.size > 1:
        outside = grid(P_world, [1], [P_world.size - 1])
        raises_everywhere(ValueError, "workers of P_x", lambda: distdl.distribute(
            Residual(), grid(P_world, [1, 1, 1, 1], [0]), plan={"head": outside}))  # fmt: skip
        mine = alone if job.rank else outside
        raises_everywhere(ValueError, "different things", lambda: distdl.distribute(
            Residual(), P_x, plan={"head": mine}))  # fmt: skip


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
        torch.stack([one.square().sum() for one in first]).sum().backward()

    whole = noise((2, 2, 6, 9))
    second(ours, distdl.scatter(whole, P_x), [*ours.parameters()], lambda y: distdl.gather(y, ours.output_partition))
    second(model, whole, [*model.parameters()])
    gradients = distdl.sequential_gradients(ours)
    given = {name: one.grad for name, one in model.named_parameters() if one.grad is not None}
    assert_none([off(gradients.get(name), gradient, 1e-8) for name, gradient in given.items()])


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


class Several(torch.nn.Module):
    """Calls without a rule, on several lines."""

    def forward(self, x):
        y = torch.linalg.qr(x)[0]
        return torch.linalg.inv(y @ y.mT + torch.eye(3))


def test_all_calls_without_a_rule_are_in_one_error():
    P_x = grid(P_world, [P_world.size, 1, 1])
    ours = distdl.distribute(Several(), P_x)
    x = distdl.scatter(torch.rand(4, 3, 2), P_x)
    error = raises_everywhere(NotImplementedError, "qr", lambda: ours(x), seconds=20.0)
    assert "inv" in error
    assert "y = torch.linalg.qr(x)[0]" in error
    assert "fallback='gather'" in error


def test_fallback_computes_on_one_worker():
    P_x = grid(P_world, [P_world.size, 1, 1])
    model = Several().double()
    ours = distdl.distribute(model, P_x, fallback="gather")
    whole = noise((4, 3, 2))
    y = ours(distdl.scatter(whole, P_x))
    assert_none([off(distdl.gather(y, ours.output_partition), model(whole))])
    assert [row.operation for row in distdl.report(ours).rows if row.gathered]


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
            assert_none([off(one, other) for one, other in zip(y, model(whole), strict=True)])
        state = distdl.sequential_state_dict(ours)
        assert_none([off(state[name], buffer) if job.rank == 0 else "" for name, buffer in model.named_buffers()])
        for name, buffer in ours.module.named_buffers() if P_x.active else ():
            torch.testing.assert_close(buffer, model.get_buffer(name))  # on each worker


class Counting(torch.nn.Module):
    """Counts its calls in an attribute."""

    count = 0

    def forward(self, x):
        self.count += 1
        return x * self.count


class Graph(torch.nn.Module):
    """Keeps something with its graph."""

    def __init__(self):
        super().__init__()
        self.register_buffer("last", torch.zeros(2))

    def forward(self, x):
        self.last = x.mean(0)
        return x


class Clamping(torch.nn.Module):
    """Writes into a parameter."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(2))

    def forward(self, x):
        with torch.no_grad():
            self.weight.clamp_(0.0, 0.5)
        return x * self.weight


@pytest.mark.parametrize(
    ("model", "words"),
    [(Counting, "count=2"), (Graph, "derivative into its buffer last"), (Clamping, "parameter weight")],
)
def test_models_that_change_themselves_are_refused(model, words):
    ours = distdl.distribute(model(), grid(P_world, [P_world.size, 1]))
    for _ in range(2):
        raises_everywhere(NotImplementedError, words, lambda: ours(torch.ones(1, 2)), seconds=20.0)


class Branching(torch.nn.Module):
    """Looks at values."""

    def forward(self, x):
        return x if x.sum() > 0 else -x


def test_models_that_look_at_values_are_refused():
    ours = distdl.distribute(Branching(), grid(P_world, [P_world.size, 1]))
    x = torch.ones(1, 2)
    error = raises_everywhere(NotImplementedError, "values of a tensor", lambda: ours(x), seconds=20.0)
    assert "return x if x.sum() > 0 else -x" in error


def test_mistakes_raise_on_all_ranks():
    P_x = grid(P_world, [1, 1, P_world.size, 1])
    raises_everywhere(ValueError, "fallback", lambda: distdl.distribute(Residual(), P_x, fallback="no"))
    raises_everywhere(TypeError, "torch.nn.Module", lambda: distdl.distribute(F.relu, P_x))
    last = P_world.size - 1
    if last:
        fallback = "gather" if job.rank == last else "error"
        raises_everywhere(ValueError, "fallback", lambda: distdl.distribute(Residual(), P_x, fallback=fallback))
        ours = distdl.distribute(Residual(), P_x)
        x = torch.rand(1, 2 + (job.rank == last), 4, 4)
        raises_everywhere(ValueError, "blocks|shape", lambda: ours(x))
        raises_everywhere(ValueError, "root", lambda: distdl.scatter(x, P_x, root=int(job.rank == last)))
    raises_everywhere(ValueError, "root", lambda: distdl.scatter(None, P_x, root=99))
    raises_everywhere(TypeError, "1 tensors and 0 partitions", lambda: distdl.gather(torch.ones(1), []))
    raises_everywhere(RuntimeError, "first call", lambda: distdl.distribute(Residual(), P_x).output_partition)


@pytest.mark.parametrize("root", [0, -1], ids=["first", "last"])
def test_scatter_and_gather_are_adjoint(root):
    root %= P_world.size
    whole = values((3, 5, 4))
    for split in partitions(3):
        P_x = grid(P_world, split)
        x = whole.clone().requires_grad_() if job.rank == root else None
        block = distdl.scatter(x, P_x, root)
        back = distdl.gather(block, P_x, root)
        assert torch.equal(back, whole) if job.rank == root else back.numel() == 0
        if block.requires_grad:  # not on ranks that neither have nor get anything
            (block * block.detach()).sum().backward()
        if job.rank == root:
            assert torch.equal(x.grad, whole)


def test_gather_takes_structures():
    P_x, P_one = grid(P_world, [P_world.size, 1]), grid(P_world, [1])
    y = {"blocks": torch.full((2, 1), float(job.rank)) if P_x.active else distdl.zero_volume_tensor(), "n": 3}
    y["one"] = torch.ones(2) if P_one.active else distdl.zero_volume_tensor()
    found = distdl.gather(y, {"blocks": P_x, "n": None, "one": P_one})
    assert found["n"] == 3
    assert found["blocks"].numel() == (2 * P_world.size if job.rank == 0 else 0)


def test_output_partition_has_the_structure_of_the_results():
    P_x = grid(P_world, [1, 1, P_world.size, 1])
    ours = distdl.distribute(Dense(), P_x)
    y = ours(distdl.scatter(torch.rand(1, 2, 8, 8), P_x))
    assert tree_structure(y) == tree_structure(tree_leaves_replaced(ours.output_partition))
    assert list(ours.output_partition["fine"].shape) == [1, 1, P_world.size, 1]


def tree_leaves_replaced(partitions):
    """Partitions are leaves, like tensors."""
    return torch.utils._pytree.tree_map(lambda one: 0, partitions)


def test_report():
    P_x = grid(P_world, [1, 1, P_world.size, 1])
    ours = distdl.distribute(Residual(), P_x)
    raises_everywhere(RuntimeError, "called before", lambda: distdl.report(ours))
    raises_everywhere(TypeError, "Residual", lambda: distdl.report(Residual()))
    ours(distdl.scatter(torch.rand(2, 2, 8, 8), P_x))
    found = distdl.report(ours)
    assert [row.operation for row in found.rows] == ["Conv2d", "relu", "Conv2d", "BatchNorm2d", "add", "relu", "mean",
                                                     "Linear"]  # fmt: skip
    assert found.rows[0].shape == (2, 4, 4, 4)
    assert found.rows[0].splits == (1, 1, P_world.size, 1)
    rows = math.ceil(4 / P_world.size)
    assert found.rows[0].memory == 2 * 4 * rows * 4 * 4
    assert found.parameters == 4 * sum(one.numel() for one in Residual().parameters())
    assert len(set(together(str(found)))) == 1
    assert "Conv2d" in str(found)


def test_pictures_are_svg(tmp_path):
    P_x = grid(P_world, [1, 1, P_world.size, 1])
    ours = distdl.distribute(Tokens(), P_x)
    ours(distdl.scatter(torch.rand(1, 2, 9, 9), P_x))
    distdl.report(ours).picture(tmp_path / "model.svg")
    texts = [one.text for one in xml.etree.ElementTree.parse(tmp_path / "model.svg").iter() if one.text]
    assert any("softmax" in one for one in texts)


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

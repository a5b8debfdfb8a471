"""Models that distdl.distribute refuses, and mistakes that raise on all ranks."""

import pytest
import torch
import torch.nn.functional as F

import distdl
from distdl.models.operations.table import RULES
from support.blocks import grid
from support.distributed import assert_equal_models, assert_none, noise, off
from support.models import Function, Residual
from support.ranks import job, raises_everywhere

P_world = distdl.Partition(job)


@pytest.fixture
def _without_rules(monkeypatch):
    for name in ("linalg_qr", "linalg_inv"):
        monkeypatch.delitem(RULES, name, raising=False)


class Several(torch.nn.Module):
    """Calls without a rule, on several lines."""

    def forward(self, x):
        y = torch.linalg.qr(x)[0]
        return torch.linalg.inv(y @ y.mT + torch.eye(3))


@pytest.mark.usefixtures("_without_rules")
def test_all_calls_without_a_rule_are_in_one_error():
    P_x = grid(P_world, [P_world.size, 1, 1])
    ours = distdl.distribute(Several(), P_x)
    x = distdl.scatter(torch.rand(4, 3, 2), P_x)
    error = raises_everywhere(NotImplementedError, "qr", lambda: ours(x), seconds=20.0)
    assert "inv" in error
    assert "y = torch.linalg.qr(x)[0]" in error
    assert "fallback='gather'" in error


@pytest.mark.usefixtures("_without_rules")
def test_fallback_computes_on_one_worker():
    P_x = grid(P_world, [P_world.size, 1, 1])
    model = Several().double()
    ours = distdl.distribute(model, P_x, fallback="gather")
    whole = noise((4, 3, 2))
    y = ours(distdl.scatter(whole, P_x))
    assert_none([off(distdl.gather(y, ours.output_partition), model(whole))])
    assert [row.operation for row in distdl.report(ours).rows if row.gathered]


def test_operators_that_need_values():
    P_x = grid(P_world, [P_world.size, 1])
    ours = distdl.distribute(Function(lambda x: torch.nested.nested_tensor([*x]).to_padded_tensor(0.0)), P_x)
    x = distdl.scatter(torch.rand(4, 3), P_x)
    error = raises_everywhere(NotImplementedError, "cannot compute .*nested", lambda: ours(x), seconds=20.0)
    assert "test_refused.py:" in error
    assert "register_fake" in error


def test_parameters_keep_asking_for_gradients():
    P_x = grid(P_world, [P_world.size, 1])
    ours = distdl.distribute(Function(lambda layer, x: layer.requires_grad_(False)(x), torch.nn.Linear(3, 3)), P_x)
    x = distdl.scatter(torch.rand(4, 3), P_x)
    raises_everywhere(NotImplementedError, "whether a parameter asks", lambda: ours(x), seconds=20.0)
    same = distdl.distribute(Function(lambda layer, x: layer.requires_grad_()(x), torch.nn.Linear(3, 3)), P_x)
    assert same(x).requires_grad or not P_x.active


class Encoding(torch.nn.Linear):
    @property
    def width(self):
        return self.out_features

    def encode(self, x):
        return self(x)


def test_other_methods_than_forward():
    ours = distdl.distribute(Encoding(3, 3), grid(P_world, [P_world.size, 1]))
    for name, kind in (("encode", "method"), ("width", "property")):
        with pytest.raises(AttributeError, match=f"{name} is a {kind} of the module Encoding"):
            getattr(ours, name)
    assert ours.out_features == 3


def noisy(x, generator=None):
    return x + torch.rand(3, generator=generator)


def test_generators_are_refused():
    P_x = grid(P_world, [P_world.size, 1])
    ours = distdl.distribute(noisy, P_x)
    x, last = distdl.scatter(torch.rand(4, 3), P_x), P_world.size - 1
    arguments = {"generator": torch.Generator() if P_world.rank == last else None}
    raises_everywhere(TypeError, "torch.manual_seed", lambda: ours(x, **arguments), seconds=20.0)


@pytest.mark.usefixtures("_without_rules")
def test_calls_that_are_refused_for_the_same_reason_are_one_line():
    P_x = grid(P_world, [P_world.size, 1, 1])
    ours = distdl.distribute(Function(lambda x: sum(torch.linalg.qr(x + i)[0] for i in range(5))), P_x)
    x = distdl.scatter(torch.rand(4, 3, 2), P_x)
    error = raises_everywhere(NotImplementedError, "5 calls cannot be split", lambda: ours(x), seconds=20.0)
    assert "and 4 more calls of linalg_qr: no rule" in error
    assert len(error.splitlines()) == 3


@pytest.mark.ranks(1)
def test_a_mask_without_dimensions_has_no_rule():
    with pytest.raises(NotImplementedError, match="an index that is True or False"):
        distdl.report(lambda x: x[torch.tensor(True)] * 2, P_x=[2, 1], shape=(4, 6))


class WithSum(torch.autograd.Function):
    """Results of different numbers of dimensions."""

    @staticmethod
    def forward(ctx, x):
        return x * 2, x.sum()

    @staticmethod
    def backward(ctx, of_product, of_sum):
        return of_product * 2 + of_sum


def test_fallback_of_a_function_with_several_results():
    model = Function(lambda x: [tensor.sin() for tensor in WithSum.apply(x)])
    for split in ([P_world.size, 1], [1, P_world.size]):
        assert_equal_models(model, (4, 3), split, fallback="gather")


class Counting(torch.nn.Module):
    """Counts its calls in an attribute."""

    count = 0

    def forward(self, x):
        self.count += 1
        return x * self.count


class CountingInADict(torch.nn.Module):
    """Counts its calls in a dict."""

    def __init__(self):
        super().__init__()
        self.seen = {"calls": 0}

    def forward(self, x):
        self.seen["calls"] += 1
        return x * self.seen["calls"]


class Remembered(torch.nn.Module):
    """Adds what the last call gave."""

    last = None

    def forward(self, x):
        self.last = x if self.last is None else x + self.last
        return self.last


class Graph(torch.nn.Module):
    """Keeps something with its graph."""

    def __init__(self):
        super().__init__()
        self.register_buffer("last", torch.zeros(2))

    def forward(self, x):
        self.last = x.mean(0)
        return x


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (Counting, "count=2"),
        (CountingInADict, r"seen\[0\]="),
        (Remembered, "an earlier call"),
        (lambda: Function(torch.func.vmap(torch.sin)), "torch.func.vmap, .* where the model returns it"),
        (Graph, "writes into its buffer last what depends on an input"),
    ],
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


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda x: x[(x > 0).nonzero(as_tuple=True)], r"nonzero .*torch.where"),
        (lambda x: torch.bincount((x * 9).long().flatten()), r"bincount .*one_hot"),
        (lambda x: F.one_hot((x * 9).long()), r"one_hot .*num_classes"),
    ],
    ids=["nonzero", "bincount", "one_hot"],
)
def test_what_to_write_in_place_of_shapes_that_values_say(function, words):
    ours = distdl.distribute(Function(function), grid(P_world, [P_world.size, 1]))
    x = torch.ones(1, 2)
    raises_everywhere(NotImplementedError, words, lambda: ours(x), seconds=20.0)


class Neighbors(torch.nn.Module):
    """Adds the features of neighbors in a graph, which is a sparse matrix."""

    def __init__(self):
        super().__init__()
        self.register_buffer("edges", torch.eye(4).to_sparse())

    def forward(self, x):
        return torch.sparse.mm(self.edges, x)


def test_sparse_tensors_of_a_state_are_refused():
    P_x = grid(P_world, [1, job.size])
    raises_everywhere(TypeError, "edges of Neighbors is sparse", lambda: distdl.distribute(Neighbors(), P_x))


def test_mistakes_raise_on_all_ranks():
    P_x = grid(P_world, [1, 1, P_world.size, 1])
    raises_everywhere(ValueError, "fallback", lambda: distdl.distribute(Residual(), P_x, fallback="no"))
    raises_everywhere(TypeError, "torch.nn.Module", lambda: distdl.distribute(torch.nn.ReLU, P_x))
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


@pytest.mark.filterwarnings("ignore:.torch.jit.trace")
@pytest.mark.parametrize("called", [False, True])
def test_a_recorder_of_torch_around_a_model(called):
    """Also before its first call, when there is no output_partition to look at."""
    P_x = grid(P_world, [job.size, 1])
    ours, x = distdl.distribute(torch.nn.Linear(3, 2), P_x), torch.ones(2, 3)
    if called:
        ours(x)
    raises_everywhere(RuntimeError, "torch.export", lambda: torch.jit.trace(ours, x))


class Misfit(torch.nn.Module):
    def forward(self, x):
        return x + torch.ones(x.shape[-1] + 1)


def test_errors_of_torch_name_the_line_of_the_program(capfd):
    P_x = grid(P_world, [job.size, 1])
    ours = distdl.distribute(Misfit(), P_x)
    line = r"test_refused.py:\d+: return x \+ torch.ones"
    raises_everywhere(RuntimeError, line, lambda: ours(torch.ones(2, 3)))
    assert "Traceback" not in capfd.readouterr().err
    ours = distdl.distribute(torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.RReLU()), P_x, fallback="error")
    with pytest.raises(NotImplementedError) as error:
        ours(torch.ones(2, 3))
    assert "%" not in str(error.value)


class Growing(torch.nn.Module):
    """A module that is made in the first call, or anew in each."""

    def __init__(self, anew):
        super().__init__()
        self.anew = anew
        if anew:
            self.last = torch.nn.Linear(3, 3)

    def forward(self, x):
        if self.anew or not hasattr(self, "last"):
            self.last = torch.nn.Linear(3, 3)
        return self.last(x) if x.max() > 0 else x


@pytest.mark.parametrize("values", ["refuse", "agree"])
@pytest.mark.parametrize("anew", [True, False])
def test_modules_that_a_call_makes(anew, values):
    ours = distdl.distribute(Growing(anew), grid(P_world, [P_world.size, 1]), values=values)
    for _ in range(2):
        raises_everywhere(NotImplementedError, "makes its module last, a Linear", lambda: ours(torch.ones(2, 3)))

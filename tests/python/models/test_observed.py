"""Operators of libraries and functions with a derivative of their own: split along the dimensions that allow it."""

import math

import pytest
import torch
from torch.autograd import Function as Autograd

import distdl
from distdl.models.capture.recording import Node, Value
from distdl.models.operations.operation import NoRuleError, RandomError
from distdl.models.operations.table import RULES
from distdl.models.rules.trials import Trials
from support.blocks import grid
from support.distributed import assert_equal_models, noise, partitions
from support.models import Function
from support.ranks import job, raises_everywhere

P_world = distdl.Partition(job)
CPU = torch.device("cpu")
LIBRARY = torch.library.Library("distdl_tests", "DEF")


def operator(name, schema, function, gradient=None):
    """An operator of a library, which shows neither what it computes nor its shapes."""
    LIBRARY.define(f"{name}{schema}")
    LIBRARY.impl(name, function, "CPU")
    torch.library.register_fake(f"distdl_tests::{name}", function, lib=LIBRARY)
    if gradient is not None:
        torch.library.register_autograd(f"distdl_tests::{name}", gradient, setup_context=kept, lib=LIBRARY)


def kept(ctx, inputs, output):
    ctx.save_for_backward(*(x for x in inputs if isinstance(x, torch.Tensor)))


# A sparse contraction of rows and columns with a table of indices, as in convolutions on the sphere


def contracted(x, rows, columns, values, count):
    """The sums over the points of a table, for each of its rows and all shifts along the last dimension."""
    shifted = torch.stack([x.roll(-shift, 3).flatten(2) for shift in range(x.shape[3])], 2)
    y = x.new_zeros(*x.shape[:2], count, x.shape[3])
    return y.index_add(2, rows, (shifted[..., columns] * values).transpose(2, 3))


def of_contracted(ctx, gradient):
    x, rows, columns, values = ctx.saved_tensors
    with torch.enable_grad():
        z = x.detach().requires_grad_()
        y = contracted(z, rows, columns, values, gradient.shape[2])
    return *torch.autograd.grad(y, z, gradient), None, None, None, None


operator("contract", "(Tensor x, Tensor rows, Tensor columns, Tensor values, int count) -> Tensor", contracted,
         of_contracted)  # fmt: skip
operator("channels_last", "(Tensor x) -> Tensor", lambda x: x.permute(0, 2, 3, 1).contiguous(),
         lambda ctx, gradient: gradient.permute(0, 3, 1, 2))  # fmt: skip
operator("roll", "(Tensor x, int[] shifts, int[] dims) -> Tensor", lambda x, shifts, dims: 2 * x,
         lambda ctx, gradient: (2 * gradient, None, None))  # fmt: skip
operator("noisy", "(Tensor x) -> Tensor", lambda x: x + torch.rand_like(x))
operator("double_", "(Tensor(a!) x) -> ()", lambda x: None)


class Contraction(torch.nn.Module):
    """A convolution by a table in buffers, between layers."""

    def __init__(self, rows=3, points=7):
        super().__init__()
        self.first, self.last = torch.nn.Conv2d(2, 4, 3, padding=1), torch.nn.Linear(4, 2)
        generator = torch.Generator().manual_seed(0)
        self.register_buffer("rows", torch.randint(rows, (points,), generator=generator))
        self.register_buffer("columns", torch.randint(24, (points,), generator=generator), persistent=False)
        self.register_buffer("values", torch.randn(points, generator=generator))
        self.count = rows

    def forward(self, x):
        x = self.first(x).tanh()
        y = torch.ops.distdl_tests.contract(x, self.rows.long(), self.columns, self.values.to(x.dtype), self.count)
        return self.last(torch.ops.distdl_tests.channels_last.default(y.contiguous()))


@pytest.mark.shared
@pytest.mark.parametrize("training", [True, False])
def test_contraction_with_a_table(training):
    for split in partitions(4):
        ours = assert_equal_models(Contraction().double(), (2, 2, 4, 6), split, training=training)
        row = next(row for row in distdl.report(ours).rows if row.operation == "distdl_tests::contract")
        assert row.workers == math.prod(split)  # by batch and channels
        assert not row.gathered


# Functions with a derivative of their own


class Contiguous(Autograd):
    """A copy in the order of memory, and of the gradient, too."""

    @staticmethod
    def forward(x):
        return torch.view_as_complex(torch.view_as_real(x).contiguous()) if x.is_complex() else x.contiguous()

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, gradient):
        return Contiguous.forward(gradient)


class OfSign(Autograd):
    """The sign, with the gradient of the identity."""

    @staticmethod
    def forward(ctx, x):
        return x.sign()

    @staticmethod
    def backward(ctx, gradient):
        return gradient


class Total(Autograd):
    """Each element divided by the sum of all squares."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x / x.square().sum()

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        square = x.square().sum()
        return gradient / square - 2 * x * (gradient * x).sum() / square**2


class Clipped(Autograd):
    """The identity, whose gradient has a norm of at most 0.1 along the batch."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient * (0.1 / gradient.norm(dim=0, keepdim=True)).clamp(max=1.0)


class Weighted(Autograd):
    """The product with weights of channels, whose gradient is summed by hand."""

    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x * weight[:, None, None]

    @staticmethod
    def backward(ctx, gradient):
        x, weight = ctx.saved_tensors
        return gradient * weight[:, None, None], (gradient * x).sum((0, 2, 3))


class Legendre(torch.nn.Module):
    """A transform along rows and columns and back, as spherical harmonics have it."""

    def __init__(self, rows=6, columns=8):
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.register_buffer("table", torch.randn(columns // 2 + 1, 5, rows, generator=generator))
        self.weight = torch.nn.Parameter(torch.randn(2, 2, 5, generator=generator))
        self.columns = columns

    def forward(self, x):
        z = Contiguous.apply(torch.fft.rfft(x, norm="forward")).transpose(-1, -2)
        parts = [torch.einsum("...mk,mlk->...lm", part.contiguous(), self.table) for part in (z.real, z.imag)]
        z = torch.einsum("...ilm,oil->...olm", torch.complex(*parts), self.weight.to(z.dtype))
        parts = [torch.einsum("...lm,mlk->...km", part.contiguous(), self.table) for part in (z.real, z.imag)]
        return x + Contiguous.apply(torch.fft.irfft(torch.complex(*parts), n=self.columns, norm="forward"))


class WithWeight(torch.nn.Module):
    """A product with weights."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.linspace(0.5, 2.0, 2))

    def forward(self, x):
        return Weighted.apply(x.tanh(), self.weight)


class SparseTable(torch.nn.Module):
    """Products of a sparse table with shifted rows, as the convolution of :class:`Contraction` without an operator."""

    def __init__(self, rows=3, columns=48):
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        index = torch.stack([torch.randint(n, (9,), generator=generator) for n in (2, rows, columns)])
        self.table = torch.sparse_coo_tensor(index, torch.randn(9, generator=generator), (2, rows, columns)).coalesce()

    def forward(self, x):
        z = x.flatten(0, 1).permute(1, 2, 0).expand(2, -1, -1, -1).contiguous()
        table = self.table.to(x.device).to(x.dtype)
        y = torch.zeros(x.shape[3], 2, table.shape[1], z.shape[3], dtype=x.dtype)
        for shift in range(x.shape[3]):
            y[shift] = torch.bmm(table, z.flatten(1, 2))
            z = z.roll(-1, 2)
        return y.permute(3, 1, 2, 0).unflatten(0, x.shape[:2]).sum(2)


MODELS = {
    "sparse table": SparseTable,
    "legendre": Legendre,
    "weight": WithWeight,
    "sign": lambda: Function(lambda x: OfSign.apply(x + 0.1) * x),
    "total": lambda: Function(lambda x: Total.apply(x.exp()).sin()),
    "clipped": lambda: Function(lambda x: Clipped.apply(x.sin()) * x),
    "operator of another name": lambda: Function(lambda x: torch.ops.distdl_tests.roll(x.sin(), [1], [2])),
    "indices of the input": lambda: Function(lambda x: torch.ops.distdl_tests.contract(
        x.sin(), x[0, 0, 0].argsort() % 3, x[0, 1, 0].argsort(), x[0, 0, 1].detach(), 3)),
}  # fmt: skip


@pytest.mark.shared
@pytest.mark.filterwarnings("ignore:Sparse invariant checks")
@pytest.mark.parametrize("name", MODELS)
def test_models(name):
    for split in partitions(4):
        ours = assert_equal_models(MODELS[name]().double(), (2, 2, 6, 8), split)
        gathered = [row.operation for row in distdl.report(ours).rows if row.gathered]
        assert gathered == {"total": ["Total"], "indices of the input": ["distdl_tests::contract"]}.get(name, [])


# What is observed


def dims_of(function, *tensors, **options):
    """The dimensions of the result that may be split, with those of the inputs."""
    values = [Value(i, tuple(x.shape), x.dtype, x.is_floating_point() or x.is_complex()) for i, x in enumerate(tensors)]
    results = function(*tensors, **options)
    several = results if isinstance(results, tuple) else (results,)
    made = tuple(Value(9 + i, tuple(y.shape), y.dtype) for i, y in enumerate(several))
    node = Node(function, "f", tuple(values), options, made, "", "", records_gradients=True)
    tables = [None if x.is_floating_point() or x.is_complex() else x for x in tensors]
    return {dim.output: dim.inputs for dim in Trials(node, tables, CPU).common_dims()}


CUBE = (2, 3, 4)
OBSERVED = {
    "element": (torch.sin, [CUBE], {0: (0,), 1: (1,), 2: (2,)}),
    "complex element": (lambda x: torch.complex(x, x.cos()), [CUBE], {0: (0,), 1: (1,), 2: (2,)}),
    "positive elements": (lambda x: x.log(), [CUBE], {0: (0,), 1: (1,), 2: (2,)}),
    "matrix": (lambda x, y: x @ y, [(3, 4), (4, 5)], {0: (0, None), 1: (None, 1)}),
    "square matrices": (lambda x, y: x @ y, [(2, 4, 4), (2, 4, 4)], {0: (0, 0), 1: (1, None), 2: (None, 2)}),
    "transposed square": (lambda x: x.mT * 2, [(2, 4, 4)], {0: (0,), 1: (2,), 2: (1,)}),
    "softmax": (lambda x: x.softmax(1), [CUBE], {0: (0,), 2: (2,)}),
    "cumulative sum": (lambda x: x.cumsum(2), [CUBE], {0: (0,), 1: (1,)}),
    "position": (lambda x: x + torch.arange(4.0), [CUBE], {0: (0,), 1: (1,)}),
    "groups of channels": (lambda x: x.unflatten(1, (2, 2)).softmax(2).flatten(1, 2), [(2, 4, 3)], {0: (0,), 2: (2,)}),
    "size of the batch": (lambda x: x / len(x), [CUBE], {1: (1,), 2: (2,)}),
    "first of two": (lambda x: x.clamp(min=x[:1]), [(2, 3)], {1: (1,)}),
    "broadcast": (lambda x, y: x * y, [(2, 3), (3,)], {0: (0, None), 1: (1, 0)}),
    "two results": (lambda x: (x.sin(), x.sum(1, keepdim=True)), [CUBE], {0: (0,), 2: (2,)}),
    "comparison": (lambda x: x > 0.1, [CUBE], {0: (0,), 1: (1,), 2: (2,)}),
    "zeros": (lambda x: x * 0, [CUBE], {}),
    "number": (lambda x: x.sum(), [CUBE], {}),
    "gradient of rows": (Clipped.apply, [CUBE], {1: (1,), 2: (2,)}),
}


@pytest.mark.ranks(1)
@pytest.mark.parametrize("name", OBSERVED)
def test_dimensions_that_may_be_split(name):
    function, shapes, expected = OBSERVED[name]
    assert dims_of(function, *(noise(shape, i) for i, shape in enumerate(shapes))) == expected


@pytest.mark.ranks(1)
def test_tables_are_read_whole():
    x, index = noise((2, 6, 3)), torch.tensor([0, 5, 5, 2, 1, 3])
    assert dims_of(lambda x, index: x[:, index], x, index) == {0: (0, None), 2: (2, None)}
    assert dims_of(lambda x, index: x[:, index], x, torch.arange(6)) == {0: (0, None), 2: (2, None)}


@pytest.mark.ranks(1)
def test_nothing_to_observe():
    with pytest.raises(RandomError, match="draws random numbers"):
        dims_of(lambda x: x + torch.rand_like(x), noise((2, 3)))
    with pytest.raises(NoRuleError, match="no finite results"):
        dims_of(lambda x: x / 0, noise((2, 3)))
    calls = []

    def once(x):
        assert not calls, "a second call"
        calls.append(x)
        return x

    with pytest.raises(NoRuleError, match="AssertionError: a second call"):
        dims_of(once, noise((2, 3)))


def written(x):
    torch.ops.distdl_tests.double_(x)
    return x


@pytest.mark.shared
def test_operators_without_a_way_are_refused():
    P_x = grid(P_world, [1, job.size])
    refused = {torch.ops.distdl_tests.noisy: "draws random numbers", written: "double_ writes into tensors"}
    for function, words in refused.items():
        ours = distdl.distribute(Function(function), P_x)
        raises_everywhere(NotImplementedError, words, lambda: ours(torch.ones(1, 2)))  # noqa: B023
    ours = distdl.distribute(Function(torch.ops.distdl_tests.noisy), P_x, fallback="gather", as_sequential=True)
    raises_everywhere(NotImplementedError, "draws random numbers", lambda: ours(torch.ones(1, 2)))


@pytest.mark.ranks(2)
def test_a_rule_comes_first(monkeypatch):
    monkeypatch.setitem(RULES, "distdl_tests::channels_last", RULES["trace"])
    model = Function(lambda x: torch.ops.distdl_tests.channels_last(x.sin()))
    ours = assert_equal_models(model, (2, 3, 4, 2), [2, 1, 1, 1])
    assert [row.workers for row in distdl.report(ours).rows if row.operation == "distdl_tests::channels_last"] == [1]

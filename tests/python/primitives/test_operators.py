"""Properties of every operator: adjointness, derivatives of any order, dtypes, strides, memory."""

import pytest
import torch

import distdl
from support.blocks import block_of, grid
from support.cases import CASES
from support.ranks import job
from support.strides import STRIDES
from support.tensors import ALL_DTYPES, assert_adjoint, same_bits, values

pytestmark = pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
every_operator = pytest.mark.parametrize("make", CASES.values(), ids=CASES)
MOVES = [name for name in CASES if name.startswith(("broadcast", "all_gather", "repartition", "halo"))]
SUMS = [name for name in CASES if name not in MOVES]


class FromGlobal(torch.autograd.Function):
    """This rank's part of a vector that all ranks hold; its adjoint puts the parts together."""

    @staticmethod
    def forward(ctx, whole, parts, rank):
        ctx.parts, ctx.rank = parts, rank
        return whole[parts[rank]].clone()

    @staticmethod
    def backward(ctx, gradient):
        return ToGlobal.apply(gradient, ctx.parts, ctx.rank), None, None


class ToGlobal(torch.autograd.Function):
    """The vector of all ranks' parts, on all ranks; its adjoint takes the own part."""

    @staticmethod
    def forward(ctx, part, parts, rank):
        ctx.parts, ctx.rank = parts, rank
        return torch.cat(job.allgather(part.detach()))

    @staticmethod
    def backward(ctx, gradient):
        return FromGlobal.apply(gradient, ctx.parts, ctx.rank), None, None


def as_one_function(operator, shape):
    """The operator as a map between vectors that all ranks hold, so that gradcheck's perturbations are everyone's."""

    def parts(numel):
        sizes = job.allgather(numel)
        ends = [sum(sizes[: rank + 1]) for rank in range(len(sizes))]
        return [slice(end - size, end) for size, end in zip(sizes, ends, strict=True)]

    inputs = parts(torch.Size(shape).numel())

    def function(whole):
        y = operator(FromGlobal.apply(whole, inputs, job.rank).reshape(shape))
        return ToGlobal.apply(y.reshape(-1), parts(y.numel()), job.rank)

    return function, inputs[-1].stop


@pytest.mark.shared
@every_operator
@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128], ids=str)
def test_gradcheck_and_gradgradcheck(P_world, make, dtype):
    case = make(P_world)
    function, numel = as_one_function(case.operator, case.shape)
    x = torch.randn(numel, dtype=dtype, generator=torch.Generator().manual_seed(3)).requires_grad_()
    # The fast mode compares along random directions, the same on all ranks: enough for a linear map.
    assert torch.autograd.gradcheck(function, (x,), fast_mode=True)
    y_bar = torch.ones_like(function(x)).requires_grad_()
    assert torch.autograd.gradgradcheck(function, (x,), grad_outputs=(y_bar,), fast_mode=True)


@every_operator
@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128], ids=str)
def test_adjoint(P_world, make, dtype):
    case = make(P_world)
    torch.manual_seed(job.rank)
    x = torch.randn(case.shape, dtype=dtype)
    y = torch.randn_like(case.operator(x))
    assert_adjoint(case.operator._operator, x, y)


@every_operator
def test_backward_is_the_adjoint(P_world, make):
    case = make(P_world)
    torch.manual_seed(job.rank)
    x = torch.randn(case.shape, dtype=torch.float64, requires_grad=True)
    y = case.operator(x)
    gradient = torch.randn_like(y)
    y.backward(gradient)
    assert x.grad.shape == x.shape
    # Sums of two ranks' values and more may be added in another order only if MPI chooses so; it does not.
    assert same_bits(x.grad, case.operator._operator.adjoint(x, gradient))


@pytest.mark.shared
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("dtype", ALL_DTYPES, ids=str)
def test_every_dtype_gives_what_float64_gives(P_world, name, dtype):
    """Sums of small integers are exact, and rounded to the dtype once (bools: the sum means any)."""
    case = CASES[name](P_world)
    x = values(case.shape, dtype, seed=job.rank)
    exact = case.operator(x.to(torch.complex128))
    expected = exact.to(dtype) if dtype.is_complex else exact.real.to(dtype)
    assert same_bits(case.operator(x), exact != 0 if dtype == torch.bool else expected)


@pytest.mark.parametrize("name", MOVES)
def test_moved_bits_are_the_same_bits(P_world, name):
    """NaNs with payloads, signed zeros, infinities and subnormals arrive as they left."""
    case = CASES[name](P_world)
    generator = torch.Generator().manual_seed(job.rank)
    bits = torch.randint(-(2**63), 2**63 - 1, case.shape, generator=generator)
    moved = case.operator(bits.view(torch.float64) if case.shape != (0,) else torch.empty(0, dtype=torch.float64))
    assert same_bits(moved.view(torch.int64), case.operator(bits))


@pytest.mark.shared
@every_operator
@pytest.mark.parametrize("how", STRIDES, ids=lambda how: how.__name__)
def test_any_strides(P_world, make, how):
    case = make(P_world)
    odd = how(values(case.shape, torch.complex64, seed=job.rank))
    plain = odd.clone(memory_format=torch.contiguous_format).resolve_conj().resolve_neg()
    assert same_bits(case.operator(odd), case.operator(plain))


@every_operator
def test_nothing_is_written_and_nothing_is_shared(P_world, make):
    case = make(P_world)
    x = values(case.shape, seed=job.rank)
    before, version = x.clone(), x._version
    y = case.operator(x)
    if x.numel() and y.numel():
        assert x.untyped_storage().data_ptr() != y.untyped_storage().data_ptr()
    y.fill_(17)
    assert torch.equal(x, before)
    assert x._version == version


@every_operator
def test_results_may_be_changed_in_place(P_world, make):
    case = make(P_world)
    x = torch.ones(case.shape, dtype=torch.float64, requires_grad=True)
    case.operator(x).relu_().sum().backward()
    expected = case.operator._operator.adjoint(x, (case.operator(x) > 0).to(x.dtype))
    assert torch.equal(x.grad, expected)


@every_operator
def test_one_rank_that_needs_gradients_makes_all_take_part(P_world, make):
    """Also where a rank's input is of zero volume, or does not require grad."""
    case = make(P_world)
    active = job.allgather(case.operator._operator.active)
    needs_it = job.rank == active.index(True)
    x = torch.ones(case.shape, dtype=torch.float64, requires_grad=needs_it)
    y = case.operator(x)
    assert y.requires_grad == active[job.rank]
    if y.requires_grad:
        y.sum().backward()
    expected = case.operator._operator.adjoint(x, torch.ones_like(y))
    if needs_it:
        assert torch.equal(x.grad, expected)
    else:
        assert x.grad is None


@every_operator
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64], ids=str)
def test_the_dtype_of_a_zero_volume_input_is_of_no_account(P_world, make, dtype):
    """Ranks that have no part of the input pass an empty tensor of any dtype; values and gradients are the others'."""
    case = make(P_world)
    x = torch.randn(case.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(job.rank))
    expected = case.operator(x)
    gradient = torch.randn(expected.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(job.rank))
    expected_gradient = case.operator._operator.adjoint(x, gradient)
    outside = case.shape == (0,)
    if outside:
        x = torch.empty(0, dtype=dtype)
    if x.is_floating_point():
        x.requires_grad_()
    y = case.operator(x)
    assert same_bits(y, expected.to(y.dtype))
    if y.requires_grad:
        y.backward(gradient.to(y.dtype))
    if not outside:
        assert same_bits(x.grad, expected_gradient)


@every_operator
@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.complex128], ids=str)
def test_an_empty_input_that_requires_grad_changes_no_values(P_world, make, dtype):
    """Neither where the others' numbers have no derivatives, nor where they have another dtype."""
    case = make(P_world)
    x = values(case.shape, dtype, seed=job.rank)
    expected = case.operator(x)
    outside = case.shape == (0,)
    y = case.operator(distdl.zero_volume_tensor(requires_grad=True) if outside else x)
    assert same_bits(y, expected.to(y.dtype))
    active = case.operator._operator.active
    asked_for = any(job.allgather(active and outside))
    if active:
        assert y.requires_grad == (dtype.is_complex and asked_for)
    if y.requires_grad:
        y.sum().abs().backward()


@every_operator
def test_profilers_show_operators_by_name(P_world, make):
    case = make(P_world)
    x = torch.ones(case.shape, requires_grad=True)
    with torch.profiler.profile(acc_events=True) as profile:
        case.operator(x).sum().backward()
    shown = {event.key for event in profile.key_averages()}
    name = f"distdl::{type(case.operator).__name__}"
    active = case.operator._operator.active
    assert ({name, f"{name} adjoint"} if active else {"distdl::Clone"}) <= shown


@every_operator
def test_no_gradients_no_graph(P_world, make):
    case = make(P_world)
    x = torch.ones(case.shape)
    assert not case.operator(x).requires_grad
    with torch.no_grad():
        assert not case.operator(x.requires_grad_()).requires_grad


@every_operator
def test_structure_changes_on_any_rank_are_noticed(P_world, make):
    """The same operator for other dtypes, then for the first again."""
    case = make(P_world)
    for dtype in (torch.float32, torch.float64, torch.int32, torch.float32):
        x = values(case.shape, dtype, seed=job.rank)
        assert torch.equal(case.operator(x).double(), case.operator(x.double()))


@every_operator
def test_structure_check_off(P_world, make):
    case = make(P_world)
    x = values(case.shape, seed=job.rank)
    expected = case.operator(x)
    with distdl.structure_check(False):
        assert torch.equal(case.operator(x), expected)
        if case.operator._operator.active:
            with pytest.raises(RuntimeError, match="changed while the structure check is off"):
                case.operator(x.float())


@pytest.mark.parametrize("dims", [8, 9, 32])
def test_many_dimensions(P_world, dims):
    """Up to those that are allowed. Ranks tell each other of more than eight in a second message."""
    P_x, P_y = (grid(P_world, shape) for shape in ([1] * (dims - 1) + [job.size], [job.size] + [1] * (dims - 1)))
    whole = torch.arange(2 * (2 * job.size + 1)).reshape([2, *[1] * (dims - 2), -1])
    y = distdl.nn.Repartition(P_x, P_y)(block_of(whole, P_x))
    assert torch.equal(y, block_of(whole, P_y))


@every_operator
def test_zero_batch(P_world, make):
    """Tensors of no elements, of the same number of dimensions, pass through every operator that takes any blocks."""
    case = make(P_world)
    empty = torch.ones([0, *case.shape[1:]], dtype=torch.float64, requires_grad=True)
    y = case.operator(empty)
    y.sum().backward()
    assert torch.equal(empty.grad, torch.zeros_like(empty))

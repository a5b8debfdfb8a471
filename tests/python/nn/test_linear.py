"""DistributedLinear against torch.nn.Linear: values, derivatives, initial parameters, mistakes."""

import warnings
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import distdl
from distdl import zero_volume_tensor
from distdl.nn import DistributedLinear
from distdl.parameters import initial
from support.blocks import assemble, block_of, grid
from support.ranks import job, on_all_ranks, raises_everywhere
from support.tensors import fill_with_integers, values
from support.twins import assert_equals_twin

weight_shapes = st.sampled_from([(p, q) for p in range(1, job.size + 1) for q in range(1, job.size // p + 1)])
ranks = st.permutations(range(job.size))
DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128]


def partitions(P, p_out, p_in, x_ranks=None, y_ranks=None, w_ranks=None):
    """P_x, P_y, P_W and column 0 of P_W on the first of the given ranks."""
    w_ranks = list(range(job.size) if w_ranks is None else w_ranks)[: p_out * p_in]
    P_x = grid(P, [1, p_in], None if x_ranks is None else x_ranks[:p_in])
    P_y = grid(P, [1, p_out], None if y_ranks is None else y_ranks[:p_out])
    return P_x, P_y, grid(P, [p_out, p_in], w_ranks), grid(P, [p_out], w_ranks[::p_in])


def widest(P):
    """Partitions that use as many ranks as there are."""
    p_out = 2 if job.size % 2 == 0 else 1
    return partitions(P, p_out, job.size // p_out)


def with_leading(P, dims):
    """A partition of the same workers for tensors with this many leading dimensions."""
    return P.create_cartesian_topology_partition([*[1] * dims, P.size])


def assert_like_linear(P_x, P_y, P_W, P_b, in_features, out_features, leading=(2,), bias=True, dtype=torch.float64):
    twin = fill_with_integers(torch.nn.Linear(in_features, out_features, bias, dtype=dtype))
    layer = DistributedLinear(P_x, P_y, P_W, in_features, out_features, bias, dtype=dtype)
    assert [name for name, _ in layer.named_parameters()] == [name for name, _ in twin.named_parameters()]
    x = values([*leading, in_features], dtype)
    # Sums of integers this small are exact in all of the dtypes, in any order.
    assert_equals_twin(
        layer, twin, x, *(with_leading(P, len(leading)) for P in (P_x, P_y)), [P_W, P_b] if bias else [P_W]
    )


@given(
    weight_shapes, ranks, ranks, ranks, st.integers(1, 6), st.integers(1, 6), st.lists(st.integers(0, 3), max_size=3),
    st.booleans(),
)  # fmt: skip
@on_all_ranks
def test_equals_linear(P_world, weight_shape, x_ranks, y_ranks, w_ranks, in_features, out_features, leading, bias):
    """Any partitions, overlapping and disjoint; features in uneven and in empty blocks; empty batches."""
    on = partitions(P_world, *weight_shape, x_ranks, y_ranks, w_ranks)
    assert_like_linear(*on, in_features, out_features, leading, bias)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_dtypes(P_world, dtype, bias):
    assert_like_linear(*widest(P_world), 5, 4, bias=bias, dtype=dtype)


@pytest.mark.mpi(min_size=12)
def test_one_by_four_to_one_by_three(P_world):
    """The example of the documentation."""
    P_x = P_world.create_partition_inclusive(np.arange(0, 4)).create_cartesian_topology_partition([1, 4])
    P_y = P_world.create_partition_inclusive(np.arange(4, 7)).create_cartesian_topology_partition([1, 3])
    P_W = P_world.create_partition_inclusive(np.arange(0, 12)).create_cartesian_topology_partition([3, 4])
    y = DistributedLinear(P_x, P_y, P_W, 16, 12)(torch.rand(1, 4) if P_x.active else zero_volume_tensor())
    assert_like_linear(P_x, P_y, P_W, grid(P_world, [3], [0, 4, 8]), 16, 12)
    assert_like_linear(P_x, P_y, P_W, grid(P_world, [3], [0, 4, 8]), 3, 2)
    assert y.shape == ((1, 4) if P_y.active else (1, 0) if P_W.active else (0, 0))


@pytest.mark.parametrize("drawn_at_once", [1, 2, 14, 1 << 22])  # fewer than a row, rows of several blocks, all
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_same_seed_same_parameters(P_world, monkeypatch, dtype, drawn_at_once):
    """Bit for bit as in torch.nn.Linear, and the random numbers that follow are the same too."""
    monkeypatch.setattr(initial, "DRAWN_AT_ONCE", drawn_at_once)
    P_x, P_y, P_W, P_b = widest(P_world)
    torch.manual_seed(11)
    twin = torch.nn.Linear(7, 5, dtype=dtype)
    after = torch.get_rng_state()
    torch.manual_seed(11)
    layer = DistributedLinear(P_x, P_y, P_W, 7, 5, dtype=dtype)
    assert torch.equal(torch.get_rng_state(), after)
    assert torch.equal(assemble(layer.weight, P_W, [5, 7]), twin.weight)
    assert torch.equal(assemble(layer.bias, P_b, [5]), twin.bias)
    assert P_W.active or layer.weight.numel() == 0
    assert P_b.active or layer.bias.numel() == 0


@pytest.mark.parametrize("features", [(0, 3), (3, 0)])
@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
def test_no_features(P_world, features):
    assert_like_linear(*widest(P_world), *features)


def strided(x, how):
    """The same values in other strides."""
    if how == "transposed":
        return x.mT.contiguous().mT
    if how == "every other":
        return torch.stack([x, x], -1)[..., 0]
    if how == "expanded":
        return x[:1].expand(x.shape)
    return x.conj().resolve_conj().conj()


@pytest.mark.parametrize("how", ["transposed", "every other", "expanded", "conjugated"])
def test_any_strides(P_world, how):
    P_x, P_y, P_W, _ = widest(P_world)
    layer = fill_with_integers(DistributedLinear(P_x, P_y, P_W, 7, 5, dtype=torch.complex64))
    x = block_of(values([3, 7], torch.complex64), P_x)
    odd = strided(x, how) if P_x.active else x
    assert torch.equal(layer(odd), layer(odd.resolve_conj().contiguous()))
    assert torch.equal(x, block_of(values([3, 7], torch.complex64), P_x))  # and nothing was written


def test_bare_communicators(P_world):
    """mpi4py's own communicators are partitions too."""
    cart = P_world.comm.Create_cart([1, job.size])
    P_x, P_W = grid(P_world, [1, job.size]), grid(P_world, [1, job.size])
    P_y = grid(P_world, [1, 1])
    twin = fill_with_integers(torch.nn.Linear(5, 3, dtype=torch.float64))
    layer = DistributedLinear(cart, P_y, cart, 5, 3, dtype=torch.float64)
    assert_equals_twin(layer, twin, values([2, 5]), P_x, P_y, [P_W, grid(P_world, [1])])
    cart.Free()


def test_one_layer_for_many_inputs(P_world):
    """The batch, the number of leading dimensions and whether gradients are needed may change at any time."""
    P_x, P_y, P_W, _ = widest(P_world)
    layer = fill_with_integers(DistributedLinear(P_x, P_y, P_W, 7, 5, dtype=torch.float64))
    twin = torch.nn.Linear(7, 5, dtype=torch.float64)
    with torch.no_grad():
        twin.weight.copy_(assemble(layer.weight, P_W, [5, 7]))
        twin.bias.copy_(assemble(layer.bias, grid(P_world, [P_W.shape[0]], range(0, P_W.size, P_W.shape[1])), [5]))
    for leading in ([3], [1], [2, 2], [], [3], [0]):
        x = values([*leading, 7])
        for enabled in (True, False):
            with torch.set_grad_enabled(enabled):
                y = layer(block_of(x, with_leading(P_x, len(leading))))
            assert y.requires_grad == enabled
            assert torch.equal(assemble(y, with_leading(P_y, len(leading)), [*leading, 5]), twin(x))


def test_twice_before_one_backward(P_world):
    """Both uses of a layer count, in the gradients of a graph that is gone through twice as well."""
    P_x, P_y, P_W, P_b = widest(P_world)
    layer = fill_with_integers(DistributedLinear(P_x, P_y, P_W, 7, 5, dtype=torch.float64))
    a, b = (block_of(values([2, 7], seed=seed), P_x) for seed in (0, 1))
    y = layer(a) * 2 + layer(b)
    y.sum().backward(retain_graph=True)
    y.sum().backward()
    expected = 2 * (2 * values([2, 7], seed=0).sum(0) + values([2, 7], seed=1).sum(0)).expand(5, 7)
    assert torch.equal(assemble(layer.weight.grad if P_W.active else torch.empty(0), P_W, [5, 7]), expected)
    if P_b.active:
        assert torch.equal(layer.bias.grad, torch.full_like(layer.bias, 12))


MISTAKES = {
    "features": (ValueError, "last dimension must be", lambda x: x[..., :-1]),
    "no dimension": (ValueError, "last dimension must be", lambda x: x.sum()),
    "dtype": (RuntimeError, "the input is torch.float32 but the weight torch.float64", lambda x: x.float()),
    "no tensor": (TypeError, "it has to be a torch.Tensor", lambda x: x.tolist()),
    "device": (TypeError, "is on the meta device", lambda x: x.to("meta")),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_wrong_input_on_the_last_rank_raises_on_all(P_world, mistake):
    kind, match, spoil = MISTAKES[mistake]
    P_x, P_y, P_W, _ = partitions(P_world, 1, job.size)
    layer = DistributedLinear(P_x, P_y, P_W, 2 * job.size, 3, dtype=torch.float64)
    x = torch.ones(2, 2, dtype=torch.float64)
    for _ in range(2):
        raises_everywhere(kind, match, lambda: layer(spoil(x) if job.rank == job.size - 1 else x))
        layer(x)  # and the layer is as good as before


def test_another_dtype_of_the_weight_raises_on_all(P_world):
    """Also on ranks that have no part of it, and for an input that was right before."""
    P_x, P_y, P_W, _ = partitions(P_world, 1, 1, [job.size - 1], [0])
    layer, x = DistributedLinear(P_x, P_y, P_W, 4, 4), block_of(torch.ones(2, 4), P_x)
    layer(x)
    layer.double()
    if P_x.active or P_y.active or P_W.active:
        with pytest.raises(RuntimeError, match=r"the input is .*float32 but the weight .*float64"):
            layer(x)
    layer.float()(x)


def test_other_parameters_on_the_last_rank_raise_on_all(P_world):
    """Of another dtype or shape: where F.linear would raise on one rank, and leave the others waiting."""
    P_x, P_y, P_W, _ = partitions(P_world, job.size, 1)
    layer, last = DistributedLinear(P_x, P_y, P_W, 4, 2 * job.size), job.rank == job.size - 1
    x = block_of(torch.ones(3, 4), P_x)
    y = layer(x)
    for name in ("weight", "bias"):
        parameter = getattr(layer, name)
        good = parameter.data
        if last:
            parameter.data = good.double()
        different = (RuntimeError, "but the weight") if job.size == 1 else (ValueError, "the ranks differ")
        raises_everywhere(*different, lambda: layer(x))
        parameter.data = good[:1] if last else good
        raises_everywhere(ValueError, f"meets a {name} of shape", lambda: layer(x))
        parameter.data = good
    assert torch.equal(layer(x), y)


def test_leading_dimensions_that_differ_raise_on_all(P_world):
    """They may be of the same number of elements."""
    if job.size > 1:
        P_x, P_y, P_W, _ = partitions(P_world, 1, job.size)
        layer = DistributedLinear(P_x, P_y, P_W, 2 * job.size, 3)
        shape = [3, 2, 2] if job.rank == job.size - 1 else [2, 3, 2]
        raises_everywhere(ValueError, "all dimensions but the last must be the same", lambda: layer(torch.ones(shape)))


def test_initialisers_take_parameters_without_rows(P_world):
    P_x, P_y, P_W, _ = partitions(P_world, 1, 1, [job.size - 1], [0])
    layer = DistributedLinear(P_x, P_y, P_W, 4, 3)
    assert layer.weight.shape == ((3, 4) if P_W.active else (0, 4))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Initializing zero-element tensors is a no-op")
        torch.nn.init.xavier_uniform_(layer.weight)
        torch.nn.init.orthogonal_(layer.weight)
        torch.nn.init.eye_(layer.weight)
    whole = distdl.sequential_state_dict(layer)
    assert job.rank != 0 or torch.equal(whole["weight"], torch.eye(3, 4))


def test_wrong_batch_or_input_outside_of_the_partition_raises_on_all(P_world):
    if job.size == 1:
        return
    P_x, P_y, P_W, _ = partitions(P_world, 1, job.size)
    layer = DistributedLinear(P_x, P_y, P_W, 2 * job.size, 3)
    raises_everywhere(ValueError, "shape", lambda: layer(torch.ones(3 if job.rank == 0 else 2, 2)))
    P_x, P_y, P_W, _ = partitions(P_world, job.size, 1)
    layer = DistributedLinear(P_x, P_y, P_W, 2, 3)
    raises_everywhere(ValueError, "not in P_x", lambda: layer(torch.ones(2, 2)))


@pytest.mark.parametrize(
    "shapes",
    [([1, 2], [1, 1], [1, 1]), ([1, 1], [1, 2], [1, 1]), ([1, 1], [1, 1], [1]), ([2, 1], [1, 1], [1, 2])],
    ids=str,
)
def test_partitions_that_do_not_fit_raise_on_all(P_world, shapes):
    if job.size < 2:
        shapes = [[1], [1], [1]]
    P_x, P_y, P_W = (grid(P_world, shape) for shape in shapes)
    raises_everywhere(ValueError, "P_x has shape", lambda: DistributedLinear(P_x, P_y, P_W, 4, 4))


def test_other_arguments_on_the_last_rank_raise_on_all(P_world):
    P_x, P_y, P_W, _ = partitions(P_world, 1, job.size)
    last = job.rank == job.size - 1
    raises_everywhere(TypeError, "P_y is a int", lambda: DistributedLinear(P_x, 3 if last else P_y, P_W, 4, 4))
    if job.size > 1:
        for wrong in ({"in_features": 5}, {"bias": False}, {"dtype": torch.float64}):
            options = {"in_features": 4, **(wrong if last else {})}
            make = partial(DistributedLinear, P_x, P_y, P_W, out_features=4, **options)
            raises_everywhere(ValueError, "ask for different things", make)

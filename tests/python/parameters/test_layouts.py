"""The ways in which parameters live: the same numbers from all of them, and the share of the memory that each takes."""

import contextlib

import pytest
import torch

import distdl
import distdl.nn as dnn
from support.blocks import assemble, block_of, grid
from support.ranks import job, raises_everywhere
from support.tensors import fill_with_integers, same_bits, values

KINDS = ("owner", "sharded", "replicated")
kinds = pytest.mark.parametrize("kind", KINDS)


def split(size):
    """Two factors, as equal as 1, 2, 3 and 4 allow."""
    return (2, size // 2) if size % 2 == 0 else (1, size)


def linear_over_batch(P):
    """Each worker applies the whole weight to its rows."""
    P_x = grid(P, [P.size, 1])
    return torch.nn.Linear(7, 5), lambda: dnn.DistributedLinear(P_x, 7, 5), P_x, P_x, [5, 7]


def linear_over_batch_and_features(P):
    """Rows and features are split."""
    rows, columns = split(P.size)
    P_x, P_y, P_W = grid(P, [rows, 1]), grid(P, [rows, columns]), grid(P, [rows, columns, 1])
    return torch.nn.Linear(6, 5), lambda: dnn.DistributedLinear(P_x, P_y, P_W, 6, 5), P_x, P_y, [3, 6]


def linear_over_tokens_without_bias(P):
    """A leading dimension that is not split before one that is; input features are summed over."""
    rows, columns = split(P.size)
    P_x, P_y, P_W = grid(P, [1, rows, columns]), grid(P, [1, rows, 1]), grid(P, [1, rows, 1, columns])
    twin = torch.nn.Linear(6, 5, bias=False)
    return twin, lambda: dnn.DistributedLinear(P_x, P_y, P_W, 6, 5, bias=False), P_x, P_y, [2, 4, 6]


def conv(dims, transposed=False):
    """A convolution over blocks of batch and space."""
    name = f"Conv{'Transpose' if transposed else ''}{dims}d"

    def make(P):
        rows, columns = split(P.size)
        P_x = grid(P, [rows, 1, *[1] * (dims - 1), columns])
        twin = getattr(torch.nn, name)(2, 3, 3, padding=1)
        return twin, lambda: getattr(dnn, f"Distributed{name}")(P_x, 2, 3, 3, padding=1), P_x, P_x, [3, 2, *[4] * dims]

    return make


def conv_over_channels_and_space(P):
    """Blocks of the weight that several workers use."""
    rows, columns = split(P.size)
    P_x, P_y, P_w = grid(P, [1, 1, columns]), grid(P, [1, rows, columns]), grid(P, [1, rows, 1, columns])
    twin = torch.nn.Conv1d(3, 4, 3)
    return twin, lambda: dnn.DistributedGeneralConv1d(P_x, P_y, P_w, 3, 4, 3), P_x, P_y, [2, 3, 9]


LAYERS = {
    "linear over batch": linear_over_batch,
    "linear over batch and features": linear_over_batch_and_features,
    "linear over tokens": linear_over_tokens_without_bias,
    **{f"conv {dims}d": conv(dims) for dims in (1, 2, 3)},
    **{f"transposed conv {dims}d": conv(dims, transposed=True) for dims in (1, 2, 3)},
    "conv over channels and space": conv_over_channels_and_space,
}
layers = pytest.mark.parametrize("make", LAYERS.values(), ids=LAYERS)


@contextlib.contextmanager
def holding(layer, tensors):
    """Other values in place of the parameters."""
    kept = [parameter.detach().clone() for parameter in layer.parameters()]
    with torch.no_grad():
        for parameter, tensor in zip(layer.parameters(), tensors, strict=True):
            parameter.copy_(tensor)
    yield
    with torch.no_grad():
        for parameter, tensor in zip(layer.parameters(), kept, strict=True):
            parameter.copy_(tensor)


def whole(layer, tensors):
    """Tensors that live like the parameters, put together on rank 0."""
    with holding(layer, tensors):
        return distdl.sequential_state_dict(layer)


def parts(layer, wholes):
    """This rank's parts of whole tensors, which live like the parameters."""
    with holding(layer, list(layer.parameters())):
        distdl.load_sequential(layer, wholes)
        return [parameter.detach().clone() for parameter in layer.parameters()]


@kinds
@layers
def test_same_numbers(P_world, make, kind):
    """Values, gradients, and gradients of <gradients, directions>, which every rank computes of what it has."""
    twin, distributed, P_x, P_y, shape = make(P_world)
    twin = fill_with_integers(twin.double())
    with distdl.parameter_layout(kind):
        layer = distributed().double()
    distdl.load_sequential(layer, twin.state_dict())
    x = values(shape)
    names = [name for name, _ in twin.named_parameters()]
    cotangent = values(twin(x).shape, seed=1)
    directions = {name: values(p.shape, seed=5 + i) for i, (name, p) in enumerate(twin.named_parameters())}

    def derivatives(module, x, cotangent, directions):
        x = x.requires_grad_()
        y = module(x)
        leaves = [x, *module.parameters()]
        first = torch.autograd.grad(y, leaves, cotangent.reshape(y.shape), create_graph=True)
        inner = sum((g * d).sum() for g, d in zip(first[1:], directions, strict=True))
        (second,) = torch.autograd.grad(inner, [x])
        return [t.detach() for t in (y, *first, second)]

    y, gx, *gradients, second = derivatives(twin, x.clone(), cotangent, list(directions.values()))
    results = derivatives(layer, block_of(x, P_x), block_of(cotangent, P_y), parts(layer, directions))
    assert same_bits(assemble(results[0], P_y, y.shape), y)
    assert same_bits(assemble(results[1], P_x, gx.shape), gx)
    assert same_bits(assemble(results[-1], P_x, second.shape), second)
    collected = whole(layer, results[2:-1])
    assert job.rank > 0 or all(same_bits(collected[n], g) for n, g in zip(names, gradients, strict=True))


@kinds
@layers
def test_training_and_state(P_world, make, kind):
    """The same seed, three steps of Adam and the whole state, as the sequential layer has them."""
    torch.manual_seed(3)
    twin, distributed, P_x, P_y, shape = make(P_world)
    torch.manual_seed(4)
    twin.reset_parameters()
    torch.manual_seed(4)
    with distdl.parameter_layout(kind):
        layer = distributed()
    state = distdl.sequential_state_dict(layer)
    assert job.rank > 0 or all(same_bits(state[name], value) for name, value in twin.state_dict().items())
    twin, layer = twin.double(), layer.double()
    x = values(shape) / 3
    cotangent = values(twin(x).shape, seed=1)
    for module, block, gradient in ((twin, x, cotangent), (layer, block_of(x, P_x), block_of(cotangent, P_y))):
        optimizer = torch.optim.Adam(module.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            y = module(block)
            y.backward(gradient.reshape(y.shape))
            optimizer.step()
    state = distdl.sequential_state_dict(layer)
    # Adam divides by the root of a mean of squares: sums in another order move its steps by some roundings.
    for name, value in twin.state_dict().items() if job.rank == 0 else ():
        assert torch.allclose(state[name], value, rtol=1e-9, atol=1e-12)


@layers
def test_shares_of_the_memory(P_world, make):
    """Sharded, workers that use the same block hold as much of it as each other, up to one row of the longest
    dimension; replicated, each of them holds all of it; with owners it is there once."""
    for kind in KINDS:
        with distdl.parameter_layout(kind):
            layer = make(P_world)[1]()
        for name, parameter in layer.named_parameters():
            layout, numel = layer.layouts[name], parameter.numel()
            everyone = job.allgather(numel)
            total = 1
            for n in layout.shape:
                total *= n
            assert sum(everyone) == total * (layout.replicas if kind == "replicated" else 1)
            if kind == "sharded" and layout.replicas > 1 and layout.grid.active and not layout.first_of:
                users = layout.replica_ranks(layout.grid.place)
                held = [everyone[rank] for rank in users]
                longest = max(layout.used_shape)
                assert max(held) - min(held) <= sum(held) // max(longest, 1)
            assert parameter.shape == layout.local_shape


def test_gradients_and_optimizers_are_sharded_too(P_world):
    P_x = grid(P_world, [1, 1, job.size])
    with distdl.parameter_layout("sharded"):
        layer = dnn.DistributedConv1d(P_x, 4 * job.size, 8 * job.size, 3, padding=1)
    optimizer = torch.optim.Adam(layer.parameters())
    layer(torch.ones(1, 4 * job.size, 3)).sum().backward()
    optimizer.step()
    weight = layer.weight
    held = [weight, weight.grad, optimizer.state[weight]["exp_avg"], optimizer.state[weight]["exp_avg_sq"]]
    assert all(tensor.numel() == 8 * 4 * job.size * 3 for tensor in held)


def test_other_kinds_on_other_ranks_raise_on_all(P_world):
    if job.size == 1:
        return
    P_x = grid(P_world, [job.size, 1])

    def construct():
        with distdl.parameter_layout("sharded" if job.rank == 0 else "owner"):
            dnn.DistributedLinear(P_x, 3, 2)

    raises_everywhere(ValueError, "parameter_layout='sharded'", construct)


def test_unknown_kinds():
    with pytest.raises(ValueError, match="'owner', 'sharded', 'replicated'"), distdl.parameter_layout("everywhere"):
        pass


def test_the_kind_of_before_comes_back(P_world):
    P_x = grid(P_world, [job.size, 1])
    with distdl.parameter_layout("sharded"):
        with distdl.parameter_layout("replicated"):
            assert dnn.DistributedLinear(P_x, 3, 2).layouts["weight"].kind == "replicated"
        assert dnn.DistributedLinear(P_x, 3, 2).layouts["weight"].kind == "sharded"
    assert dnn.DistributedLinear(P_x, 3, 2).layouts["weight"].kind == "owner"


@pytest.mark.parametrize("axes", [[-2], [2], [0, 1], []])
def test_axes_that_do_not_fit_are_refused(P_world, axes):
    module = distdl.nn.Module()
    with pytest.raises(ValueError, match=r"takes an axis or None for each dimension, and no axis twice"):
        module.declare_parameter("weight", grid(P_world, [job.size, 1]), [4], axes)


class Scale(dnn.Layer):
    """Multiplies by a scalar, which is the parameter."""

    def __init__(self, P_x, weight=None):
        super().__init__(locals())

    def check_options(self):
        self.declare_parameter("factor", self.P_x, [], [], initialize=torch.nn.init.ones_)

    def compute(self, input):
        return input * self.parameters_in_use()[0]


@kinds
def test_a_scalar(P_world, kind):
    with distdl.parameter_layout(kind):
        layer = Scale(grid(P_world, [job.size, 1]))
    assert "weight=None" in repr(layer)
    y = layer(torch.ones(2, 3))
    assert torch.equal(y, torch.ones(2, 3))
    y.sum().backward()
    gradients = [] if layer.factor.grad is None else layer.factor.grad.reshape(-1).tolist()
    assert gradients == ([6.0 * job.size] if job.rank == 0 or kind == "replicated" else [])

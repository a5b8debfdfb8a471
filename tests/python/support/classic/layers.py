"""Calls of the layers, beside the layers of torch.nn."""

import functools
import importlib

import torch

import distdl
from support.blocks import assemble, block_of, grid
from support.ranks import job, total
from support.tensors import fill_with_integers, values


def named(path, name):
    return getattr(importlib.import_module(f"distdl.nn.{path}"), name)


def check(layer, twin, x, P_x, P_y, y_of=None):
    """The layer with the twin's weights gives the twin's result and the twin's gradient of the input."""
    fill_with_integers(twin)
    if list(twin.parameters()):
        distdl.load_sequential(layer, twin.state_dict())
    whole = x.clone().requires_grad_(x.is_floating_point())
    expected = twin(whole)
    mine = block_of(x, P_x).requires_grad_(x.is_floating_point())
    y = layer(mine)
    assert torch.allclose(assemble(y, P_y, expected.shape), expected, atol=1e-12)
    if not x.is_floating_point():
        return
    cotangent = values(expected.shape, seed=7)
    expected.backward(cotangent)
    y.backward(block_of(cotangent, P_y).reshape(y.shape))
    assert torch.allclose(assemble(mine.grad, P_x, x.shape), whole.grad, atol=1e-12)


def linear(P_world):
    P_x, P_y, P_w = grid(P_world, [1, 1]), grid(P_world, [1, job.size]), grid(P_world, [job.size, 1])
    layer = named("linear", "DistributedLinear")(P_x, P_y, P_w, 4, 7, True, dtype=torch.float64)
    assert layer.P_w == P_w
    check(layer, torch.nn.Linear(4, 7, dtype=torch.float64), values([3, 4]), P_x, P_y)
    assert torch.equal(
        layer.y_sum_reduce(layer.x_broadcast(block_of(values([3, 4]), P_x))), layer.y_sum_reduce(values([3, 4]))
    )


def conv(kind, dims, P_world):
    """Of each form; by the class that selects a form, too."""
    x, space = values([2, 4, *[9] * dims]), (1,) * (dims - 1)
    twin = getattr(torch.nn, f"Conv{dims}d")(4, 6, 3, 1, 1, 1, 2, dtype=torch.float64)
    options = (4, 6, 3, 1, 1, "zeros", 1, 2, True)
    if kind == "Channel":
        twin = getattr(torch.nn, f"Conv{dims}d")(4, 6, 3, 1, 1, dtype=torch.float64)
        options = (4, 6, 3, 1, 1, "zeros", 1, 1, True)
        ones = (1,) * dims
        partitions = [grid(P_world, [1, *shape, *ones]) for shape in ([1], [job.size], [job.size, 1])]
    else:
        P_x = grid(P_world, [1, 1, *space, job.size])
        partitions = [P_x] if kind == "Feature" else [P_x, P_x, grid(P_world, [1, 1, 1, *space, job.size])]
    base = named(f"conv_{kind.lower()}", f"Distributed{kind}ConvBase")
    own = named(f"conv_{kind.lower()}", f"Distributed{kind}Conv{dims}d")
    selects = named("conv", f"DistributedConv{dims}d")
    assert issubclass(selects, named("conv", "DistributedConvSelector"))
    for make in (own, selects):
        if kind == "General" and job.size == 1 and make is selects:
            continue  # one worker splits no space
        layer = make(*partitions, *options, dtype=torch.float64)
        assert type(layer) is own
        assert isinstance(layer, base)
        assert isinstance(layer, selects)
        check(layer, twin, x, partitions[0], partitions[min(1, len(partitions) - 1)])
    assert layer.use_bias
    assert total(int(layer.stores_bias)) == (job.size if kind == "Channel" else 1)
    assert layer.P_wb_cart.size == (job.size if kind == "Channel" else 1)


def feature_transpose(dims, P_world):
    P_x = grid(P_world, [1, 1, *[1] * (dims - 1), job.size])
    layer = named("conv_feature", f"DistributedFeatureConvTranspose{dims}d")(P_x, 2, 3, 3, 2, dtype=torch.float64)
    twin = getattr(torch.nn, f"ConvTranspose{dims}d")(2, 3, 3, 2, dtype=torch.float64)
    check(layer, twin, values([2, 2, *[9] * dims]), P_x, P_x)


def channel_form(form, what, dims, P_world):
    path = {"AllGather": "conv_channel_ag", "ReduceScatter": "conv_channel_rs"}[form]
    P_x = grid(P_world, [1, job.size, *[1] * dims])
    options = (4, 6, 3, 1, 1, 1, 1, True, 1) if what == "ConvTranspose" else (4, 6, 3, 1, 1, 1, 1, True)
    if what == "ConvTranspose":
        options = (4, 6, 3, 1, 1, 0, 1, True, 1)
    make = named(path, f"DistributedChannel{form}{what}{dims}d")
    layer = make(P_x, *options, dtype=torch.float64, collect_state=True)
    twin = getattr(torch.nn, f"{what}{dims}d")(*options, dtype=torch.float64)
    check(layer, twin, values([2, 4, *[5] * dims]), P_x, P_x)
    whole = layer.state_dict()
    assert job.rank > 0 or all(torch.equal(whole[name], value) for name, value in twin.state_dict().items())


def pool(kind, dims, P_world):
    from distdl.backends.mpi.buffer import MPIBufferManager

    P_x = grid(P_world, [1, 1, *[1] * (dims - 1), job.size])
    make = named("pooling", f"Distributed{kind}Pool{dims}d")
    assert issubclass(make, named("pooling", "DistributedPoolBase"))
    layer = make(P_x, 2, 2, 0, 1, MPIBufferManager())
    twin = getattr(torch.nn, f"{kind}Pool{dims}d")(2, 2, 0)
    check(layer, twin, values([1, 2, *[9] * dims]), P_x, P_x)
    assert type(layer.pool_layer) is type(twin)


def upsample(P_world):
    P_x = grid(P_world, [1, 1, 1, job.size])
    layer = named("upsampling", "DistributedUpsample")(P_x, None, (1, 2, 7, 14), None, "linear", False)
    check(layer, torch.nn.Upsample((7, 14), mode="bilinear"), values([1, 2, 4, 9]), P_x, P_x)


def batchnorm(P_world):
    P_x = grid(P_world, [1, 1, 1, job.size])
    layer = named("batchnorm", "DistributedBatchNorm")(P_x, 2, 1e-5, 0.1, True, True, dtype=torch.float64)
    twin = torch.nn.BatchNorm2d(2, dtype=torch.float64)
    check(layer, twin, values([3, 2, 4, 9]), P_x, P_x)
    assert torch.allclose(layer.running_var, twin.running_var)


def layernorm(name, P_world):
    P_x = grid(P_world, [1, job.size])
    layer = named(name, "DistributedLayerNorm" + ("Zero" if "zero" in name else ""))(
        P_x, 7, True, 1e-3, dtype=torch.float64
    )
    check(layer, torch.nn.LayerNorm(7, 1e-3, dtype=torch.float64), values([3, 7]), P_x, P_x)


class SequentialRMSNorm(torch.nn.RMSNorm):
    """With a bias."""

    def __init__(self, n):
        super().__init__(n, 1e-5, dtype=torch.float64)
        self.bias = torch.nn.Parameter(torch.zeros(n, dtype=torch.float64))

    def forward(self, x):
        return super().forward(x) + self.bias


def rmsnorm(P_world):
    for shape in ([1, job.size], [job.size, 1]):
        P_x = grid(P_world, shape)
        layer = named("rmsnorm_zero", "DistributedRMSNormZero")(P_x, 7, True, True, 1e-5, dtype=torch.float64)
        check(layer, SequentialRMSNorm(7), values([5, 7]), P_x, P_x)


def embedding(name, P_world):
    kind = "DistributedEmbedding" + ("Zero" if "zero" in name else "")
    P_y, P_x = grid(P_world, [1, 1, job.size]), grid(P_world, [1, 1])
    table = values([11, 7])
    layer = named(name, kind)(P_y, 11, 7, 2, None, 2.0, False, False, table, False, dtype=torch.float64)
    twin = torch.nn.Embedding(11, 7, 2, _weight=table.clone())
    x = torch.tensor([[0, 2, 10], [2, 2, 5]])
    y, expected = layer(x), twin(x)
    assert torch.equal(assemble(y, P_y, expected.shape), expected)
    cotangent = values(expected.shape, seed=3)
    expected.backward(cotangent)
    y.backward(block_of(cotangent, P_y))
    gradient = layer.weight.grad
    mine = layer.layouts["weight"].intervals
    assert torch.equal(gradient, twin.weight.grad[tuple(slice(*one) for one in mine)])
    assert P_x.size == 1


def linear_ag(zero, P_world):
    P_y, P_x = grid(P_world, [1, job.size]), grid(P_world, [job.size, 1])
    make = named("linear_ag_zero" if zero else "linear_ag", "DistributedLinearAllGather" + ("Zero" if zero else ""))
    twin = torch.nn.Linear(5, 7, dtype=torch.float64)
    check(make(P_y, 5, 7, True, P_y, dtype=torch.float64), twin, values([4, 5]), P_y, P_y)
    check(make(P_y, 5, 7, P_x=P_x, dtype=torch.float64), twin, values([4, 5]), P_x, P_y)
    # Each worker has its heads of all three projections.
    heads = 2 * job.size
    layer = make(P_y, 5, 9 * heads, num_heads=heads, num_vars=3, collect_state=True, dtype=torch.float64)
    twin = fill_with_integers(torch.nn.Linear(5, 9 * heads, dtype=torch.float64))
    layer.load_state_dict(twin.state_dict())
    x = values([4, 5])
    q, k, v = twin(x).view(4, 3, heads, 3).unbind(1)
    own = slice(2 * job.rank, 2 * job.rank + 2)
    expected = torch.cat([one[:, own].reshape(4, -1) for one in (q, k, v)], 1)
    assert torch.equal(layer(block_of(x, P_y)), expected)
    whole = layer.state_dict()
    assert job.rank > 0 or all(torch.equal(whole[name], value) for name, value in twin.state_dict().items())
    layer = make(P_y, 5, 6 * job.size, geglu=True, collect_state=True, dtype=torch.float64)
    twin = fill_with_integers(torch.nn.Linear(5, 6 * job.size, dtype=torch.float64))
    layer.load_state_dict(twin.state_dict())
    halves = twin(x).view(4, 2, job.size, 3)
    assert torch.equal(layer(block_of(x, P_y)), halves[:, :, job.rank].reshape(4, -1))


def linear_rs(zero, P_world):
    P_x, P_y = grid(P_world, [1, job.size]), grid(P_world, [job.size, 1])
    make = named("linear_rs_zero" if zero else "linear_rs", "DistributedLinearReduceScatter" + ("Zero" if zero else ""))
    twin = torch.nn.Linear(5, 7, dtype=torch.float64)
    check(make(P_x, 5, 7, True, P_x, dtype=torch.float64), twin, values([4, 5]), P_x, P_x)
    check(make(P_x, 5, 7, P_y=P_y, dtype=torch.float64), twin, values([4, 5]), P_x, P_y)


def functions(P_world):
    for path, form in (("linear_ag_zero", "AllGather"), ("linear_rs_zero", "ReduceScatter")):
        leaves = [values(shape, seed=i).requires_grad_() for i, shape in enumerate(([2, 3, 4], [5, 4], [5]))]
        others = [one.detach().clone().requires_grad_() for one in leaves]
        y, expected = named(path, f"Linear{form}ZeROFunc").apply(*leaves), torch.nn.functional.linear(*others)
        assert torch.equal(y, expected)
        cotangent = values(y.shape, seed=9)
        y.backward(cotangent)
        expected.backward(cotangent)
        assert all(torch.equal(one.grad, other.grad) for one, other in zip(leaves, others, strict=True))


class SequentialExperts(torch.nn.Module):
    """A linear layer for each expert."""

    def __init__(self, experts, inputs, outputs):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.empty(experts, outputs, inputs, dtype=torch.float64))
        self.bias = torch.nn.Parameter(torch.empty(experts, outputs, dtype=torch.float64))

    def forward(self, x):
        return torch.stack([torch.nn.functional.linear(*one) for one in zip(x, self.weight, self.bias, strict=True)])


def experts(form, P_world):
    path = {"AllGather": "linear_ag_expert", "ReduceScatter": "linear_rs_expert"}[form]
    make = named(path, f"DistributedExpert{form}")
    P_seq = grid(P_world, [1, job.size, 1])
    for shape in ([1, 1, job.size], [job.size, 1, 1]):
        P = grid(P_world, shape)
        twin = SequentialExperts(4, 5, 6)
        check(make(P, 4, 5, 6, True, dtype=torch.float64), twin, values([4, 3, 5]), P, P)
        layer = make(P, 4, 5, 6, P_expert_seq=P_seq, dtype=torch.float64)
        ways = (P_seq, P) if form == "AllGather" else (P, P_seq)
        check(layer, twin, values([4, 3, 5]), *ways)


def loss(name, P_world):
    make = named("loss", f"Distributed{name}")
    assert issubclass(make, named("loss", "DistributedLossBase"))
    P_x = grid(P_world, [1, job.size])
    x, target = values([3, 7]) / 4, values([3, 7], seed=5) / 4
    for reduction in ("mean", "sum", "none"):
        layer, twin = make(P_x, reduction), getattr(torch.nn, name)(reduction=reduction)
        assert reduction in layer._valid_reductions
        assert layer.P_0.active == (job.rank == 0)
        whole, mine = x.clone().requires_grad_(), block_of(x, P_x).requires_grad_()
        expected, found = twin(whole, target), layer(mine, block_of(target, P_x))
        if reduction == "none":
            assert torch.allclose(assemble(found, P_x, x.shape), expected)
            continue
        assert torch.allclose(found, expected if job.rank == 0 else torch.zeros_like(expected))
        expected.backward()
        found.backward()
        assert torch.allclose(assemble(mine.grad, P_x, x.shape), whole.grad)


def init(name, P_world):
    """On the weight of a linear layer in blocks: the numbers of torch on the whole weight."""
    P_x, P_y, P_w = grid(P_world, [1, 1]), grid(P_world, [1, job.size]), grid(P_world, [job.size, 1])
    fill, fill_whole = named("init", name), getattr(torch.nn.init, name.rstrip("_") + "_", None)
    if name == "calculate_gain":
        assert fill("relu") == 2**0.5
        return
    layer, whole = named("linear", "DistributedLinear")(P_x, P_y, P_w, 4, 7), torch.empty(7, 4)
    tensor = layer.weight
    if "dirac" in name:
        layer = named("conv_channel", "DistributedChannelConv1d")(
            *(grid(P_world, [1, *shape, 1]) for shape in ([1], [job.size], [job.size, 1])), 4, 7, 3
        )
        tensor, whole = layer.conv_layer.weight, torch.empty(7, 4, 3)
    first = (P_w,) if "xavier" in name or "kaiming" in name else ()
    more = (2.5,) if "constant" in name else ()
    torch.manual_seed(3)
    assert fill(*first, tensor, *more) is tensor
    torch.manual_seed(3)
    fill_whole(whole, *more)
    layout = next(iter(layer.layouts.values()))
    assert torch.equal(tensor, whole[tuple(slice(*one) for one in layout.intervals)])


bind = functools.partial
INITIALIZERS = (
    "uniform",
    "normal",
    "constant",
    "eye",
    "dirac",
    "xavier_uniform",
    "xavier_normal",
    "kaiming_uniform",
    "kaiming_normal",
)
CALLS = {
    "DistributedLinear": linear,
    "DistributedConvSelector": bind(conv, "Feature", 1),
    **{f"DistributedConv{d}d": bind(conv, "General", d) for d in (1, 2, 3)},
    **{f"Distributed{kind}ConvBase": bind(conv, kind, 1) for kind in ("Feature", "Channel", "General")},
    **{f"Distributed{k}Conv{d}d": bind(conv, k, d) for k in ("Feature", "Channel", "General") for d in (1, 2, 3)},
    **{f"DistributedFeatureConvTranspose{d}d": bind(feature_transpose, d) for d in (1, 2, 3)},
    **{
        f"DistributedChannel{form}{what}{d}d": bind(channel_form, form, what, d)
        for form in ("AllGather", "ReduceScatter")
        for what in ("Conv", "ConvTranspose")
        for d in (1, 2, 3)
    },
    "DistributedPoolBase": bind(pool, "Max", 1),
    **{f"Distributed{kind}Pool{d}d": bind(pool, kind, d) for kind in ("Max", "Avg") for d in (1, 2, 3)},
    "DistributedUpsample": upsample,
    "DistributedBatchNorm": batchnorm,
    "DistributedLayerNorm": bind(layernorm, "layernorm"),
    "DistributedLayerNormZero": bind(layernorm, "layernorm_zero"),
    "DistributedRMSNormZero": rmsnorm,
    "DistributedEmbedding": bind(embedding, "embedding"),
    "DistributedEmbeddingZero": bind(embedding, "embedding_zero"),
    "DistributedLinearAllGather": bind(linear_ag, False),
    "DistributedLinearAllGatherZero": bind(linear_ag, True),
    "DistributedLinearReduceScatter": bind(linear_rs, False),
    "DistributedLinearReduceScatterZero": bind(linear_rs, True),
    **dict.fromkeys(("LinearAllGatherZeROFunc", "LinearReduceScatterZeROFunc"), functions),
    "DistributedExpertAllGather": bind(experts, "AllGather"),
    "DistributedExpertReduceScatter": bind(experts, "ReduceScatter"),
    "DistributedLossBase": bind(loss, "MSELoss"),
    **{
        f"Distributed{name}": bind(loss, name)
        for name in ("L1Loss", "MSELoss", "PoissonNLLLoss", "BCELoss", "BCEWithLogitsLoss", "KLDivLoss")
    },
    **{name: bind(init, name) for name in ("calculate_gain", *INITIALIZERS, *(f"{name}_" for name in INITIALIZERS))},
    **{name: bind(init, name) for name in ("trunc_normal_", "ones_", "zeros_")},
}

"""Layers that compute queries, keys and values at once: each worker has the rows of its heads."""

import copy

import pytest
import torch
import torch.nn.functional as F

import distdl
from support.blocks import grid
from support.distributed import assert_equal_models, assert_none, off
from support.ranks import job, raises_everywhere, together

P_world = distdl.Partition(job)
N = P_world.size


def share(n):
    """This rank's share of n heads."""
    return n // N + (job.rank < n % N)


@pytest.mark.parametrize("training", [True, False])
def test_heads_of_an_encoder(training):
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(6, 3, 5, dropout=0.0, batch_first=True).double()
    plan = {"self_attn": "colwise", "linear1": "colwise", "linear2": "rowwise"}
    for split in ([1, N, 1], [N, 1, 1]):
        ours = assert_equal_models(layer, (2, 5, 6), split, training, plan=plan)
    assert ours.self_attn.in_proj_weight.shape == (3 * 2 * share(3), 6)
    assert ours.self_attn.in_proj_bias.shape == (3 * 2 * share(3),)
    assert ours.self_attn.out_proj.weight.shape == (6, 2 * share(3))


class Attending(torch.nn.Module):
    """Attention of tokens among themselves, or to others."""

    def __init__(self, options=None, keys=None, values=None, **arguments):
        super().__init__()
        self.attention = torch.nn.MultiheadAttention(8, 4, **{"batch_first": True, **(options or {})})
        self.keys, self.values, self.arguments = keys or (lambda x: x), values or keys or (lambda x: x), arguments

    def forward(self, x):
        return self.attention(x, self.keys(x), self.values(x), **self.arguments)


def doubled(shape):
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(2))


LOWER = torch.ones(5, 5, dtype=torch.bool).tril().logical_not()
PADDING = torch.tensor([[False] * 5, [False] * 3 + [True] * 2])


@pytest.mark.parametrize("make", [
    lambda: Attending(),
    lambda: Attending(need_weights=False),
    lambda: Attending(average_attn_weights=False, attn_mask=LOWER),
    lambda: Attending(attn_mask=doubled((8, 5, 5)), key_padding_mask=doubled((2, 5))),
    lambda: Attending(need_weights=False, key_padding_mask=PADDING),
    lambda: Attending(need_weights=False, attn_mask=LOWER, is_causal=True),
    lambda: Attending(need_weights=False, attn_mask=doubled((8, 5, 5))),
    lambda: Attending(keys=lambda x: x[:, :3].sin(), need_weights=False),
    lambda: Attending(keys=lambda x: x[:, :3].sin(), values=lambda x: x[:, :3].cos()),
    lambda: Attending({"batch_first": False, "bias": False}, need_weights=False),
    lambda: Attending({"kdim": 3, "vdim": 2}, keys=lambda x: x[..., :3], values=lambda x: x[..., :2]),
    lambda: Attending({"add_bias_kv": True}),
    lambda: Attending({"add_zero_attn": True}, need_weights=False),
], ids=["plain", "without_weights", "weights_of_heads", "masks", "padding", "causal", "masks_of_heads", "other_keys",
        "other_values", "tokens_first", "other_features", "bias_kv", "zero"])  # fmt: skip
def test_heads_of_attention(make):
    torch.manual_seed(0)
    for split in ([1, N, 1], [N, 1, 1]):
        ours = assert_equal_models(make().double(), (2, 5, 8), split, plan={"attention": "colwise"})
    if ours.attention.in_proj_weight is not None:
        assert ours.attention.in_proj_weight.shape == (6 * share(4), 8)
    else:
        assert ours.attention.k_proj_weight.shape == (2 * share(4), 3)
    if N > 1:
        ours = assert_equal_models(make().double(), (2, 5, 8), [1, N, 1], plan={"": [1, 1, 2]})
        assert ours.attention.out_proj.weight.numel() == (8 * 4 if job.rank < 2 else 0)


def test_heads_of_tokens_without_a_batch():
    torch.manual_seed(0)
    for make in (lambda: Attending(key_padding_mask=PADDING[1]), lambda: Attending(need_weights=False)):
        assert_equal_models(make().double(), (5, 8), [N, 1], plan={"attention": "colwise"})


def test_dropped_weights_of_heads():
    for options in ({}, {"need_weights": False}):
        model = Attending({"dropout": 0.5}, **options).double()
        plan = {"attention": "colwise"}
        torch.manual_seed(1)
        y = model(doubled((2, 5, 8)))[0]
        torch.manual_seed(1)
        P_x = grid(P_world, [1, N, 1])
        ours = distdl.distribute(model, P_x, plan=plan, as_sequential=True)
        z = distdl.gather(ours(distdl.scatter(doubled((2, 5, 8)), P_x))[0], P_x)
        assert_none([off(z, y, 1e-12)])


class Conv1D(torch.nn.Module):
    """A linear layer with the transposed weight, as GPT-2 has it."""

    def __init__(self, nf, nx):
        super().__init__()
        self.nf = nf
        self.weight, self.bias = torch.nn.Parameter(torch.randn(nx, nf)), torch.nn.Parameter(torch.randn(nf))

    def forward(self, x):
        return torch.addmm(self.bias, x.view(-1, x.size(-1)), self.weight).view(*x.shape[:-1], self.nf)


class Packed(torch.nn.Module):
    """Attention like that of GPT-2, then a gated network with both layers in one."""

    def __init__(self, features=16, heads=4, hidden=12):
        super().__init__()
        self.heads = heads
        self.c_attn, self.c_proj = Conv1D(3 * features, features), Conv1D(features, features)
        self.gate_up, self.down = torch.nn.Linear(features, 2 * hidden), torch.nn.Linear(hidden, features)

    def forward(self, x):
        parts = self.c_attn(x).split(x.shape[-1], dim=2)
        q, k, v = (part.view(*x.shape[:-1], self.heads, -1).transpose(1, 2) for part in parts)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)
        x = x + self.c_proj(y.reshape(x.shape))
        gate, up = self.gate_up(x).chunk(2, -1)
        return x + self.down(F.silu(gate) * up)


PACKED = {"c_attn": "colwise", "c_proj": "rowwise", "gate_up": "packed_colwise", "down": "rowwise"}


def received(ours, x, P_x):
    """The bytes that each rank receives in a second forward pass, and in both passes."""
    block = distdl.scatter(x, P_x).requires_grad_()
    ours(block).sum().backward()
    distdl.reset_comm_stats()
    y = ours(block)
    counts = [sum(stats.bytes_received for stats in distdl.comm_stats().values())]
    y.sum().backward()
    return together([*counts, sum(stats.bytes_received for stats in distdl.comm_stats().values())])


def test_only_tokens_travel():
    """Before a pair of layers the tokens are gathered, and after it summed and scattered, and nothing else travels."""
    torch.manual_seed(0)
    if 4 % N:
        return
    layer = torch.nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, batch_first=True)
    layer.norm1, layer.norm2 = torch.nn.Identity(), torch.nn.Identity()  # they have parameters, which travel
    layer.self_attn.out_proj.bias = layer.linear2.bias = None
    packed = Packed()
    packed.down.bias = None
    x = doubled((2, 4, 16))
    others = x.nbytes * (N - 1) // N
    for model, plan, bias in (
        (layer, {"self_attn": "colwise", "linear1": "colwise", "linear2": "rowwise"}, 0),
        (packed, PACKED, 8 * 16),
    ):
        P_x = grid(P_world, [1, N, 1])
        ours = assert_equal_models(model.double(), (2, 4, 16), [1, N, 1], plan=plan)
        ours = distdl.distribute(model.double(), P_x, plan=plan)
        for forward, both in received(ours, x, P_x):
            assert 4 * others <= forward <= 4 * others + N * bias
            assert 8 * others <= both <= 8 * others + 2 * N * bias


def test_packed_layers_of_each_rank():
    torch.manual_seed(0)
    for split in ([1, N, 1], [N, 1, 1]):
        ours = assert_equal_models(Packed().double(), (3, 4, 16), split, plan=PACKED)
    sizes = [16 // N + (job.rank < 16 % N), 12 // N + (job.rank < 12 % N)]
    assert ours.c_attn.weight.shape == (16, 3 * sizes[0])
    assert ours.c_attn.bias.shape == (3 * sizes[0],)
    assert ours.gate_up.weight.shape == (2 * sizes[1], 16)


class Otherwise(Packed):
    """Packed layers whose results are used as a whole, or cut elsewhere."""

    def forward(self, x):
        y = self.c_attn(x)
        first, rest = y.split([20, 28], -1)
        z = self.gate_up(first[..., :16] + y[..., :16]).sin()
        return super().forward(x), y, rest.flip(-1), z, self.gate_up.weight.sum(1), self.c_attn(x).view(-1, 6, 8)


def test_packed_layers_that_are_used_otherwise():
    torch.manual_seed(0)
    for split in ([1, N, 1], [N, 1, 1]):
        assert_equal_models(Otherwise().double(), (3, 4, 16), split, plan=PACKED)


class Loss(torch.nn.Module):
    """An encoder and packed layers, with a loss."""

    def __init__(self):
        super().__init__()
        self.encoder = torch.nn.TransformerEncoderLayer(16, 4, 8, dropout=0.0, batch_first=True)
        self.packed = Packed()

    def forward(self, x):
        return self.packed(self.encoder(x)).square().mean()


def trained(model, x):
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, eps=1e-3)  # some gradients are 0, up to rounding
    for _ in range(2):
        optimizer.zero_grad()
        model(x).backward()
        optimizer.step()
    return optimizer


def test_states_are_those_of_one_process(tmp_path):
    """Weights, gradients and states of an optimizer: gathered, saved, and loaded with another plan."""
    path = together(str(tmp_path / "model.safetensors"))[0]
    torch.manual_seed(0)
    model = Loss().double()
    x, sequential = doubled((2, 4, 16)), copy.deepcopy(model)
    words = {"encoder.self_attn": "colwise", **{f"packed.{name}": word for name, word in PACKED.items()}}
    plans = [words, {}, {"packed": [1, 1, N]}]
    P_x = grid(P_world, [1, N, 1])
    ours = distdl.distribute(model, P_x, plan=plans[0])
    optimizer = trained(ours, distdl.scatter(x, P_x))
    trained(sequential, x)
    expected, problems = sequential.state_dict(), []
    state, gradients = distdl.sequential_state_dict(ours), distdl.sequential_gradients(ours)
    if job.rank == 0:
        problems += [off(state[name], value, 1e-9) for name, value in expected.items()]
        problems += [off(gradients[name], each.grad, 1e-9) for name, each in sequential.named_parameters()]
    distdl.save(path, ours, optimizer)
    for plan in plans:
        other = distdl.distribute(copy.deepcopy(model), P_x, plan=plan)
        restored = torch.optim.Adam(other.parameters(), lr=0.01)
        distdl.load(path, other, restored)
        loaded = distdl.sequential_state_dict(other)
        if job.rank == 0:
            problems += [off(loaded[name], value, 1e-9) for name, value in expected.items()]
        distdl.save(path, other, restored)
    again = distdl.distribute(copy.deepcopy(model), P_x, plan=plans[0])
    restored = torch.optim.Adam(again.parameters(), lr=0.01)
    distdl.load(path, again, restored)
    for before, after in zip(ours.parameters(), again.parameters(), strict=True):
        problems.append(off(after.detach(), before.detach(), 1e-15))
        if before.numel():
            problems += [off(restored.state[after][key], optimizer.state[before][key], 1e-15)
                         for key in ("exp_avg", "exp_avg_sq")]  # fmt: skip
    distdl.load_sequential(ours, expected if job.rank == 0 else None)
    state = distdl.sequential_state_dict(ours)
    problems += [off(state[name], value, 0.0) for name, value in expected.items()] if job.rank == 0 else []
    assert distdl.parameter_count(ours) == sum(each.numel() for each in sequential.parameters())
    assert_none([" ".join(filter(None, problems))])


def test_files_of_other_shapes_are_refused(tmp_path):
    path = together(str(tmp_path / "model.safetensors"))[0]
    P_x = grid(P_world, [1, N, 1])
    distdl.save(path, distdl.distribute(Packed(features=24), P_x, plan=PACKED))
    ours = distdl.distribute(Packed(), P_x, plan=PACKED)
    raises_everywhere(RuntimeError, r"c_attn.weight of shape \[24, 72\], where the model has \[16, 48\]",
                      lambda: distdl.load(path, ours))  # fmt: skip


class Causal(torch.nn.Module):
    """Layers of causal attention."""

    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(4, 4) for _ in range(3))

    def forward(self, x):
        for layer in self.layers:
            y = layer(x).unflatten(-1, (1, 4)).transpose(1, 2)
            x = x + F.scaled_dot_product_attention(y, y, y, is_causal=True).transpose(1, 2).flatten(2)
        return x


def test_causal_layers_keep_one_mask():
    """Ranks with some rows keep the same mask for all layers; a rank with all rows keeps none."""
    for split, batch in (([1, N, 1], 1), ([N, 1, 1], N)):
        assert_equal_models(Causal().double(), (batch, 3 * N, 4), split)
        P_x, kept = grid(P_world, split), []
        ours = distdl.distribute(Causal().double(), P_x)
        x = distdl.scatter(doubled((batch, 3 * N, 4)), P_x)
        with torch.autograd.graph.saved_tensors_hooks(lambda x, kept=kept: kept.append(x) or x, lambda x: x):
            y = ours(x)
        masks = {x.untyped_storage().data_ptr() for x in kept if x.isinf().any()}
        rows_are_split = any(step.workers.splits[2] > 1 for step in ours.program.plan.steps
                             if step.node.key == "scaled_dot_product_attention")  # fmt: skip
        assert rows_are_split == (N > 1 == batch)
        assert all(count == int(rows_are_split) for count in together(len(masks)))
        y.sum().backward()

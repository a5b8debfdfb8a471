"""A mixture of experts on many ranks beside all experts on a single rank."""

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.checkpoint import checkpoint

import distdl
import distdl.nn as dnn
from support.blocks import block_of, blocks_of, grid, grid_shapes
from support.checkpoints import keep_some, selective
from support.families import Example
from support.ranks import draws, job, on_all_ranks, raises_everywhere, together
from support.sequential import assert_equals_sequential
from support.tensors import values

FEATURES = 3


def make_expert(number):
    """Different experts."""
    if number % 3 == 0:
        return torch.nn.Linear(FEATURES, FEATURES, dtype=torch.float64)
    return torch.nn.Sequential(
        torch.nn.Linear(FEATURES, number + 1, bias=False, dtype=torch.float64),
        torch.nn.Tanh(),
        torch.nn.Linear(number + 1, FEATURES, dtype=torch.float64),
    )


class Sequential(torch.nn.Module):
    """All experts in one process, token by token."""

    def __init__(self, num_experts, top_k, capacity_factor, normalize):
        super().__init__()
        self.options = top_k, capacity_factor, normalize
        experts = [make_expert(number) for number in range(num_experts)]
        self.gate = torch.nn.Parameter(torch.empty(num_experts, FEATURES, dtype=torch.float64))
        torch.nn.init.kaiming_uniform_(self.gate, a=math.sqrt(5))
        self.experts = torch.nn.ModuleList(experts)

    def forward(self, input):
        top_k, factor, normalize = self.options
        x = input.reshape(-1, FEATURES)
        weights, chosen = F.linear(x, self.gate).softmax(-1).topk(top_k)
        if normalize:
            weights = weights / weights.sum(-1, keepdim=True)
        room = [math.inf] * len(self.experts)
        if factor is not None:
            room = [math.ceil(factor * (top_k * len(x) / len(self.experts)))] * len(self.experts)
        result = []
        for token in range(len(x)):
            parts = [0 * x[token]]
            for place in range(top_k):
                number = int(chosen[token, place])
                if room[number] > 0:
                    parts.append(weights[token, place] * self.experts[number](x[token]))
                room[number] -= 1
            result.append(sum(parts))
        return torch.stack(result).reshape(input.shape) if result else input.clone()


def example(shape, num_experts, top_k=2, capacity_factor=None, normalize=True):
    """The layer with the same seed as its twin."""

    def twin():
        torch.manual_seed(2)
        return Sequential(num_experts, top_k, capacity_factor, normalize)

    def layer(_, P_x):
        torch.manual_seed(2)
        return dnn.DistributedMixtureOfExperts(
            P_x, FEATURES, num_experts, make_expert, top_k, capacity_factor, normalize, dtype=torch.float64
        )

    every = tuple(range(len(shape)))
    return Example(
        twin, lambda: (torch.sin(values(shape)),), len(shape), (every,), (every,), whole=(len(shape) - 1,), layer=layer
    )


@st.composite
def mixtures(draw):
    """Shapes of the tokens and of P_x, its ranks, blocks, and options."""
    dims = draw(st.integers(1, 3))
    shape = [*draw(st.lists(st.integers(0, 5), min_size=dims, max_size=dims)), FEATURES]
    workers = draw(st.sampled_from(grid_shapes(dims + 1, job.size, fixed=(dims,))))
    ranks = draw(st.permutations(range(job.size)))[: torch.Size(workers).numel()]
    num_experts = draw(st.integers(1, 7))
    top_k = draw(st.integers(1, min(3, num_experts)))
    options = num_experts, top_k, draw(st.sampled_from([None, None, 0.5, 1.0, 3])), draw(st.booleans())
    return shape, workers, ranks, draw(blocks_of(shape, workers)), options


@draws(160)
@given(mixtures(), st.sampled_from(["owner", "sharded"]))
@on_all_ranks
def test_equals_all_experts_on_one_rank(P_world, drawn, layout):
    """Values, gradients, second derivatives: uneven tokens, experts and workers without any."""
    shape, workers, ranks, sizes, options = drawn
    assert_equals_sequential(example(shape, *options), grid(P_world, workers, ranks), sizes, layout)


@pytest.mark.parametrize("num_experts", [1, 2, 5])
def test_first_values(P_world, num_experts):
    """With the same seed all parameters equal those in one process."""
    case = example((4, FEATURES), num_experts, 1)
    twin, layer = case.twin(), case.make(None, grid(P_world, (job.size, 1)))
    state = distdl.sequential_state_dict(layer)
    assert not state or all(torch.equal(state[name], value) for name, value in twin.state_dict().items())
    twin.load_state_dict({name: value + 1 for name, value in twin.state_dict().items()})
    distdl.load_sequential(layer, twin.state_dict())
    x = torch.sin(values((4, FEATURES)))
    P_x = grid(P_world, (job.size, 1))
    torch.testing.assert_close(layer(block_of(x, P_x)), block_of(twin(x), P_x))


@pytest.mark.parametrize("frozen", ["input", "gate", "experts", "input, gate", "input, experts", "gate, experts"])
def test_what_asks_for_no_gradient(P_world, frozen):
    P_x = grid(P_world, (job.size, 1))
    case = example((3 * job.size, FEATURES), 4)
    twin, layer = case.twin(), case.make(None, P_x)
    (x,) = case.inputs()
    for module in (twin, layer):
        module.gate.requires_grad_("gate" not in frozen)
        module.experts.requires_grad_("experts" not in frozen)
    block = block_of(x, P_x).requires_grad_("input" not in frozen)
    x.requires_grad_("input" not in frozen)
    twin(x).square().sum().backward()
    layer(block).square().sum().backward()
    if x.grad is not None:
        torch.testing.assert_close(block.grad, block_of(x.grad, P_x))
    for (name, parameter), own in zip(twin.named_parameters(), layer.parameters(), strict=True):
        if parameter.grad is not None and layer.layouts[name].intervals is not None and own.numel():
            torch.testing.assert_close(own.grad, parameter.grad)
        assert parameter.requires_grad or own.grad is None


def test_one_vote(P_world):
    """However the tokens are routed: the numbers of rows are nothing to agree on."""
    P_x = grid(P_world, (job.size, 1))
    layer = example((4, FEATURES), 3).make(None, P_x)
    layer(torch.randn(5, FEATURES, dtype=torch.float64))
    before = distdl._core.votes()
    for seed in range(3):
        torch.manual_seed(seed + job.rank)
        layer(torch.randn(5, FEATURES, dtype=torch.float64))
    assert distdl._core.votes() - before == (3 if job.size > 1 else 0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_precisions(P_world, dtype):
    """The result has the dtype of the input, also under autocast, and the gate's weights are in single precision."""
    P_x = grid(P_world, (job.size, 1))
    torch.manual_seed(1)
    layer = dnn.DistributedMixtureOfExperts(P_x, 8, 4, lambda number: torch.nn.Linear(8, 8, dtype=dtype), dtype=dtype)
    x = torch.randn(6, 8).to(dtype)
    y = layer(x)
    assert y.dtype == dtype
    with torch.autocast("cpu", torch.bfloat16):
        assert layer(x).dtype == dtype
    assert bool(y.isfinite().all())


def test_mistakes(P_world):
    P_x = grid(P_world, (job.size, 1))
    make = dnn.DistributedMixtureOfExperts
    for arguments, kind, match in (
        ((3, 2, make_expert, 3), ValueError, "top_k=3 of num_experts=2"),
        ((3, 0, make_expert, 1), ValueError, "num_experts=0"),
        ((3, 2, make_expert, 2, 0.0), ValueError, "positive and finite"),
        ((3, 2, make_expert, 2, "a"), TypeError, "capacity_factor"),
        ((3, 2, "expert"), TypeError, "make_expert"),
        ((3, 2, lambda number: number), TypeError, "module of one process"),
        ((3, 2, lambda number: torch.nn.BatchNorm1d(3)), TypeError, "buffers"),
    ):
        raises_everywhere(kind, match, lambda a=arguments: make(P_x, *a))
    layer = make(P_x, 3, 2, lambda number: torch.nn.Linear(3, 3))
    raises_everywhere(ValueError, "features=3", lambda: layer(torch.ones(2, 4)))
    layer(torch.ones(2, 3))


class Failing(torch.nn.Linear):
    """Fails, or answers in another shape."""

    how = "right"

    def forward(self, input):
        if self.how == "raises":
            raise KeyError("lost")
        return super().forward(input)[:, : 2 if self.how == "shape" else 3]


@pytest.mark.parametrize(("how", "kind", "match"), [("raises", RuntimeError, "lost"), ("shape", ValueError, "expert")])
def test_an_expert_that_fails_on_one_rank(P_world, how, kind, match):
    """All ranks hear of it in any call, in the first one also of an expert without tokens; then the next call works."""
    layer = dnn.DistributedMixtureOfExperts(
        grid(P_world, (job.size, 1)), 3, 2 * job.size, lambda number: Failing(3, 3), top_k=1
    )
    for rows in (2, 0):
        layer.experts[-1].how = how
        raises_everywhere(kind, match, lambda rows=rows: layer(torch.ones(rows, 3)))
        layer.experts[-1].how = "right"
        layer(torch.ones(rows, 3)).sum().backward()
    x = torch.ones(2, 3)
    number = job.bcast(int((x[:1] @ layer.gate.T).argmax()) if job.rank == 0 else None)
    layer(x)
    for way in (how, "right", how, "right"):  # in later calls, of the expert that has all tokens
        layer.experts[number].how = way
        if way == "right":
            layer(x).sum().backward()
        else:
            raises_everywhere(kind, match, lambda: layer(x))


@pytest.mark.mpi(min_size=2)
def test_experts_that_draw_random_numbers(P_world):
    """They would draw by rank; in evaluation they work."""
    layer = dnn.DistributedMixtureOfExperts(
        grid(P_world, (job.size, 1)),
        3,
        3,
        lambda number: torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Dropout(0.5)),
    )
    raises_everywhere(ValueError, "DistributedDropout", lambda: layer(torch.ones(2, 3)))
    layer.eval()
    layer(torch.ones(2, 3))
    layer.train(job.rank == 0)
    raises_everywhere(ValueError, "in training", lambda: layer(torch.ones(2, 3)))
    layer.train()
    raises_everywhere(ValueError, "DistributedDropout", lambda: layer(torch.ones(2, 3)))


@pytest.mark.ranks(1, 2)
@pytest.mark.parametrize("tokens", [1, 3])
def test_a_first_call_within_a_selective_checkpoint(P_world, tokens):
    """The experts are tried in it, which the call that is computed again does not do."""
    P_x = grid(P_world, [job.size, 1])
    torch.manual_seed(0)
    layer = dnn.DistributedMixtureOfExperts(P_x, FEATURES, 2 * job.size, make_expert, top_k=1, dtype=torch.float64)
    x = values([tokens, FEATURES], seed=job.rank)
    gradients = []
    for options in (selective(keep_some), None):
        block = x.clone().requires_grad_()
        y = layer(block) if options is None else checkpoint(layer, block, **options)
        gradients.append(torch.autograd.grad(y.sin().sum(), [block, *layer.parameters()], allow_unused=True))
    assert all(together(all((a is b) or torch.equal(a, b) for a, b in zip(*gradients, strict=True))))

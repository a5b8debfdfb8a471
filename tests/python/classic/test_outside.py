"""Ranks that have a part of the input only, of the result only, of both, or of none."""

import pytest
import torch

import distdl
import distdl.nn as dnn
from distdl.process import legacy_paths
from support.blocks import assemble, block_of
from support.classic.places import EMBEDDINGS, LAYERS, LOSSES, PRIMITIVES, on
from support.ranks import job, on_all_ranks, together
from support.tensors import fill_with_integers, values

pytestmark = pytest.mark.ranks(2, 3)

PLACES = {"both": ([0, 1], [0, 1]), "x first": ([0], [-1]), "y first": ([-1], [0]), "elsewhere": ([1], [1])}
everywhere = pytest.mark.parametrize("places", PLACES.values(), ids=PLACES)
kept_or_not = pytest.mark.parametrize("kept", [False, True], ids=["no batch", "batch"])


def nothing(kept, batch=2):
    """The shape of a result of which this rank has no part."""
    return (batch, 0) if kept else (0,)


def part_of(x, P, kept):
    """This rank's block of a tensor; nothing of it outside of P."""
    mine = block_of(x, P) if P.active else distdl.zero_volume_tensor(x.shape[0] if kept else None, x.dtype)
    return mine.requires_grad_(x.is_floating_point())


@kept_or_not
@everywhere
@pytest.mark.parametrize("name", LAYERS)
@on_all_ranks
def test_layers(P_world, name, places, kept):
    """They have no parameters, results are zero-volume tensors, and the numbers are those of the sequential layer."""
    layer, twin, x, P_x, P_y = LAYERS[name](P_world, *places)
    computes = any(layout.grid.active for layout in layer.layouts.values())
    if not computes:
        assert list(layer.parameters()) == []
        assert list(torch.nn.Sequential(layer).parameters()) == []
    if list(twin.parameters()):
        distdl.load_sequential(layer, fill_with_integers(twin).state_dict())
    layer.double()
    twin.double()
    whole = x.clone().requires_grad_()
    mine = part_of(x, P_x, kept)
    y, expected = layer(mine), twin(whole)
    if not P_y.active:
        assert y.shape == nothing(kept or P_x.active or computes, len(expected))
    assert torch.allclose(assemble(y, P_y, expected.shape), expected)
    y.backward(torch.ones_like(y))
    expected.sum().backward()
    assert torch.allclose(assemble(mine.grad, P_x, x.shape), whole.grad)


@kept_or_not
@everywhere
@pytest.mark.parametrize("name", EMBEDDINGS)
@on_all_ranks
def test_embeddings(P_world, name, places, kept):
    """All workers of P_x pass the same indices; ranks outside none of them."""
    P_x = on(P_world, places[0], 3)
    layer = getattr(dnn, name)(P_x, 5, 4)
    twin = fill_with_integers(torch.nn.Embedding(5, 4))
    distdl.load_sequential(layer, twin.state_dict())
    assert P_x.active or list(layer.parameters()) == []
    x = torch.tensor([[0, 2, 4], [2, 2, 1]])
    y, expected = layer(x if P_x.active else distdl.zero_volume_tensor(2 if kept else None, x.dtype)), twin(x)
    assert P_x.active or y.shape == nothing(kept)
    assert torch.equal(assemble(y, P_x, expected.shape), expected)
    y.sum().backward()
    expected.sum().backward()
    found = distdl.sequential_gradients(layer)
    assert job.rank or torch.equal(found["weight"], twin.weight.grad)


@kept_or_not
@everywhere
@pytest.mark.parametrize("reduction", ["mean", "none"])
@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.filterwarnings("ignore:reduction. 'mean' divides:UserWarning")
@on_all_ranks
def test_losses(P_world, name, reduction, places, kept):
    """The number is on the first worker of P_x, and 0 on all other ranks."""
    P_x = on(P_world, places[0], 2)
    layer, twin = getattr(dnn, f"Distributed{name}")(P_x, reduction), getattr(torch.nn, name)(reduction=reduction)
    x, target = (values([2, 7], seed=seed) / 4 for seed in (0, 5))
    whole, mine = x.clone().requires_grad_(), part_of(x, P_x, kept)
    found, expected = layer(mine, part_of(target, P_x, kept).detach()), twin(whole, target)
    if reduction == "none":
        assert P_x.active or found.shape == nothing(kept)
        assert torch.allclose(assemble(found, P_x, x.shape), expected)
    else:
        is_first = P_x.active and P_x.rank == 0
        assert torch.allclose(found, expected if is_first else torch.zeros_like(expected))
    found.sum().backward()
    expected.sum().backward()
    assert torch.allclose(assemble(mine.grad, P_x, x.shape), whole.grad)


@kept_or_not
@pytest.mark.parametrize("preserve_batch", [False, True])
@everywhere
@pytest.mark.parametrize("name", ["Repartition", "Broadcast", "SumReduce"])
@on_all_ranks
def test_primitives_between_two(P_world, name, places, preserve_batch, kept):
    """A rank that passes a part keeps its batch if it is to; a rank in neither partition gets back what it passes."""
    P_x, P_y = (on(P_world, ranks, 3) for ranks in places)
    layer = getattr(dnn, name)(P_x, P_y, preserve_batch=preserve_batch)
    x = values([2, 3, 4])
    mine = part_of(x, P_x, kept)
    y = layer(mine)
    if not P_y.active:
        assert y.shape == nothing(preserve_batch if P_x.active else kept)
    assert torch.equal(assemble(y, P_y, x.shape), x)
    y.backward(torch.ones_like(y))
    assert torch.equal(assemble(mine.grad, P_x, x.shape), torch.ones_like(x))


ALONE = {
    "AllGather": lambda P: dnn.AllGather(P, [2]),
    "ReduceScatter": lambda P: dnn.ReduceScatter(P, [2]),
    "AllSumReduce": lambda P: dnn.AllSumReduce(P, [2]),
    "HaloExchange": lambda P: dnn.HaloExchange(P, [[0, 0], [0, 0], [1, 1]]),
}


@kept_or_not
@everywhere
@pytest.mark.parametrize("name", ALONE)
@on_all_ranks
def test_primitives_of_one(P_world, name, places, kept):
    """The sum over all ranks of what they return, of ones, and the gradients of it: each element has come and gone."""
    P_x = on(P_world, places[0], 3)
    layer, n = ALONE[name](P_x), P_x.size
    mine = part_of(torch.ones(2, 3, 4 * n), P_x, kept)
    y = layer(mine)
    assert P_x.active or y.shape == nothing(kept)
    copies = {"HaloExchange": 1 + (n - 1) / (2 * n)}.get(name, 1 if name == "ReduceScatter" else n)
    assert sum(together(float(y.detach().sum()))) == 24 * n * copies
    y.sum().backward()
    assert sum(together(float(mine.grad.sum()))) == 24 * n * copies


def test_every_layer_is_here(P_world):
    """Those for two and three dimensions of space are those for one."""
    listed = [names for one in legacy_paths.module("paths").NN.values() for names in one.values()]
    names = " ".join(listed).replace("2d", "1d").replace("3d", "1d").split()
    kinds = {name: getattr(dnn, name, None) for name in names}
    layers = {name for name, kind in kinds.items() if isinstance(kind, type) and issubclass(kind, torch.nn.Module)}
    known = {*LAYERS, *EMBEDDINGS, *PRIMITIVES, *(f"Distributed{name}" for name in LOSSES)}
    others = {"Module", "Interpolate", "DistributedTranspose"}  # Interpolate has a file of its own
    assert {name for name in layers - known - others if not name.endswith("Base")} == set()


@pytest.mark.parametrize(
    "name", ["DistributedLinear", "DistributedChannelConv1d", "DistributedBatchNorm", "DistributedLayerNormZero"]
)
@on_all_ranks
def test_states(P_world, name):
    """A rank without parameters ignores those of a file, and takes part in states of the whole model."""
    layer, twin, *_ = LAYERS[name](P_world, [0], [0])
    layer.load_state_dict(fill_with_integers(twin).state_dict())
    found = distdl.sequential_state_dict(layer)
    assert all(torch.equal(found[key], one) for key, one in twin.state_dict().items() if found)
    assert bool(found) == (job.rank == 0)
    assert bool(list(layer.parameters())) == (job.rank == 0)


@on_all_ranks
def test_functions_that_take_a_model(P_world):
    """They count parameters and gradients of all ranks, on ranks that have none."""
    layer, twin, x, P_x, _ = LAYERS["DistributedLinear"](P_world, [0], [0])
    distdl.load_sequential(layer, fill_with_integers(twin).state_dict())
    x = torch.ones_like(x, dtype=torch.float32)
    layer(block_of(x, P_x)).sum().backward()
    twin(x).sum().backward()
    assert distdl.parameter_count(layer) == sum(one.numel() for one in twin.parameters())
    norm = torch.nn.utils.clip_grad_norm_(twin.parameters(), 1.0)
    assert torch.allclose(distdl.clip_grad_norm_(layer, 1.0), norm)
    gradients = distdl.sequential_gradients(layer)
    assert all(torch.allclose(gradients[name], one.grad) for name, one in twin.named_parameters() if job.rank == 0)


@pytest.mark.parametrize("places", [([0], [1]), ([1], [0])], ids=["computed elsewhere", "computed here"])
@on_all_ranks
def test_compiled(P_world, places):
    """A rank without parameters takes part in the backward pass of the others' parameters."""
    (P_x, P_w), x = (on(P_world, ranks, 2) for ranks in places), values([2, 4], torch.float32)
    layer = dnn.DistributedLinear(P_x, P_x, P_w, 4, 3)
    distdl.load_sequential(layer, fill_with_integers(twin := torch.nn.Linear(4, 3)).state_dict())
    y = torch.compile(layer, fullgraph=True, backend="aot_eager")(part_of(x, P_x, True).detach())
    assert torch.equal(assemble(y, P_x, [2, 3]), twin(x))
    assert y.requires_grad
    y.sum().backward()
    twin(x).sum().backward()
    gradients = distdl.sequential_gradients(layer)
    assert all(torch.equal(gradients[name], one.grad) for name, one in twin.named_parameters() if job.rank == 0)

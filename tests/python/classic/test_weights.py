"""Weights of old programs: their keys, one file for each rank, whole tensors, and parameters within layers."""

import io

import pytest
import torch
from safetensors import safe_open

import distdl
import distdl.nn as dnn
from support.blocks import assemble, block_of, grid
from support.ranks import job, together
from support.tensors import fill_with_integers, values

pytestmark = pytest.mark.ranks(1, 3)

KEYS = {
    "linear": ("weight", "sublinear.weight"),
    "convolution": ("weight", "conv_layer.weight"),
    "norm": ("weight", "gamma"),
}


def linear(P_world, **options):
    P_x, P_y, P_w = grid(P_world, [1, 1]), grid(P_world, [1, job.size]), grid(P_world, [job.size, 1])
    return dnn.DistributedLinear(P_x, P_y, P_w, 4, 7, **options), torch.nn.Linear(4, 7), values([3, 4]), P_x, P_y


def convolution(P_world, **options):
    P_x, P_y, P_w = (grid(P_world, [1, *shape, 1]) for shape in ([1], [job.size], [job.size, 1]))
    layer = dnn.DistributedConv1d(P_x, P_y, P_w, 2, 6, 3, **options)
    return layer, torch.nn.Conv1d(2, 6, 3), values([2, 2, 9]), P_x, P_y


def norm(P_world, **options):
    P_x = grid(P_world, [1, job.size])
    return dnn.DistributedBatchNorm(P_x, 7, **options), torch.nn.BatchNorm1d(7), values([5, 7]), P_x, P_x


LAYERS = {"linear": linear, "convolution": convolution, "norm": norm}
each = pytest.mark.parametrize("name", LAYERS)


def equal(layer, twin, x, P_x, P_y):
    x = x.float()
    expected = twin(x)
    return torch.allclose(assemble(layer(block_of(x, P_x)), P_y, expected.shape), expected, atol=1e-5)


def old_keys(state, name):
    """A state as an old program keeps it."""
    ours, old = KEYS[name]
    prefix, old_bias = old.rpartition(".")[0], {"gamma": "beta"}.get(old, "bias")
    names = {ours: old, "bias": f"{prefix}.{old_bias}".lstrip(".")}
    return {names.get(key, key): value for key, value in state.items()}


@each
def test_one_file_for_each_rank(P_world, name):
    """Under old keys; what a rank has nothing of need not be in its file, and may be there as zero volume."""
    layer, twin, *where = LAYERS[name](P_world)
    fill_with_integers(twin)
    if name == "norm":
        twin.running_var.fill_(3)
    layer.eval()
    twin.eval()
    distdl.load_sequential(layer, twin.state_dict())
    assert KEYS[name][1] in layer.state_dict()
    file = io.BytesIO()
    torch.save({key: one for key, one in layer.state_dict().items() if one.numel() > 0}, file)
    file.seek(0)
    other = LAYERS[name](P_world)[0].eval()
    other.load_state_dict(torch.load(file))
    assert equal(other, twin, *where)


@each
@pytest.mark.parametrize("old", [True, False])
def test_whole_tensors(P_world, name, old):
    """The same file on every rank, under old keys or under torch's."""
    layer, twin, *where = LAYERS[name](P_world)
    fill_with_integers(twin)
    state = twin.state_dict()
    model = torch.nn.Sequential(layer)
    model.load_state_dict({f"0.{key}": one for key, one in (old_keys(state, name) if old else state).items()})
    assert equal(layer, twin, *where)


@each
def test_collected(P_world, name):
    """Whole tensors on rank 0 alone, both ways."""
    layer, twin, *where = LAYERS[name](P_world, collect_state=True)
    fill_with_integers(twin)
    state = old_keys(twin.state_dict(), name)
    model = torch.nn.Sequential(layer)
    nothing = distdl.zero_volume_tensor()
    model.load_state_dict({f"0.{key}": one if job.rank == 0 else nothing for key, one in state.items()})
    collected = model.state_dict()
    assert set(collected) == {f"0.{key}" for key in state}
    for key, one in state.items():
        expected = one if job.rank == 0 else nothing
        assert torch.equal(collected[f"0.{key}"].float(), expected.float())
    assert equal(layer, twin, *where)


@each
def test_missing_and_unknown_keys(P_world, name):
    layer = LAYERS[name](P_world)[0]
    state = layer.state_dict()
    if next(iter(state.values())).numel():
        with pytest.raises(RuntimeError, match="Missing key"):
            layer.load_state_dict({})
    with pytest.raises(RuntimeError, match="Unexpected key"):
        layer.load_state_dict({**state, "other": torch.ones(1)})


def test_gamma_in_another_shape(P_world):
    """One number for each channel, with further dimensions."""
    layer = dnn.DistributedBatchNorm(grid(P_world, [1, 1, job.size]), 3)
    state = {**layer.state_dict(), "gamma": torch.arange(3.0).view(1, 3, 1), "beta": torch.ones(1, 3, 1)}
    layer.load_state_dict(state)
    if job.rank == 0:
        assert layer.gamma.tolist() == [0, 1, 2]
        assert layer.beta.tolist() == [1, 1, 1]


def test_parameters_within(P_world):
    """A parameter that is assigned there is the one that is used, trained and saved."""
    layer, twin, x, P_x, P_y = linear(P_world)
    own = layer.sublinear.weight
    assert isinstance(layer.sublinear, torch.nn.Linear)
    layer.sublinear.weight = torch.nn.Parameter(torch.full_like(own, 2.0))
    layer.sublinear.bias = torch.nn.Parameter(torch.zeros_like(layer.sublinear.bias))
    assert layer.weight is layer.sublinear.weight
    assert any(one is layer.weight for one in layer.parameters())
    with torch.no_grad():
        twin.weight.fill_(2.0)
        twin.bias.zero_()
    assert equal(layer, twin, x, P_x, P_y)
    layer.weight = torch.nn.Parameter(torch.full_like(own, 3.0))
    assert layer.sublinear.weight is layer.weight
    conv = convolution(P_world)[0]
    assert isinstance(conv.conv_layer, torch.nn.Conv1d)
    assert conv.conv_layer.weight is conv.weight
    batch = norm(P_world, affine=False)[0]
    assert (batch.gamma, batch.beta, batch.weight) == (None, None, None)
    assert linear(P_world, bias=False)[0].sublinear.bias is None


def test_sequential_names(P_world):
    """This library's functions use the names of torch.nn."""
    layer, twin, *_ = linear(P_world)
    model = torch.nn.Sequential(torch.nn.ReLU(), layer)
    state = {f"1.{key}": one for key, one in twin.state_dict().items()}
    distdl.load_sequential(model, state_dict=state)
    found = distdl.sequential_state_dict(model)
    assert list(found) == (list(state) if job.rank == 0 else [])
    assert all(torch.equal(found[key], state[key]) for key in found)


@each
@pytest.mark.parametrize("collect_state", [False, True])
def test_files_of_whole_tensors(P_world, tmp_path, name, collect_state):
    """They have the names of torch.nn and all values, also of layers whose states are collected."""
    path = together(str(tmp_path))[0] + "/model"
    layer, twin, *where = LAYERS[name](P_world, collect_state=collect_state)
    distdl.load_sequential(layer, fill_with_integers(twin).state_dict())
    optimizer = torch.optim.SGD(layer.parameters(), 0.1, momentum=0.9)
    layer(block_of(where[0].float(), where[1])).sum().backward()
    optimizer.step()
    distdl.save(path, layer, optimizer)
    assert KEYS[name][1] in layer.state_dict()
    expected = distdl.sequential_state_dict(layer)
    with safe_open(path, framework="pt") as file:
        assert set(twin.state_dict()) <= set(file.keys())
        assert all(torch.equal(file.get_tensor(key), value) for key, value in expected.items())
    other = LAYERS[name](P_world, collect_state=not collect_state)[0]
    distdl.load(path, other, torch.optim.SGD(other.parameters(), 0.1, momentum=0.9))
    found = distdl.sequential_state_dict(other)
    assert all(torch.equal(found[key], value) for key, value in expected.items())


def test_a_layer_within_that_a_program_changed(P_world):
    """Its parameters are in the state, under their own names."""
    layer = linear(P_world)[0]
    layer.sublinear.extra = torch.nn.Parameter(torch.ones(2))
    assert "sublinear.extra" in distdl.sequential_state_dict(layer) or job.rank


@pytest.mark.parametrize("options", [{"num_heads": 12}, {"geglu": True}], ids=["heads", "geglu"])
def test_outputs_in_another_order(P_world, tmp_path, options):
    """The states, gradients and files of the whole model have the order of the sequential layer."""
    path = together(str(tmp_path))[0] + "/model"
    P_x, twin, x = grid(P_world, [1, job.size]), torch.nn.Linear(2, 36), values([3, 2], torch.float32)
    layer = dnn.DistributedLinearAllGatherZero.from_sequential(fill_with_integers(twin), P_x, **options)
    optimizers = [torch.optim.SGD(one.parameters(), 0.5, momentum=0.5) for one in (layer, twin)]
    weights = torch.arange(36.0)

    def step(model, optimizer, block, weights):
        (model(block) * weights).sum().backward()
        optimizer.step()

    mine = weights[layer.order()].view(job.size, -1)[job.rank]
    for _ in range(2):
        step(layer, optimizers[0], block_of(x, P_x), mine)
        step(twin, optimizers[1], x, weights)
    assert torch.equal(layer(block_of(x, P_x)), twin(x)[:, layer.order()].view(3, job.size, -1)[:, job.rank])
    gradients = distdl.sequential_gradients(layer)
    assert all(torch.equal(gradients[name], one.grad) for name, one in twin.named_parameters() if gradients)
    distdl.save(path, layer, optimizers[0])
    alone = dnn.DistributedLinearAllGather(grid(P_world, [1, 1]), 2, 36, **options)
    optimizer = torch.optim.SGD([{"params": alone.parameters()}], 0.5, momentum=0.5)  # none on the other ranks
    distdl.load(path, alone, optimizer)
    assert gradients == {} or torch.equal(alone.weight, twin.weight)
    if gradients:
        assert torch.equal(
            optimizer.state[alone.weight]["momentum_buffer"], optimizers[1].state[twin.weight]["momentum_buffer"]
        )

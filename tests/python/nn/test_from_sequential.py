"""Layers from their sequential twins: options, weights from one rank, and the table of classes."""

import copy

import pytest
import torch

import distdl
import distdl.nn as dnn
from support.blocks import assemble, block_of, grid
from support.classes import CALLS, EXAMPLES
from support.families import EXAMPLES as FAMILY_EXAMPLES
from support.ranks import job, raises_everywhere
from support.tensors import values


def test_every_class_has_an_example():
    assert set(dnn.SEQUENTIAL) <= {*EXAMPLES, *(type(example.twin()) for example in FAMILY_EXAMPLES.values())}


@pytest.mark.ranks(1)
@pytest.mark.parametrize("kind", dnn.SEQUENTIAL, ids=lambda kind: kind.__name__)
def test_classes_that_derive(kind):
    """From a layer of torch.nn, or from ours: their names say nothing."""
    layer = dnn.SEQUENTIAL[kind]
    assert type("Own", (layer,), {}).sequential_classes() == layer.sequential_classes()
    module = copy.deepcopy(CALLS[kind][0]())  # which others may have
    expected = repr(layer.options_of(module))
    module.__class__ = type("Own", (kind,), {})
    assert repr(layer.options_of(module)).replace("Own(", f"{kind.__name__}(") == expected


@pytest.mark.parametrize(("make", "shape"), EXAMPLES.values(), ids=[twin.__name__ for twin in EXAMPLES])
@pytest.mark.parametrize("root", ["first", "last"])
def test_equals_the_twin(P_world, make, shape, root):
    """Each rank passes a module with other weights: the root's count."""
    root = 0 if root == "first" else job.size - 1
    torch.manual_seed(10 + job.rank)
    twin = make().double()
    fill = -1 if isinstance(twin, torch.nn.Linear) else len(shape) - 1
    workers = [1] * len(shape)
    workers[0 if fill == -1 else fill] = job.size
    P_x = grid(P_world, workers)
    layer = dnn.SEQUENTIAL[type(twin)].from_sequential(twin, P_x, root=root)
    for value in twin.state_dict().values():
        value.copy_(torch.from_numpy(job.bcast(value.numpy(), root)))
    x = values(shape) / 2
    if isinstance(twin, torch.nn.MSELoss | torch.nn.CrossEntropyLoss):
        P_x = grid(P_world, [job.size, 1])
        layer = dnn.SEQUENTIAL[type(twin)].from_sequential(twin, P_x, root=root)
        target = values(shape, seed=1) if isinstance(twin, torch.nn.MSELoss) else torch.arange(3)
        P_target = P_x if target.dim() == 2 else grid(P_world, [job.size])
        assert torch.allclose(layer(block_of(x, P_x), block_of(target, P_target)), twin(x, target), rtol=1e-14)
        return
    expected = twin(x)
    y = assemble(layer(block_of(x, P_x)), P_x, expected.shape)
    assert torch.allclose(y, expected, rtol=1e-13, atol=1e-13)


def test_modes_and_frozen_parameters(P_world):
    twin = torch.nn.Linear(3, 2).eval()
    twin.weight.requires_grad_(False)
    layer = dnn.DistributedLinear.from_sequential(twin, grid(P_world, [job.size, 1]))
    assert not layer.training
    assert not layer.weight.requires_grad
    assert layer.bias.requires_grad


def test_a_module_on_the_meta_device(P_world):
    """Nobody has its weights: the layer draws its own, as the sequential layer does with this seed."""
    twin = torch.nn.Conv1d(2, 3, 3, device="meta", dtype=torch.float64)
    torch.manual_seed(2)
    layer = dnn.DistributedConv1d.from_sequential(twin, grid(P_world, [1, 1, job.size]))
    torch.manual_seed(2)
    expected = torch.nn.Conv1d(2, 3, 3, dtype=torch.float64).state_dict()
    state = distdl.sequential_state_dict(layer)
    assert job.rank > 0 or all(torch.equal(state[name], value) for name, value in expected.items())


def test_on_the_meta_device_on_all_ranks_but_the_root(P_world):
    torch.manual_seed(1)
    device = None if job.rank == 0 else "meta"
    twin = torch.nn.Linear(3, 2, device=device)
    layer = dnn.DistributedLinear.from_sequential(twin, grid(P_world, [job.size, 1]))
    state = distdl.sequential_state_dict(layer)
    assert job.rank > 0 or all(torch.equal(state[name], value) for name, value in twin.state_dict().items())


def test_options_in_place_of_the_modules(P_world):
    P_x = grid(P_world, [1, 1, job.size])
    layer = dnn.DistributedMaxPool1d.from_sequential(torch.nn.MaxPool1d(2), P_x, output_blocks="aligned", stride=1)
    assert (layer.kernel_size, layer.stride, layer.output_blocks) == ((2,), (1,), "aligned")


def test_partitions_for_split_features(P_world):
    P_x, P_W = grid(P_world, [1, 1]), grid(P_world, [job.size, 1])
    twin = torch.nn.Linear(5, 7).double()
    layer = dnn.DistributedLinear.from_sequential(twin, P_x, grid(P_world, [1, job.size]), P_W)
    for parameter in twin.parameters():
        parameter.data.copy_(torch.from_numpy(job.bcast(parameter.detach().numpy(), 0)))
    x = values([3, 5])
    y = assemble(layer(block_of(x, P_x)), grid(P_world, [1, job.size]), [3, 7])
    assert torch.allclose(y, twin(x), rtol=1e-13, atol=1e-13)


def test_another_class_raises_on_all(P_world):
    P_x = grid(P_world, [job.size, 1])
    other = torch.nn.Conv1d(1, 1, 1) if job.rank == job.size - 1 else torch.nn.Linear(3, 2)
    rule = r"was passed a Conv1d; it takes torch\.nn\.Linear"
    raises_everywhere(TypeError, rule, lambda: dnn.DistributedLinear.from_sequential(other, P_x))


@pytest.mark.parametrize("root", [job.size, -1])
def test_a_wrong_root_on_one_rank_raises_on_all(P_world, root):
    P_x = grid(P_world, [job.size, 1])
    local_root = root if job.rank == 0 else 0

    def make():
        return dnn.DistributedLinear.from_sequential(torch.nn.Linear(3, 2), P_x, root=local_root)

    raises_everywhere(ValueError, f"root {root} is none of the ranks", make)


def test_other_parameters_on_one_rank_raise_on_all(P_world):
    P_x, module = grid(P_world, [job.size, 1]), torch.nn.Linear(3, 2)
    if job.rank == 0:
        module.scale = torch.nn.Parameter(torch.ones(1))

    def make():
        return dnn.DistributedLinear.from_sequential(module, P_x)

    raises_everywhere(TypeError, r"the layer has no parameters \['scale'\]", make)


@pytest.mark.filterwarnings("ignore:Lazy modules")
def test_a_lazy_module_raises(P_world):
    P_x = grid(P_world, [job.size, 1])

    def make():
        return dnn.DistributedLinear.from_sequential(torch.nn.LazyLinear(2), P_x)

    raises_everywhere(TypeError, "parameters are not initialized", make)


def test_exchanged_arguments_on_one_rank_raise_on_all(P_world):
    P_x, module = grid(P_world, [job.size, 1]), torch.nn.Linear(3, 2)
    arguments = (P_x, module) if job.rank == 0 else (module, P_x)
    rule = r"was passed a Partition; it takes torch\.nn\.Linear"
    raises_everywhere(TypeError, rule, lambda: dnn.DistributedLinear.from_sequential(*arguments))

"""Autocast and the scale of the loss on a device, beside torch.nn on the same device."""

import copy
import math
import random

import pytest
import torch

import distdl
from support.blocks import block_of, grid
from support.distributed import noise, over_rows
from support.families import EXAMPLES, splits
from support.models import Dense, Residual, Tokens
from support.ranks import job, raises_everywhere, together
from support.sequential import as_tuple, block, close, joined_blocks
from support.training import Twins
from support.versions import TORCH

HALF = torch.bfloat16


def leaves_of(tensors, dtype, device, example):
    """In a precision, on the device."""
    moved = [x.detach().to(device, dtype if x.is_floating_point() else x.dtype) for x in tensors]
    chosen = range(len(moved)) if example.differentiable is None else example.differentiable
    return [x.requires_grad_(i in chosen and x.is_floating_point()) for i, x in enumerate(moved)]


def called(layer, inputs, example):
    """The results, with the random numbers of each call."""
    torch.manual_seed(3)
    return as_tuple(layer(*inputs, **example.call))


@pytest.mark.filterwarnings("ignore:Mismatch dtype between input and weight")  # torch's own, of its RMSNorm
@pytest.mark.parametrize("dtype", [torch.float32, HALF], ids=str)
@pytest.mark.parametrize("example", EXAMPLES.values(), ids=EXAMPLES)
def test_layers(P_world, example, dtype, device):
    """The dtypes and values of torch.nn, and gradients of the dtypes of the inputs."""
    P = grid(P_world, random.Random(str(example.cuts)).choice(splits(example)))
    wholes = leaves_of(example.inputs(), dtype, device, example)
    own = [block(x.detach().cpu(), P, cut) for x, cut in zip(wholes, example.cuts, strict=True)]
    own = leaves_of(own, dtype, device, example)
    twin, layer = (example.twin().float().to(device) for _ in range(2))
    layer = example.make(example.twin().float(), P).to(device)
    if TORCH < (2, 13) and dtype is HALF and hasattr(twin, "_random_samples"):
        return  # torch reads the samples as if they had the dtype of the input
    with torch.autocast(device, HALF):
        try:
            expected = called(twin, wholes, example)
            torch.accelerator.synchronize()
        except (RuntimeError, NotImplementedError):  # torch has no kernel
            return
        results = called(layer, own, example)
    assert all(together([y.dtype for y in results] == [y.dtype for y in expected]))
    for y, whole, cut in zip(results, expected, example.results, strict=True):
        if cut is not None:
            y = joined_blocks(y, P, whole.shape, cut, None, example.first_of)
        off = close(y.detach().cpu().double(), whole.detach().cpu().double(), 16 * torch.finfo(HALF).eps)
        assert all(together(off)), (y, whole)
    for outputs in (expected, results):
        graph = [y for y in outputs if y.requires_grad]
        torch.autograd.backward(graph, [torch.linspace(1, 9, y.numel()).square().reshape(y.shape).to(y) for y in graph])
    for whole, leaf in zip(wholes, own, strict=True):
        assert all(together(leaf.grad is None or leaf.grad.dtype == leaf.dtype))
        has_gradient = leaf.grad is not None and bool(leaf.grad.any())
        assert any(together(has_gradient)) == (whole.grad is not None and bool(whole.grad.any()))


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("modes", [(HALF, None), (None, HALF), (HALF, torch.float16)], ids=["on", "off", "dtype"])
@pytest.mark.parametrize("kind", ["layer", "model"])
def test_ranks_that_differ(P_world, kind, modes, device):
    """In autocast on the last rank."""
    model, P_x = over_rows(torch.nn.Conv2d(2, 3, 3))
    model = model.to(device)
    layer = distdl.nn.DistributedConv2d(P_x, 2, 3, 3).to(device) if kind == "layer" else model
    x = distdl.scatter(noise((2, 2, 4 * job.size, 5)).float(), P_x).detach().to(device)
    mode = modes[job.rank == job.size - 1]

    def call():
        with torch.autocast(device, mode, enabled=mode is not None):
            layer(x)

    raises_everywhere(ValueError, "autocast torch.bfloat16", call)
    mode = HALF
    call()


class Mixed(torch.nn.Module):
    """A model that turns autocast off, and on, for some of its layers."""

    def __init__(self, device):
        super().__init__()
        self.device = device
        self.first, self.second = torch.nn.Conv2d(2, 4, 3, padding=1), torch.nn.Conv2d(4, 2, 3)

    def forward(self, x):
        with torch.autocast(self.device, enabled=False):
            x = self.first(x.float())
        with torch.autocast(self.device, torch.float16):
            return self.second(x), x


MODELS = {"residual": Residual, "dense": Dense, "tokens": Tokens}


def as_list(results):
    """The results of a model, in order."""
    return torch.utils._pytree.tree_leaves(results)


@pytest.mark.parametrize("outside", [True, False])
@pytest.mark.parametrize("name", [*MODELS, "mixed"])
def test_distributed_models(name, outside, device):
    """The dtypes and values of the model on the device."""
    torch.manual_seed(0)
    model = (Mixed(device) if name == "mixed" else MODELS[name]()).to(device)
    ours, P_x = over_rows(copy.deepcopy(model).cpu())
    ours, whole = ours.to(device), noise((2, 2, 12, 10)).float()
    x = distdl.scatter(whole, P_x).detach().to(device)
    with torch.autocast(device, HALF, enabled=outside):
        expected, results = as_list(model(whole.to(device))), as_list(ours(x))
        gathered = as_list(distdl.gather(ours(x), ours.output_partition))
    assert all(together([y.dtype for y in results] == [y.dtype for y in expected]))
    fits = [
        close(y.detach().cpu().double(), whole.detach().cpu().double(), 16 * torch.finfo(HALF).eps)
        for y, whole in zip(gathered, expected, strict=True)
    ]
    assert together(all(fits))[0], (gathered, expected)


@pytest.mark.parametrize("layout", ["owner", "sharded", "replicated"])
def test_scaled_steps(P_world, layout, device):
    """A step of all ranks is skipped where an element of one block overflows."""
    twins = Twins(P_world, layout, torch.float32)
    twins.twin.to(device)
    twins.model.to(device)

    def loss_of_twin(number):
        x, target = (whole.to(device) for whole in twins.batch(number))
        return torch.nn.functional.mse_loss(twins.twin(x), target)

    def own_loss(number):
        x, target = (block_of(whole, twins.P_x).to(device) for whole in twins.batch(number))
        return twins.loss(twins.model(x), target)

    def run(model, loss, scaler):
        optimizer, scales = torch.optim.SGD(model.parameters(), lr=0.1), []
        for step in range(5):
            optimizer.zero_grad()
            with torch.autocast(device, torch.float16):
                value = loss(step)
            scaler.scale(value).backward()
            weight = model[1].weight
            if step == 1 and weight.numel() and (model is twins.twin or job.rank == 0):
                weight.grad.view(-1)[-1] = math.inf
            scaler.step(optimizer)
            scaler.update()
            scales.append(scaler.get_scale())
        return scales

    options = {"device": device, "init_scale": 1024.0, "growth_interval": 2}
    expected = run(twins.twin, loss_of_twin, torch.amp.GradScaler(**options))
    measured = run(twins.model, own_loss, distdl.GradScaler(**options))
    assert together(measured) == [expected] * job.size
    assert expected == [1024, 512, 512, 1024, 1024]
    twins.twin.cpu()
    twins.model.cpu()
    twins.assert_equal(rtol=0, atol=16 * torch.finfo(torch.float16).eps)

"""Compiled models over partitions: what their calls leave in buffers, and why a model cannot be recorded."""

import copy

import pytest
import torch

import distdl
from support.blocks import grid
from support.distributed import assert_none, noise, off
from support.ranks import job, raises_everywhere, together

P_world = distdl.Partition(job)
pytestmark = [
    pytest.mark.shared,
    pytest.mark.usefixtures("fresh_compiler"),
    # Warnings of modules that torch imports when it compiles.
    pytest.mark.filterwarnings("ignore:`torch.jit.script", "ignore:.*:DeprecationWarning:torch"),
]


class Statistics(torch.nn.Module):
    """Writes into buffers as users do: counts, averages, a buffer that is read too, and one that is not persistent."""

    def __init__(self):
        super().__init__()
        self.convolution = torch.nn.Conv2d(3, 3, 3, padding=1)
        self.register_buffer("count", torch.zeros((), dtype=torch.long))
        self.register_buffer("running", torch.zeros(3))
        self.register_buffer("scale", torch.ones(1, 3, 1, 1))
        self.register_buffer("last", torch.zeros(3), persistent=False)

    def forward(self, x):
        y = self.convolution(x) * self.scale.clone()
        if self.training:
            self.count += 1
            with torch.no_grad():
                self.running.copy_(0.9 * self.running + 0.1 * y.mean((0, 2, 3)))
                self.scale.mul_(0.9).add_(y.abs().amax((0, 2, 3), keepdim=True), alpha=0.1)
                self.last = 2 * self.running
        return y + self.running[:, None, None]


class SharedRunningMean(torch.nn.Module):
    """Two layers with the same buffer."""

    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.BatchNorm2d(3), torch.nn.BatchNorm2d(3)
        self.second.running_mean = self.first.running_mean

    def forward(self, x):
        return self.second(self.first(x).relu())


def normalized():
    return torch.nn.Sequential(torch.nn.BatchNorm2d(3), torch.nn.Conv2d(3, 2, 3, padding=1), torch.nn.BatchNorm2d(2))


def instance_norm():
    return torch.nn.InstanceNorm2d(3, track_running_stats=True)


def spectral():
    return torch.nn.utils.parametrizations.spectral_norm(torch.nn.Conv2d(3, 4, 3, padding=1))


MODELS = [normalized, instance_norm, Statistics, SharedRunningMean, spectral]


def problems_in_buffers(ours, model):
    """Differences between the models' states, on rank 0, and between their buffers on this rank."""
    state = distdl.sequential_state_dict(ours)
    wrong = [off(state[name], tensor) for name, tensor in model.state_dict().items() if job.rank == 0]
    here, expected = dict(ours.named_buffers()), dict(model.named_buffers())
    wrong += [f"{name} here" for name, b in expected.items() if not torch.allclose(here[name].double(), b.double())]
    return "".join(wrong)


def check_calls(ours, model, call, inputs):
    """Compare results, gradients and buffers of calls with the same tensors: `call` is ours, perhaps compiled."""
    for whole in inputs:
        model.zero_grad()
        ours.zero_grad()
        y, expected = call(distdl.scatter(whole, ours.P_x)), model(whole)
        if y.requires_grad:
            y.square().sum().backward()
            expected.square().sum().backward()
            gradients = distdl.sequential_gradients(ours)
            named = model.named_parameters() if job.rank == 0 else ()
            assert_none(["".join(off(gradients[name], parameter.grad, 1e-9) for name, parameter in named)])
        assert_none([off(distdl.gather(y.detach(), ours.output_partition), expected)])
        assert not any(together(problems_in_buffers(ours, model)))


def images(*batches):
    return [noise((n, 3, 8, 6), seed) for seed, n in enumerate(batches)]


@pytest.mark.parametrize("gradients", [True, False])
@pytest.mark.parametrize("make", MODELS)
def test_buffers(make, gradients):
    """At each new shape, the compiler itself calls the model on zeros, which must not change the buffers."""
    torch.manual_seed(0)
    model = make().double()
    ours = distdl.distribute(model, grid(P_world, [1, 1, job.size, 1]))
    compiled = torch.compile(ours, backend="aot_eager", fullgraph=True)
    with torch.set_grad_enabled(gradients):
        check_calls(ours, model, compiled, images(2, 2, 3, 2))
        model.eval(), ours.eval()
        check_calls(ours, model, compiled, images(2, 3))


@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_buffers_with_other_compilers(backend):
    torch.manual_seed(0)
    model = torch.nn.Sequential(Statistics(), torch.nn.BatchNorm2d(3)).double()
    ours = distdl.distribute(model, grid(P_world, [1, 1, job.size, 1]))
    check_calls(ours, model, torch.compile(ours, backend=backend), images(2, 2))


def test_compiling_after_a_call():
    """The compiler's call on zeros changes no buffer either if an earlier call has recorded the program."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(Statistics(), torch.nn.BatchNorm2d(3)).double()
    ours = distdl.distribute(model, grid(P_world, [1, 1, job.size, 1]))
    compiled = torch.compile(ours, backend="aot_eager", fullgraph=True)
    for call in (ours, compiled, ours, compiled):
        check_calls(ours, model, call, images(2))


def test_layers_that_fewer_workers_compute():
    torch.manual_seed(0)
    model = normalized().double()
    plan = {"2": P_world.create_partition_inclusive([0]).create_cartesian_topology_partition([1, 1, 1, 1])}
    ours = distdl.distribute(model, grid(P_world, [1, 1, job.size, 1]), plan=plan)
    check_calls(ours, model, torch.compile(ours, backend="aot_eager", fullgraph=True), images(2, 2))


def test_export():
    """An exported program reads the model's buffers, not those with which it was traced."""
    torch.manual_seed(0)
    model = normalized().double()
    model(images(2)[0])
    model.eval()
    ours = distdl.distribute(model, grid(P_world, [1, 1, job.size, 1]))
    x = distdl.scatter(images(2)[0], ours.P_x)
    program = torch.export.export(copy.deepcopy(ours), (x,)).module()
    y = distdl.gather(program(x).detach(), ours.P_x)
    assert_none([off(y, model(images(2)[0]))])


def test_buffers_that_are_assigned():
    torch.manual_seed(0)
    model = normalized().double()
    ours = distdl.distribute(model, grid(P_world, [1, 1, job.size, 1]))
    for seed in range(2):
        for module in (model, ours.module):
            module[0].running_mean = noise((3,), seed)
        check_calls(ours, model, ours, images(2))
    model.eval(), ours.eval()
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    state["0.running_mean"] += 1
    model.load_state_dict(state)
    with torch.no_grad():
        ours.load_state_dict(ours.state_dict() | {"0.running_mean": state["0.running_mean"]}, assign=True)
    check_calls(ours, model, ours, images(2))


def test_buffers_of_other_shapes_on_one_rank():
    ours = distdl.distribute(normalized().double(), grid(P_world, [1, 1, job.size, 1]))
    x = distdl.scatter(images(2)[0], ours.P_x)
    ours(x)
    if job.rank == job.size - 1:
        ours.module[0].running_mean = noise((5,))
    raises_everywhere(ValueError, r"the buffers have shapes \[\[5\], \[3\], .*, and had \[\[3\]", lambda: ours(x))


class LooksAtValues(torch.nn.Module):
    def forward(self, x):
        return x if x.sum() > 0 else -x


@pytest.mark.filterwarnings("ignore:Dynamo")
def test_message_if_a_first_call_cannot_be_recorded():
    P_x = grid(P_world, [1, 1, P_world.size, 1])
    compiled = torch.compile(distdl.distribute(LooksAtValues(), P_x), backend="eager")
    x = distdl.scatter(noise((2, 2, 6, 5)), P_x)
    raises_everywhere(NotImplementedError, "bool looks at the values of a tensor", lambda: compiled(x), seconds=60)

"""Models whose state, or whose attributes, are more than tensors."""

import copy
import threading

import pytest
import torch

import distdl
from support.blocks import grid
from support.distributed import noise, off
from support.ranks import job, raises_everywhere

P_world = distdl.Partition(job)
SHAPE = (2, 3, 6, 5)


class WithMetadata(torch.nn.Sequential):
    """Adds to its state with which options it was made, and gives names of its own."""

    def state_dict(self, *args, prefix="", **kwargs):
        state = super().state_dict(*args, prefix=prefix, **kwargs)
        return {f"net_{name}": value for name, value in state.items()} | {"_metadata": {"made": "here"}}


class Calibrated(torch.nn.Conv2d):
    """Keeps numbers, texts and a tensor that are neither parameters nor buffers."""

    def __init__(self, *args, seen=None):
        super().__init__(*args)
        self.seen = seen

    def get_extra_state(self):
        return {"seen": self.seen, "scale": torch.tensor([1.5, 2.0])}

    def set_extra_state(self, state):
        self.seen = state["seen"]


class WithALock(torch.nn.Module):
    """Has attributes that cannot be copied, alone, in a list and in a dict."""

    def __init__(self):
        super().__init__()
        self.lock, self.operators = threading.Lock(), [torch.ops.aten, {"generator": torch.Generator()}]
        self.first = torch.nn.Conv2d(3, 2, 3)

    def forward(self, x):
        with self.lock:
            return self.operators[0].relu(self.first(x))


def made():
    return WithMetadata(torch.nn.Conv2d(3, 2, 3), torch.nn.BatchNorm2d(2)).double()


def over_rows(model):
    return distdl.distribute(model, grid(P_world, [1, 1, P_world.size, 1]))


def weights_of(model):
    """On rank 0, by the names that modules have."""
    return dict(model.named_parameters()) | dict(model.named_buffers())


def test_states_that_a_class_has_changed():
    model = made()
    state = distdl.sequential_state_dict(over_rows(model))
    problems = [off(state[name], tensor) for name, tensor in weights_of(model).items()] if job.rank == 0 else []
    assert not any(job.bcast(problems))
    assert job.rank or state.keys() == weights_of(model).keys()


def test_such_a_model_within_another_one():
    model = torch.nn.Sequential(made(), torch.nn.ReLU()).double()
    ours, other = over_rows(model), over_rows(copy.deepcopy(model).requires_grad_(False))
    for parameter in other.parameters():
        parameter.zero_()
    distdl.load_sequential(other, distdl.sequential_state_dict(ours) | ({"_metadata": {}} if job.rank == 0 else {}))
    state = distdl.sequential_state_dict(other)
    problems = [off(state[name], tensor) for name, tensor in weights_of(model).items()] if job.rank == 0 else []
    assert not any(job.bcast(problems))


@pytest.mark.parametrize("within", [False, True], ids=["alone", "within"])
def test_extra_state(tmp_path, within):
    def model(seen):
        layer = Calibrated(3, 2, 3, seen=seen)
        return (torch.nn.Sequential(layer) if within else layer).double()

    name = "0._extra_state" if within else "_extra_state"
    ours, second, third = over_rows(model(7)), over_rows(model(1)), over_rows(model(2))
    state = distdl.sequential_state_dict(ours)
    assert job.rank or state[name]["seen"] == 7
    distdl.load_sequential(second, state)
    path = job.bcast(tmp_path / "model")
    distdl.save(path, ours, epoch=3)
    assert distdl.load(path, third) == {"epoch": 3}
    for network in (second, third):
        kept = network.module[0] if within else network.module
        assert kept.seen == 7
    plain = over_rows(torch.nn.Conv2d(3, 2, 3).double())
    raises_everywhere(
        RuntimeError, "extra states", lambda: distdl.load(path, plain, rename={"0": ""} if within else {})
    )


def test_attributes_that_cannot_be_copied():
    torch.manual_seed(0)
    model = WithALock().double()
    ours = over_rows(model)
    x = distdl.scatter(noise(SHAPE), ours.P_x)
    y = distdl.gather(ours(x), ours.output_partition)
    assert job.rank or not off(y, model(noise(SHAPE)))

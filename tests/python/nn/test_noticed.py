"""Layers notice habits of one process in their first call: one warning, on one rank."""

import warnings

import pytest
import torch

import distdl
import distdl.nn as dnn
from distdl.diagnostics import first_call as noticed
from support.blocks import grid
from support.ranks import job, raises_everywhere, together

pytestmark = [pytest.mark.ranks(2), pytest.mark.usefixtures("_nothing_said")]


def conv(P):
    torch.manual_seed(0)
    return dnn.DistributedConv1d(grid(P, [1, 1, 2]), 2, 3, 3)


@pytest.fixture
def _nothing_said():
    noticed.said.clear()
    yield
    noticed.said.clear()


def warned(action):
    """The texts of an action's warnings on rank 0; other ranks get no warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        action()
    everyone = together([(warning.category, warning.filename, str(warning.message)) for warning in caught])
    assert everyone[1:] == [[]] * (job.size - 1)
    assert all(kind is distdl.HabitWarning and file == __file__ for kind, file, _ in everyone[0]), everyone
    return [text for *_, text in everyone[0]]


def x_of(rank, size=16):
    return torch.rand(2, 2, size, generator=torch.Generator().manual_seed(rank))


def seeds(P):
    P_x = grid(P, [1, 1, 2])
    torch.manual_seed(job.rank)
    layers = [dnn.DistributedConv1d(P_x, 2, 2, 3, padding=1) for _ in range(2)]
    torch.manual_seed(0)
    return torch.nn.Sequential(*layers), x_of(job.rank)


def copied(P):
    layer = dnn.DistributedLinear(grid(P, [1, 1]), grid(P, [1, 2]), grid(P, [2, 1]), 8, 16)
    torch.manual_seed(0)
    torch.nn.init.normal_(layer.weight)
    return torch.nn.Sequential(layer), torch.ones(3, 8) if job.rank == 0 else distdl.zero_volume_tensor()


NOTICED = {
    "modules": (lambda P: (torch.nn.Sequential(conv(P), *[torch.nn.BatchNorm1d(3)] * 2), x_of(job.rank)), "1: Batch"),
    "flatten": (lambda P: (torch.nn.Sequential(conv(P), torch.nn.Flatten()), x_of(job.rank)), "1: Flatten"),
    "seeds": (seeds, "0: the random number generators of the ranks"),
    "whole": (lambda P: (torch.nn.Sequential(conv(P), torch.nn.ReLU()), x_of(0)), "0: every rank passes the same"),
    "copies": (copied, "0.weight: its blocks on ranks 0 and 1 are copies"),
}


@pytest.mark.parametrize(("make", "text"), NOTICED.values(), ids=NOTICED)
def test_noticed_once_on_one_rank(P_world, make, text):
    """With the module's name, on the line of the call, and not in later calls and layers."""
    model, x = make(P_world)
    (message,) = warned(lambda: model(x))
    assert message.startswith(text)
    model, x = make(P_world)
    again = warned(lambda: [model(x), model(x)])
    assert again == []


@pytest.mark.parametrize("make", [make for make, _ in NOTICED.values()], ids=NOTICED)
def test_a_warning_that_is_an_error_on_one_rank(P_world, make):
    """All ranks of the layer raise it, and the next call works."""
    model, x = make(P_world)
    with warnings.catch_warnings():
        warnings.simplefilter("error" if job.rank == 0 else "ignore")
        raises_everywhere(distdl.HabitWarning, "distdl.check", lambda: model(x))
        model(x)


def test_nothing_to_notice(P_world):
    """Equal blocks of one value, partitions that join what is split, evaluation, parameters that were loaded."""
    P_x, P_0 = grid(P_world, [1, 1, 2]), grid(P_world, [1, 1, 1])
    torch.manual_seed(job.rank)
    linear = torch.nn.Linear(96, 2) if job.rank == 0 else torch.nn.Identity()
    twin = torch.nn.Conv1d(2, 3, 3, padding=1)
    model = torch.nn.Sequential(
        dnn.DistributedConv1d.from_sequential(twin, P_x),
        torch.nn.BatchNorm1d(3, affine=False).eval(),
        torch.nn.Unflatten(1, (1, 3)),
        torch.nn.Flatten(1, 2),
        dnn.Repartition(P_x, P_0),
        torch.nn.Flatten(),
        linear,
    )
    assert warned(lambda: model(torch.ones(2, 2, 16))) == []
    by_channels = torch.nn.Sequential(dnn.DistributedSoftmax(grid(P_world, [1, 2, 1]), 2), torch.nn.Flatten())
    assert warned(lambda: by_channels(x_of(job.rank))) == []


@pytest.mark.ranks(2, 4)
def test_weights_of_one_rank_are_not_drawn(P_world):
    """Whatever the states of the generators, also of ranks that own no part of a weight."""
    torch.manual_seed(job.rank)
    P_x = grid(P_world, [1, 1, job.size])
    model = torch.nn.Conv1d(2, 3, 3, padding=1)
    x = x_of(job.rank)
    assert warned(lambda: distdl.distribute(model, P_x)(x)) == []
    assert warned(lambda: dnn.DistributedConv1d.from_sequential(model, P_x)(x)) == []


def test_noticed_in_a_compiled_program(P_world):
    """Not in the compiler's call on zeros, of which nothing stays."""
    torch.compiler.reset()
    torch.manual_seed(0)
    model = torch.compile(torch.nn.Sequential(conv(P_world), torch.nn.ReLU()), backend="aot_eager", fullgraph=True)
    (message,) = [text for text in _texts(lambda: model(x_of(0))) if "distdl.check" in text]
    assert message.startswith("_orig_mod.0: every rank passes the same input")
    torch.compiler.reset()


def _texts(action):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        action()
    return together([str(warning.message) for warning in caught])[0]

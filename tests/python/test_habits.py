"""distdl.check finds what gives other numbers on blocks than in one process."""

import copy
import importlib

import pytest
import torch
import torch.nn.functional as F
from torch.nn.utils import parametrizations

import distdl
import distdl.nn as dnn
from distdl.diagnostics import api_scan
from support.blocks import grid
from support.programs import load_program
from support.ranks import job, raises_everywhere, together

pytestmark = pytest.mark.ranks(2)


class Ends(torch.nn.Module):
    """A user's model, with the habits of one process."""

    def __init__(self, conv):
        super().__init__()
        self.conv = conv
        self.apply(self.initialize)

    def initialize(self, layer):
        if isinstance(layer, torch.nn.Conv1d):
            torch.nn.init.xavier_normal_(layer.weight)
            torch.nn.utils.weight_norm(layer)

    def forward(self, x, target):
        y = F.dropout(self.conv(x)).flatten(1)
        return F.mse_loss(y.view(-1).reshape(2, -1), target)


def a_step(model):
    """Clips as programs of one process do. It is never called."""
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)


class Whole(torch.nn.Module):
    """A model for whole tensors."""

    def forward(self, x):
        return F.dropout(x).flatten(1) - F.mse_loss(x, 2 * x)


def a_loop(model, x, target, P_x):
    """Applies losses of one process to blocks."""
    model = distdl.distribute(model, P_x)
    loss = F.mse_loss(model(x), target) + torch.nn.L1Loss()(model(x), target)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)


def a_loop_on_blocks(model, x, target, P_x):
    """Distributes the losses."""
    model, loss_of = distdl.distribute(model, P_x), distdl.distribute(F.l1_loss, P_x)
    other, third = distdl.distribute(torch.nn.MSELoss(), P_x), torch.nn.HuberLoss()
    fourth = distdl.distribute(lambda y, target: F.smooth_l1_loss(y.flatten(), target.flatten()), P_x)
    fifth, y = distdl.distribute(third, P_x), model(x).flatten(1)
    sum(function(y, target) for function in (loss_of, other, fourth, fifth)).backward()
    distdl.clip_grad_norm_(model, 1.0)


def findings_of(*args, **kwargs):
    """The findings, the same on all ranks, apart from those in this module's code."""
    findings = distdl.check(*args, **kwargs)
    assert all(others == findings for others in together(findings))
    return [item for item in findings if not item.where.startswith(("a_", "Ends", "Whole", "test_"))]


def conv(P):
    torch.manual_seed(0)
    return dnn.DistributedConv1d(grid(P, [1, 1, 2]), 2, 3, 3)


def test_nothing_to_find(P_world):
    model = torch.nn.Sequential(conv(P_world), torch.nn.ReLU(), dnn.DistributedBatchNorm1d(grid(P_world, [1, 1, 2]), 3))
    optimizer = torch.optim.Adam(model.parameters())
    assert findings_of(model, optimizer, torch.full((1, 2, 4), float(job.rank))) == []


MODULES = {
    "batch norm": (torch.nn.BatchNorm1d(3), "use DistributedBatchNorm1d"),
    "flatten": (torch.nn.Flatten(), "use DistributedFlatten"),
    "a loss": (torch.nn.L1Loss(), "use DistributedL1Loss"),
    "a part that owns parameters": (torch.nn.PReLU(), "Local"),
}


@pytest.mark.parametrize(("module", "instead"), MODULES.values(), ids=MODULES)
def test_modules_of_torch(P_world, module, instead):
    (finding,) = findings_of(torch.nn.Sequential(conv(P_world), module))
    assert finding.where == "1"
    assert instead in finding.instead
    assert str(finding) == f"1: {finding.what}; {finding.instead}"


def test_code(P_world):
    """Of the model's classes, and of the module that calls check."""
    findings = distdl.check(Ends(conv(P_world)))
    instead = {(finding.where, finding.what.split()[0]): finding.instead for finding in findings}
    expected = {
        ("Ends.initialize", "isinstance(layer,"): "distdl.nn.DistributedConv1d",
        ("Ends.initialize", "torch.nn.init.xavier_normal_"): "distdl.nn.init.xavier_normal_",
        ("Ends.initialize", "weight_norm"): "on layers of torch alone",
        ("Ends.forward", "dropout"): "the layer of distdl.nn",
        ("Ends.forward", "flatten"): "DistributedFlatten",
        ("Ends.forward", "view"): "DistributedFlatten",
        ("Ends.forward", "reshape"): "DistributedFlatten",
        ("Ends.forward", "mse_loss"): "a loss of distdl.nn",
        ("a_step", "clip_grad_norm_"): "distdl.clip_grad_norm_",
    }
    assert all(use in instead.get(where, "") for where, use in expected.items()), instead


def test_losses_of_one_process_beside_a_distributed_model(P_world):
    """The model's own code is for whole tensors: nothing in it is a mistake."""
    P_x = grid(P_world, [1, 1, 2])
    model = distdl.distribute(Whole(), P_x)
    findings = {finding.what.split()[0]: finding for finding in distdl.check(model)}
    assert {finding.where for finding in findings.values()} == {"a_loop"}
    instead = {name: finding.instead.split("(")[0].split()[-1] for name, finding in findings.items()}
    distributed = dict.fromkeys(("mse_loss", "L1Loss"), "distdl.distribute")
    assert instead == distributed | {"clip_grad_norm_": "distdl.clip_grad_norm_"}


def test_the_page_has_all_habits():
    """Those of code and optimizers that `check` looks for, and what it says to use."""
    page = load_program("docs/habits")
    habits = " ".join(habit for habit, _, _ in page.HABITS)
    optimizers = importlib.import_module("distdl.diagnostics.check")._OPTIMIZERS
    names = [*api_scan._RESHAPING, *(kind.__name__ for kind in optimizers), "isinstance", "clip_grad_norm_"]
    names += [function.__name__ for function in api_scan._PARAMETRIZATIONS]
    names += ["norms", "dropout", "mse_loss", "torch.nn.init", "seeds", "whole tensor on every rank"]
    assert [name for name in names if name not in habits] == []
    replacements = " ".join(instead for _, _, instead in page.HABITS)
    names = ["distdl.nn", "distdl.nn.init", "distdl.clip_grad_norm_", "DistributedFlatten", "torch.manual_seed"]
    assert [name for name in names if name not in replacements] == []


def test_values_and_ranks(P_world):
    layer = dnn.DistributedLinear(grid(P_world, [1, 1]), grid(P_world, [1, 2]), grid(P_world, [2, 1]), 3, 4)
    torch.manual_seed(1)
    assert findings_of(layer) == []
    torch.nn.init.normal_(layer.weight)
    assert [finding.where for finding in findings_of(layer)] == ["weight"]
    torch.manual_seed(job.rank)
    assert any("different states" in finding.what for finding in findings_of(layer))
    torch.manual_seed(1)
    dnn.init.normal_(layer.weight)
    x = torch.rand(5, 3)
    assert ["same input of shape [5, 3]" in finding.what for finding in findings_of(layer, inputs=x)] == [True]
    optimizer = torch.optim.LBFGS([torch.nn.Parameter(torch.ones(2))])
    assert [finding.where for finding in findings_of(layer, optimizer)] == ["torch.optim.LBFGS"]


OF_WHOLE = {
    "spectral_norm": parametrizations.spectral_norm,
    "orthogonal": parametrizations.orthogonal,
    "weight_norm": parametrizations.weight_norm,
    "the older spectral_norm": torch.nn.utils.spectral_norm,
    "the older weight_norm": torch.nn.utils.weight_norm,
}


@pytest.mark.filterwarnings("ignore:.*weight_norm:FutureWarning")
@pytest.mark.parametrize("parametrize", OF_WHOLE.values(), ids=OF_WHOLE)
def test_parametrizations_of_blocks_are_refused(P_world, parametrize):
    """On all ranks, in the first call; elementwise parametrizations work."""
    layer = dnn.DistributedLinear(grid(P_world, [1, 1]), grid(P_world, [1, 2]), grid(P_world, [2, 1]), 3, 4)
    plain = copy.deepcopy(layer)
    parametrize(layer)
    x = torch.ones(2, 3) if job.rank == 0 else torch.empty(0)
    raises_everywhere(ValueError, "computes weight from the whole of it", lambda: layer(x))
    assert [finding.where for finding in findings_of(torch.nn.Sequential(layer))] == ["0"]
    torch.nn.utils.parametrize.register_parametrization(plain, "weight", torch.nn.Softplus())
    assert plain(x).shape[-1] == 2


@pytest.mark.filterwarnings("ignore:.*weight_norm:FutureWarning")
@pytest.mark.parametrize("parametrize", OF_WHOLE.values(), ids=OF_WHOLE)
def test_parametrizations_within_layers_are_refused(P_world, parametrize):
    """Of a part of a layer, and of a layer of a stack, which the stack calls."""
    P_x, x = grid(P_world, [2, 1, 1]), torch.ones(1, 3, 4)
    twin = torch.nn.TransformerEncoderLayer(4, 2, 8, 0.0, batch_first=True)
    with distdl.parameter_layout("sharded"):  # torch computes no norm of a block without elements
        layer = dnn.DistributedTransformerEncoderLayer.from_sequential(twin, P_x)
        stack = torch.nn.TransformerEncoder(twin, 2, enable_nested_tensor=False)
        stack = dnn.DistributedTransformerEncoder.from_sequential(stack, P_x)
    for whole, part, name in ((layer, layer, "linear1"), (stack, stack.layers[1], "layers.1.linear1")):
        parametrize(part.linear1)
        raises_everywhere(ValueError, f"computes {name}.weight from the whole", lambda whole=whole: whole(x))
        assert [finding.where for finding in findings_of(torch.nn.Sequential(whole))] == ["0"]


def test_no_model():
    with pytest.raises(TypeError, match="model is of type int"):
        distdl.check(3)
    assert distdl.check(torch.nn.Linear(2, 3)) == []

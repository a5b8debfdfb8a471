"""A call like one before is not computed again while a model is recorded. The recording is the same."""

import pytest
import torch
import torch.nn.functional as F
from torch.utils.flop_counter import FlopCounterMode

from distdl.models.capture import results
from distdl.models.capture.listing import listing
from distdl.models.capture.memory_order import InMemory
from distdl.models.capture.skeleton import Skeleton
from distdl.models.rules.applied_layer import key_of_layer
from support.models import Function
from support.rules import CASES


def recorded(model, shape, memory, dtype=torch.float64):
    """All that is known of a recorded computation; the exception, if it is refused."""
    call = (torch.zeros(shape, dtype=dtype),), {}
    try:
        recording = Skeleton(model).record(call, [(shape, dtype)], key_of_layer, memory)
    except Exception as error:  # the same one
        return f"{type(error).__name__}: {error}"
    values = [value for node in recording.nodes for value in node.outputs]
    return listing(recording), [(value.dtype, value.strides, value.is_differentiable) for value in values]


def differences(make, shape, monkeypatch, dtype=torch.float64):
    """The recordings of a model in which each call is computed, and in which repeated ones are not, if they differ."""
    found = []
    orders = [[*range(len(shape))]]
    for memory in (None, *(InMemory(orders, *facts) for facts in (([True], True), ([False], True), ([False], False)))):
        ours = recorded(make(), shape, memory, dtype)
        with monkeypatch.context() as patch:
            patch.setattr(results, "_key", lambda *_: None)
            expected = recorded(make(), shape, memory, dtype)
        found += [(ours, expected)] if ours != expected else []
    return found


def refused_or_different(make, shape, monkeypatch, dtype=torch.float64):
    refused = recorded(make(), shape, None, dtype)
    return refused if isinstance(refused, str) else differences(make, shape, monkeypatch, dtype)


@pytest.mark.ranks(1)
@pytest.mark.filterwarnings("ignore:.*weight_norm:FutureWarning", "ignore:.*non-contiguous:UserWarning")
@pytest.mark.drawn(6)
@pytest.mark.parametrize("part", range(8))
def test_functions_that_are_called_twice(part, monkeypatch):
    problems = {}
    for case, (function, shape) in [*CASES.items()][part::8]:
        layer = function if function.__name__ == "made" else lambda: None

        def twice(*arguments, function=function):
            call = (lambda model, x: model(x)) if function.__name__ == "made" else lambda x: function(x)
            return call(*arguments), call(*arguments)

        if found := differences(lambda: Function(twice, layer()), shape, monkeypatch):  # noqa: B023  (called here)
            problems[case] = found
    assert not problems, problems


def counting(x):
    half, before = x / 2, torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    other_half = x / 2
    torch.set_default_dtype(before)
    return (
        half,
        other_half,
        x + 1,
        x + 1.0,
        x + True,
        x * 2,
        x * 2.0,
        x.sum(0),
        x.sum(0, keepdim=True),
        x.sum(0, dtype=torch.int32),
    )


def written(x):
    y, z = F.linear(x, x), F.linear(x, x)
    y += 1
    z.mul_(y)
    F.relu(z, inplace=True)
    F.relu(y, inplace=True)
    y[0] = 0
    z[0] = 0
    return y, z, x.relu(), x.relu().relu_()


def in_contexts(x):
    x = x.float()
    results, heads = [x * 2], x.repeat(2, 3, 1, 1).transpose(1, 2)
    with torch.no_grad():
        results.append(x * 2)
    with torch.autocast("cpu", torch.bfloat16):
        results += [x @ x.mT, x * 2]
    with torch.autocast("cpu", torch.float16):
        results.append(x @ x.mT)
    results += [x @ x.mT, x.detach() * 2, x.detach().requires_grad_() * 2]
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        results.append(F.scaled_dot_product_attention(heads, heads, heads))
    return *results, F.scaled_dot_product_attention(heads, heads, heads)


def views(x):
    y = x.clone()
    rows = [y.view(-1), y.view(-1), y[0], y[0], y.T, y.T, *y.unbind(), *y.unbind(), *y.split(2), *y.split(2)]
    results = [row * 2 for row in rows]
    y.add_(1)
    return *results, y.contiguous(), y.contiguous(), y.T.contiguous(), y.T.contiguous(), y


def aliases(x):
    y = x.clone()
    return x * x, x * y, y * x, torch.stack([x, x]), torch.stack([x, y]), torch.stack((x, y), 1), x.T * x.T, x.T * y.T


def counted(x):
    """The results of modes, which see each call."""
    counts = []
    for _ in range(2):
        with FlopCounterMode(display=False) as counter:
            y = x @ x.mT
        counts.append(counter.get_total_flops())
    return y * counts[0], y * counts[1]


def made(x):
    torch.set_default_device("meta")
    there = torch.zeros(3)
    torch.set_default_device(None)
    return x * (1 + there.is_meta + 2 * torch.zeros(3).is_meta)


FUNCTIONS = {
    "counted": counted,
    "made": made,
    "written": written,
    "in contexts": in_contexts,
    "views": views,
    "aliases": aliases,
}


class Layers(torch.nn.Module):
    """Layers of one class that differ in an option, in what they ask for, or by a hook."""

    def __init__(self):
        super().__init__()
        linear = torch.nn.Linear
        self.linear = torch.nn.ModuleList([linear(6, 6), linear(6, 6), linear(6, 6, bias=False), linear(6, 6).float()])
        self.linear.append(linear(6, 6).requires_grad_(False))
        self.linear.append(linear(6, 6))
        self.linear[-1].register_forward_hook(lambda layer, args, result: result.detach())
        self.conv = torch.nn.ModuleList([torch.nn.Conv1d(4, 4, 3, padding=p) for p in (1, 1, "same", 0)])
        self.attention = torch.nn.MultiheadAttention(6, 2, batch_first=True)
        self.norm = torch.nn.ModuleList(
            [torch.nn.BatchNorm1d(4), torch.nn.BatchNorm1d(4), torch.nn.BatchNorm1d(4).eval()]
        )

    def forward(self, x):
        y = x[None]
        attended = [self.attention(a, b, b)[0] for a, b in ((y, y), (y, y), (y, y + 1), (y.clone(), y))]
        torch.backends.mha.set_fastpath_enabled(False)
        attended.append(self.attention(y, y, y)[0])
        torch.backends.mha.set_fastpath_enabled(True)
        own = [layer(x if layer.weight.dtype == x.dtype else x.float()) for layer in self.linear]
        return *own, *(layer(y) for layer in self.conv), *attended, *(layer(y) for layer in self.norm)


@pytest.mark.ranks(1)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_calls_that_differ_in_little(name, monkeypatch):
    assert not refused_or_different(lambda: Function(FUNCTIONS[name]), (4, 6), monkeypatch)


@pytest.mark.ranks(1)
def test_leaves_stay_leaves(monkeypatch):
    def call(x):
        torch.zeros_like(x, requires_grad=True)
        torch.zeros_like(x, requires_grad=True).add_(1)  # which torch refuses

    assert not differences(lambda: Function(call), (4, 6), monkeypatch)


@pytest.mark.ranks(1)
def test_numbers_of_other_kinds(monkeypatch):
    assert not refused_or_different(lambda: Function(counting), (4, 6), monkeypatch, torch.int64)


@pytest.mark.ranks(1)
@pytest.mark.parametrize("is_training", [True, False])
def test_layers_that_differ_in_little(is_training, monkeypatch):
    assert not refused_or_different(lambda: Layers().double().train(is_training), (4, 6), monkeypatch)


@pytest.mark.ranks(1)
def test_repeated_calls_are_computed_once(monkeypatch):
    computed, compute = [], results.call_detaching
    monkeypatch.setattr(results, "call_detaching", lambda *call: computed.append(call) or compute(*call))
    model = torch.nn.Sequential(*(torch.nn.Sequential(torch.nn.Linear(6, 6), torch.nn.GELU()) for _ in range(10)))
    lines, _ = recorded(Function(lambda layer, x: layer(x) + 1, model.double()), (4, 6), None)
    assert len(computed) == 3
    assert len([line for line in lines if "gelu" in line]) == 10

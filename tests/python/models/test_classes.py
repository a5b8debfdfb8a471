"""Reports of distributed models, for a model with each class of torch.nn."""

import copy
import xml.etree.ElementTree

import pytest
import torch
from torch.nn.modules.lazy import LazyModuleMixin
from torch.utils._pytree import tree_flatten

import distdl
from support.blocks import grid
from support.classes import CALLS
from support.ranks import job, together


def test_every_class_has_a_call():
    classes = {name for name, kind in vars(torch.nn).items() if isinstance(kind, type)}
    assert {name for name in classes if issubclass(getattr(torch.nn, name), torch.nn.Module)} == {
        kind.__name__ for kind in CALLS
    }


class Around(torch.nn.Module):
    """A model that has one module."""

    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self, *tensors):
        return self.module(*tensors)


def tensors_in(results):
    return [leaf for leaf in tree_flatten(results)[0] if isinstance(leaf, torch.Tensor)]


def distributed(P_world, model, inputs):
    """The model over the first dimension of the input that has several elements, after a call; and its results."""
    dims = max(x.dim() for x in inputs)
    first = next(x for x in inputs if x.dim() == dims)
    along = next((d for d, n in enumerate(first.shape) if n > 1), 0)
    P_x = grid(P_world, [job.size if d == along else 1 for d in range(dims)])
    whole = {i: None for i, x in enumerate(inputs) if x.dim() < dims}
    ours = distdl.distribute(model, P_x, input_partitions=whole)
    return ours, tensors_in(ours(*(distdl.scatter(x, P_x) if x.dim() == dims else x for x in inputs)))


REFUSED = {
    **{
        kind: kind.__name__
        for kind in (
            torch.nn.Module,
            torch.nn.Container,
            torch.nn.RNNBase,
            torch.nn.RNNCellBase,
        )
    },
    **{
        kind: f"the parameters of this {kind.__name__} are not initialized"
        for kind in CALLS
        if issubclass(kind, LazyModuleMixin)
    },
    torch.nn.RReLU: "rrelu",
    torch.nn.FractionalMaxPool2d: "fractional_max_pool2d",
    torch.nn.FractionalMaxPool3d: "fractional_max_pool3d",
    torch.nn.AdaptiveLogSoftmaxWithLoss: "nonzero looks at the values",
}
"""Classes that cannot be distributed, and words of the messages."""


def outcome(action):
    """The result of an action, and its error as text: the same on all ranks."""
    error, result = None, None
    try:
        result = action()
    except Exception as raised:
        error = raised
    texts = together(f"{type(error).__name__}: {error}".split(" (raised on rank")[0] if error else "")
    assert len(set(texts)) == 1, texts
    return result, texts[0]


@pytest.mark.ranks(2)
@pytest.mark.drawn(12, "Unfold", "Fold")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", CALLS, ids=lambda kind: kind.__name__)
def test_a_model_of_each_class(P_world, kind, tmp_path):
    make, inputs = CALLS[kind][0], CALLS[kind][1]()
    torch.manual_seed(0)
    model = Around(make()).double()
    pair, refusal = outcome(lambda: distributed(P_world, model, inputs))
    if refusal:
        assert kind in REFUSED, refusal
        assert REFUSED[kind] in refusal
        return
    assert kind not in REFUSED
    ours, results = pair
    expected = tensors_in(model(*inputs))
    in_whole = [job.rank > 0 and own.shape == whole.shape for own, whole in zip(results, expected, strict=True)]
    counts = together([0 if twice else tensor.numel() for twice, tensor in zip(in_whole, results, strict=True)])
    assert [*map(sum, zip(*counts, strict=True))] == [tensor.numel() for tensor in expected]
    report = distdl.report(ours)
    assert report.parameters == sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
    assert tuple(expected[0].shape) in {row.shape for row in report.rows} | {tuple(x.shape) for x in inputs}
    assert all(row.sent >= 0 and row.memory >= 0 for row in report.rows)
    assert report.sent == sum(row.sent for row in report.rows)
    if job.rank == 0:
        report.picture(tmp_path / "model.svg")
        drawn = [element.tag for element in xml.etree.ElementTree.parse(tmp_path / "model.svg").iter()]
        assert sum(tag.endswith("rect") for tag in drawn) == len(report.rows) + 1
    assert distdl.check(ours) == []


@pytest.mark.ranks(2)
@pytest.mark.drawn(6, "Unfold", "Fold")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", CALLS, ids=lambda kind: kind.__name__)
def test_plans_of_a_model_of_each_class(P_world, kind):
    make, inputs = CALLS[kind][0], CALLS[kind][1]()
    if not all(x.is_floating_point() for x in inputs):
        return  # plans are made for numbers
    torch.manual_seed(0)
    model = Around(make()).double()
    proposals, refusal = outcome(lambda: distdl.plans(model, P_world, [list(x.shape) for x in inputs], most=1000))
    if kind in REFUSED:
        assert refusal
        assert not issubclass(kind, LazyModuleMixin) or REFUSED[kind] in refusal
        return
    assert not refusal
    alone = next(proposal for proposal in proposals if proposal.P_x.size == 1 and not proposal.plan)
    assert alone.sent == 0
    assert alone.memory >= 2 * sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
    assert all(proposal.sent > 0 for proposal in proposals if proposal.P_x.size > 1 and list(model.parameters()))


def derived(module):
    """The module, with a class that derives from its own and has the name of another."""
    if not isinstance(module, LazyModuleMixin):  # torch copies none of them
        module = copy.deepcopy(module)  # which others may have
    module.__class__ = type("GroupNorm" if type(module) is torch.nn.LayerNorm else "LayerNorm", (type(module),), {})
    return module


@pytest.mark.ranks(2)
@pytest.mark.drawn(8, "GroupNorm", "Conv2d", "Dropout1d")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", CALLS, ids=lambda kind: kind.__name__)
def test_the_name_of_a_class_says_nothing(P_world, kind):
    make, inputs = CALLS[kind][0], CALLS[kind][1]()
    rows = []
    for change in (lambda module: module, derived):
        torch.manual_seed(0)
        pair, refusal = outcome(lambda change=change: distributed(P_world, Around(change(make())).double(), inputs))
        rows.append(refusal.split(":")[0] if refusal else distdl.report(pair[0]).rows)
    assert rows[0] == rows[1]

"""Reports of models over partitions: a table and a picture."""

import copy
import math
import xml.etree.ElementTree

import pytest
import torch
import torch.nn.functional as F

import distdl
from support.blocks import grid
from support.models import Residual, Tokens
from support.ranks import job, raises_everywhere, together
from support.rules import CASES

P_world = distdl.Partition(job)


def test_report():
    P_x = grid(P_world, [1, 1, P_world.size, 1])
    ours = distdl.distribute(Residual(), P_x)
    raises_everywhere(RuntimeError, "called before", lambda: distdl.report(ours))
    raises_everywhere(TypeError, "Residual", lambda: distdl.report(Residual()))
    ours(distdl.scatter(torch.rand(2, 2, 8, 8), P_x))
    report = distdl.report(ours)
    assert [row.operation for row in report.rows] == ["Conv2d", "relu", "Conv2d", "BatchNorm2d", "add", "relu", "mean",
                                                     "Linear"]  # fmt: skip
    assert report.rows[0].shape == (2, 4, 4, 4)
    assert report.rows[0].splits == (1, 1, P_world.size, 1)
    rows = math.ceil(4 / P_world.size)
    assert report.rows[0].memory == 2 * 4 * rows * 4 * 4
    halo = (2 * 2 * 8) * 4  # of a kernel of 3 with a stride of 2: a row of the input, in bytes
    assert report.rows[0].sent == (halo * P_world.size if P_world.size > 1 else 0)
    assert report.parameters == 4 * sum(parameter.numel() for parameter in Residual().parameters())
    assert len(set(together(str(report)))) == 1
    assert "Conv2d" in str(report)


class Block(torch.nn.Module):
    """Attention, and a network of two layers, with the plan that splits heads and features."""

    tp_plan = {"attention": "colwise", "up": "colwise", "down": "rowwise"}

    def __init__(self):
        super().__init__()
        self.norm, self.attention = torch.nn.LayerNorm(12), torch.nn.MultiheadAttention(12, 6, batch_first=True)
        self.up, self.down = torch.nn.Linear(12, 24), torch.nn.Linear(24, 12)

    def forward(self, x):
        y = self.norm(x)
        return x + self.down(self.up(y + self.attention(y, y, y, need_weights=False)[0]))


def test_weights_by_share():
    """A worker has its features and heads of split weights, and of biases of summed results the whole."""
    ranks, model = P_world.size, Block()
    P_x = grid(P_world, [1, ranks, 1])
    ours = distdl.distribute(model, P_x, plan=model.tp_plan)
    ours(distdl.scatter(torch.rand(1, 8, 12), P_x))
    report = distdl.report(model, P_x=[1, ranks, 1], shape=(1, 8, 12), plan=model.tp_plan)
    assert report.rows == distdl.report(ours).rows
    features = 4 * math.ceil(24 / ranks)
    heads = 4 * math.ceil(6 / ranks) * 2
    rows = [row for row in report.rows if row.weights]
    assert [(row.path, row.weights // 4) for row in rows] == [
        ("norm", 2 * 12), ("attention", 36 * 13), ("attention", 12 * 13), ("up", 24 * 13), ("down", 12 * 25)
    ]  # fmt: skip
    shares = [4 * 2 * 12, 3 * heads * 13, heads * 12 + 4 * 12, features * 13, features * 12 + 4 * 12]
    assert [row.share for row in rows] == shares
    attention = next(row for row in report.rows if row.operation == "scaled_dot_product_attention")
    assert attention.splits == (1, ranks, 1, 1)  # batch, heads, tokens, features
    assert report.parameters == 4 * (2 * 12 + 12 + 12)  # of the norm, and biases of results that are summed
    assert report.staying == 4 * sum(parameter.numel() for parameter in model.parameters()) - report.parameters
    assert ("0.00 of 0.00" in str(report)) == (ranks > 1)


def test_long_names_and_wide_tables(tmp_path):
    path = "a_block_of_layers.with_a_long_name.and_one_more.linear"
    model = torch.nn.Identity()
    for name in reversed(path.split(".")):
        model, inner = torch.nn.Sequential(), model if name != "linear" else torch.nn.Linear(3, 3)
        model.add_module(name, inner)
    report = distdl.report(model, P_x=[job.size, 1], shape=(4, 3))
    lines = str(report).splitlines()
    assert lines[1] == lines[-4] == "-" * max(map(len, lines[:-2]))
    report.picture(tmp_path / "model.svg")
    assert f">{path[-36:]}<" in (tmp_path / "model.svg").read_text()


def test_pictures_are_svg(tmp_path):
    P_x = grid(P_world, [1, 1, P_world.size, 1])
    ours = distdl.distribute(Tokens(), P_x)
    ours(distdl.scatter(torch.rand(1, 2, 9, 9), P_x))
    report = distdl.report(ours)
    report.picture(tmp_path / "model.svg")
    root = xml.etree.ElementTree.parse(tmp_path / "model.svg").getroot()
    texts = [element for element in root.iter() if element.text and element.get("y")]
    assert any("softmax" in element.text for element in texts)
    *others, total = [float(element.get("y")) for element in texts]
    assert max(others) < total < float(root.get("height"))
    bars = [float(element.get("width")) for element in root.iter() if element.get("x") and element.get("width")]
    memory = [row.memory for row in report.rows]
    assert max(bars) > 100
    wanted = [max(bars) * of_row / max(memory) for of_row in memory]
    assert all(abs(bar - width) <= 1 for bar, width in zip(bars, wanted, strict=True))


def test_report_of_windows_that_read_whole_images():
    P_x = grid(P_world, [P_world.size, 1, 1, 1])
    ours = distdl.distribute(torch.nn.Sequential(torch.nn.Unfold(2), torch.nn.Fold((5, 5), 2)), P_x)
    ours(distdl.scatter(torch.rand(2, 3, 5, 5), P_x))
    report = distdl.report(ours)
    assert [(row.operation, row.sent) for row in report.rows] == [("Unfold", 0), ("Fold", 0)]
    plans = distdl.plans(torch.nn.Sequential(torch.nn.Unfold(2)), P_world, (2, 3, 5, 5))
    assert len(plans) > 0


def test_a_partition_with_too_few_dimensions():
    with pytest.raises(ValueError, match=r"P_x has shape \[1, 1, 2\], but an input has shape \[1, 3, 4, 4\]"):
        distdl.report(torch.nn.Conv2d(3, 4, 1), P_x=[1, 1, 2], shape=(1, 3, 4, 4))


def test_a_function():
    report = distdl.report(lambda x: x.sin().sum(), P_x=[1, 2], shape=(4, 6))
    assert [row.operation for row in report.rows] == ["sin", "sum"]


@pytest.mark.ranks(1)
@pytest.mark.parametrize("name", ["functional with weights", "functional of other keys"])
def test_a_function_that_is_a_layer(name):
    """However many tokens and features there are."""
    make, shape = CASES[name]
    report = distdl.report(make().float(), P_x=[1, 2, 1], shape=shape)
    assert report.rows[-1].operation == "MultiheadAttention"


@pytest.mark.ranks(1)
@pytest.mark.parametrize(
    ("layer", "function"),
    [
        (torch.nn.Conv2d(2, 2, 3, padding=1), lambda own, x: F.conv2d(x, own.weight, own.bias, padding=1)),
        (torch.nn.MaxPool2d(3, 1, 1), lambda _, x: F.max_pool2d(x, 3, 1, 1)),
    ],
    ids=["convolution", "pooling"],
)
def test_functions_send_what_layers_send(layer, function):
    class ByFunction(type(layer)):
        def forward(self, input):
            return function(self, input)

    by_function = copy.deepcopy(layer)
    by_function.__class__ = ByFunction
    ours, others = (distdl.report(model, P_x=[1, 1, 4, 1], shape=(1, 2, 16, 16)) for model in (layer, by_function))
    assert others.rows[-1].operation in ("conv2d", "max_pool2d")
    assert sum(row.sent for row in others.rows) == sum(row.sent for row in ours.rows) > 0

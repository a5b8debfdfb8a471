"""Reports of models over partitions: a table and a picture."""

import math
import xml.etree.ElementTree

import torch

import distdl
from support.blocks import grid
from support.models import Residual, Tokens
from support.ranks import job, raises_everywhere, together

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

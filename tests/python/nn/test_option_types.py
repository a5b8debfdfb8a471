"""Layers whose constructors are made from annotated attributes: signatures, defaults, and checks on all ranks."""

import copy
import inspect
from dataclasses import KW_ONLY
from typing import Annotated, ClassVar

import pytest
import torch

import distdl.nn as dnn
from distdl.nn.base.documentation import completed
from distdl.nn.base.option_types import (
    Converted,
    Count,
    Flag,
    HasBias,
    Integer,
    PartitionsFirst,
    PositiveSizes,
    Probability,
    choice,
    common_options,
    option,
    with_options,
    with_partitions_first,
)
from support.blocks import grid
from support.ranks import job, raises_everywhere


@common_options
class Common(dnn.Layer):
    _: KW_ONLY
    mode: Annotated[str, choice("sum", "mean")] = "sum"


@with_options
class Scale(Common):
    dims: ClassVar[int] = 2
    features: Count
    size: PositiveSizes = option(default=3)
    p: Probability = 0.5
    first: Integer | None = None
    bias: HasBias = option(default=True)
    swap: Flag = False
    constant = 7

    def compute(self, input):
        return input.clone()


@with_options
class Swapped(Scale):
    swap: Flag = True


@with_partitions_first
class Between(PartitionsFirst, Common):
    features: Count
    _: KW_ONLY
    P_y: Converted[object, object] = None


def test_signature():
    arguments = inspect.signature(Scale).parameters
    assert list(arguments) == ["P_x", "features", "size", "p", "first", "bias", "swap", "mode"]
    assert arguments["mode"].kind is inspect.Parameter.KEYWORD_ONLY
    defaults = {name: value.default for name, value in arguments.items() if value.default is not value.empty}
    assert defaults == {"size": 3, "p": 0.5, "first": None, "bias": True, "swap": False, "mode": "sum"}
    assert arguments["bias"].annotation is bool
    assert arguments["first"].annotation == int | None
    assert list(inspect.signature(Swapped).parameters) == list(arguments)
    assert inspect.signature(Swapped).parameters["swap"].default is True
    assert not {"p", "bias", "mode"} & {*vars(Scale), *vars(Common)}  # instances have them


def test_documentation_ends_with_callers_and_source():
    text = """Scales.

    Args:
        P_x: the partition.
    """
    ended = completed(text, "DistributedScale")
    assert ended.startswith(text.rstrip())
    assert "over P_x's parent communicator, calling over P_x." in ended
    assert "Source:" not in ended  # torch.nn has no Scale
    assert completed(text, "DistributedReLU").endswith("generated/torch.nn.ReLU.html.\n    ")
    assert "over the partitions' parent communicator" in completed(text, "DistributedScale", several=True)
    assert completed(ended, "DistributedOther") == ended
    assert completed("Scales.", "DistributedScale") == "Scales."
    assert Scale.__doc__ is None


def test_documentation_says_what_other_ranks_return():
    text = """Scales.

    Args:
        P_x: the partition.

    Shape:
        Any.{}

    Source: a book.
    """
    ended = completed(text.format(""), "DistributedScale")
    assert "Any.\n        Zero volume on all other ranks.\n\n    Collective" in ended
    assert ended.endswith("calling over P_x.\n\n    Source: a book.\n    ")
    assert "other ranks" not in completed(text.format(" The result is a scalar."), "DistributedScale")


def test_attributes(P_world):
    P_x = grid(P_world, [job.size])
    layer = Scale(P_x, 4, torch.tensor(5), swap=True)
    assert (layer.size, layer.p, layer.first, layer.swap, layer.mode) == ((5, 5), 0.5, None, True, "sum")
    assert layer.passed["bias"] is True
    assert "bias" not in vars(layer)
    assert copy.deepcopy(layer).size == (5, 5)
    shown = "features=4, size=(5, 5), p=0.5, first=None, bias=True, swap=True, mode='sum'"
    assert repr(layer) == f"Scale({shown}, P_x={P_x})"
    assert Swapped(P_x, 4).swap is True
    assert Between(P_x, P_x, 4).P_y.shape == Between(P_x, 4, P_y=P_x).P_y.shape == P_x.shape


@pytest.mark.parametrize(
    ("error", "text", "arguments", "options"),
    [
        (TypeError, "missing a required argument: 'features'", (), {}),
        (TypeError, "too many positional arguments", (1, 2, 0.5, 3, True, False, "sum"), {}),
        (TypeError, "unexpected keyword argument 'q'", (1,), {"q": 2}),
        (ValueError, r"Scale: features=0; it must be at least 1", (0,), {}),
        (TypeError, "Scale: features=1.5", (1.5,), {}),
        (RuntimeError, r"Scale: size=\(1, 0\); it must be at least 1", (1, (1, 0)), {}),
        (RuntimeError, "has 3 values", (1, (1, 2, 3)), {}),
        (ValueError, r"Scale: p=2; it must be in \[0, 1\]", (1,), {"p": 2}),
        (TypeError, "Scale: first='a'", (1,), {"first": "a"}),
        (TypeError, "Scale: swap=1", (1,), {"swap": 1}),
        (ValueError, "Scale: mode='max'; it must be 'sum' or 'mean'", (1,), {"mode": "max"}),
    ],
)
def test_mistakes_raise_on_all(P_world, error, text, arguments, options):
    P_x, last = grid(P_world, [job.size]), job.rank == job.size - 1
    raises_everywhere(error, text, lambda: Scale(P_x, *arguments, **options))
    if job.size > 1:
        raises_everywhere(error, text, lambda: Scale(P_x, *arguments, **options) if last else Scale(P_x, 1))

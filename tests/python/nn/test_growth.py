"""Steps leave nothing alive: for every layer, on small and on large blocks."""

import contextlib
import math

import pytest
import torch

from support.blocks import grid
from support.families import EXAMPLES, splits
from support.growth import assert_stays
from support.sequential import as_tuple, block

ROWS = 1 << 8  # of a large input; more would take too long where they are tokens
# The sizes from which on blocks take other ways: lowered, so that large blocks of a test are above each.
THRESHOLDS = {
    "distdl.nn.conv.halo.SMALLEST": 1,
    "distdl.nn.kernels.convolution.ONEDNN_PAYS": 1,
    "distdl.nn.kernels.convolution.TORCH_TAKES_ONEDNN": 1 << 40,
    "distdl.nn.attention.methods.choice.FEW": 1,
    "distdl.nn.attention.methods.heads.FEW": 1,
    "distdl.nn.attention.methods.choice.LONG": 1,
    "distdl.nn.base.random_numbers._AT_ONCE": 1 << 10,
    "distdl.nn.kernels.fourier_slices._LARGE_BYTES": 1,
    "distdl.nn.kernels.fourier_slices._LARGE_ACROSS": 1,
    "distdl.parameters.transport._LARGE_PARAMETER": 1,
}


class InterruptionError(Exception):
    """Raised by a hook in the middle of a backward pass."""


def repeated(example):
    """The inputs of an example, repeated along the first dimension where the layer takes them."""
    inputs = example.inputs()
    if any(x.dtype == torch.bool for x in inputs):  # masks, whose sizes depend on others
        return inputs
    times = math.ceil(ROWS / max(1, *inputs[0].shape[:1]))
    large = tuple(x.repeat(times, *[1] * (x.dim() - 1)) if x.dim() else x for x in inputs)
    try:
        with torch.no_grad():
            example.twin()(*large, **example.call)
    except Exception:  # such as offsets, or sizes that are given in options
        return inputs
    return large


def steps(layer, inputs, leaves, call):
    """Steps by name: each goes through the layer in another way, and leaves nothing behind."""
    weight = torch.ones((), dtype=torch.float64, requires_grad=True)

    def forward(hook=None):
        """A sum of the layer's results; its inputs have a history."""
        passed = []
        for x in inputs:
            if x.is_floating_point():
                x = torch.relu(x.float() * weight.float()).to(x.dtype)
                if hook is not None:
                    x.register_hook(hook)
            passed.append(x)
        results = [y for y in as_tuple(layer(*passed, **call)) if y.is_floating_point() or y.is_complex()]
        return sum((y.abs().sum() for y in results), torch.zeros(()))

    def backward():
        forward().backward()

    def twice():
        first = torch.autograd.grad(forward(), [weight, *leaves], create_graph=True, materialize_grads=True)
        second = sum(g.square().abs().sum() for g in first)
        if second.requires_grad:
            torch.autograd.grad(second, [weight, *leaves], allow_unused=True)

    def dropped():
        forward()

    def interrupted():
        def interrupt(_):
            raise InterruptionError

        with contextlib.suppress(InterruptionError):
            forward(interrupt).backward()

    return {"backward": backward, "twice": twice, "dropped": dropped, "interrupted": interrupted}


@pytest.mark.ranks(2)
@pytest.mark.drawn(60, "BatchNorm2d-large", "GroupNorm-large", "InstanceNorm2d-large")
@pytest.mark.parametrize("large", [False, True], ids=["small", "large"])
@pytest.mark.parametrize("example", EXAMPLES.values(), ids=EXAMPLES)
def test_nothing_grows(P_world, monkeypatch, example, large):
    if large:
        for name, size in THRESHOLDS.items():
            monkeypatch.setattr(name, size)
    whole = repeated(example) if large else example.inputs()
    P_x = grid(P_world, splits(example)[-1])
    layer = example.make(example.twin(), P_x)
    inputs = [block(x, P_x, cut) for x, cut in zip(whole, example.cuts, strict=True)]
    leaves = [p for p in layer.parameters() if p.requires_grad]
    for name, step in steps(layer, inputs, leaves, example.call).items():
        if name == "twice" and not example.second:
            continue
        assert_stays(lambda step=step: (layer.zero_grad(), step()), name)

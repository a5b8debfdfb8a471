"""Fourier transforms, and complex numbers as pairs."""

from __future__ import annotations

import dataclasses

import torch

from distdl.models.capture.functions import KEEPING_SIZES
from distdl.models.capture.recording import Node
from distdl.models.operations.operation import Operation
from distdl.models.operations.table import argument, local, rule_for, same, whole


@rule_for("view_as_complex", takes="input")
def view_as_complex(node: Node) -> Operation:
    """Any dimension."""
    n = len(node.outputs[0].shape)
    return local(node, [(*same(n), None)], run=lambda x: torch.view_as_complex(x.contiguous()))


@rule_for("view_as_real")
def view_as_real(node: Node) -> Operation:
    """Any dimension but real and imaginary parts."""
    n = len(node.inputs[0].shape)
    return local(node, [same(n)], [n])


_ONE = ("fft", "hfft", "ifft", "ihfft", "irfft", "rfft")
_MUCH_LARGER = 4  # times the input
_SHIFTS = ("fft_fftshift", "fft_ifftshift")


_DIMS = {f"fft_{name}{suffix}": dims for name in _ONE for suffix, dims in (("", -1), ("2", (-2, -1)), ("n", None))}
"""The default dimensions of transforms; None for all."""


@rule_for(*_DIMS, *_SHIFTS)
def transform(node: Node) -> Operation:
    """Any dimension but the transformed dimensions."""
    n = len(node.inputs[0].shape)
    is_shift = node.key in _SHIFTS
    dims = argument(node, 1 if is_shift else 2, "dim", _DIMS.get(node.key))
    if dims is None:
        size = None if is_shift else argument(node, 1, "s")
        dims = range(n) if size is None else range(n - len(size), n)
    looked = {d % n for d in ([dims] if isinstance(dims, int) else dims)}
    operation = local(node, [same(n, but=looked)], looked, node.as_function(KEEPING_SIZES.get(node.key)))
    # A few frequencies become a field again, which mostly meets the field that they were taken from.
    expands = node.outputs[0].nbytes >= _MUCH_LARGER * node.inputs[0].nbytes
    return dataclasses.replace(operation, expands=expands)


@rule_for("stft")
def short_transform(node: Node) -> Operation:
    """The batch."""
    n, out = len(node.inputs[0].shape), len(node.outputs[0].shape)
    batch = n - 1
    return local(node, [(*same(batch), None), *map(whole, node.inputs[1:])], range(batch, out))

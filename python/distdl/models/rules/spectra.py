"""Complex numbers as pairs, and Fourier transforms: what is transformed is read whole."""

from __future__ import annotations

import torch

from distdl.models.operation import Operation
from distdl.models.recording import Node
from distdl.models.table import argument, local, rule, same, whole


@rule("view_as_complex")
def view_as_complex(node: Node) -> Operation:
    """Any dimension."""
    n = len(node.outputs[0].shape)
    return local(node, [(*same(n), None)], run=lambda x: torch.view_as_complex(x.contiguous()))


@rule("view_as_real")
def view_as_real(node: Node) -> Operation:
    """Anything but real and imaginary parts."""
    n = len(node.inputs[0].shape)
    return local(node, [same(n)], [n])


_ONE = ("fft", "hfft", "ifft", "ihfft", "irfft", "rfft")
_SHIFTS = ("fftshift", "ifftshift")


@rule(*(f"fft_{name}{dims}" for name in _ONE for dims in ("", "2", "n")), *(f"fft_{name}" for name in _SHIFTS))
def transform(node: Node) -> Operation:
    """Any dimension that is not transformed."""
    n = len(node.inputs[0].shape)
    is_shift, default = node.key.endswith("shift"), {"2": (-2, -1), "n": None}.get(node.key[-1], -1)
    dims = argument(node, 1 if is_shift else 2, "dim", None if is_shift else default)
    if dims is None:
        size = None if is_shift else argument(node, 1, "s")
        dims = range(n) if size is None else range(n - len(size), n)
    looked = {d % n for d in ([dims] if isinstance(dims, int) else dims)}
    return local(node, [same(n, but=looked)], looked)


@rule("stft")
def short_transform(node: Node) -> Operation:
    """The batch."""
    n, out = len(node.inputs[0].shape), len(node.outputs[0].shape)
    batch = n - 1
    return local(node, [(*same(batch), None), *map(whole, node.inputs[1:])], range(batch, out))

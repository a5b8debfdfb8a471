"""The local 3-d convolution, by the kernel that torch uses for large tensors.

torch computes large 3-d convolutions in single precision with oneDNN, and small ones with its own kernel, which takes
several times as long unless the tensor is tiny. Blocks of a large tensor may be small: with torch's choice, a
convolution would take longer on several workers than in one process.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeAlias

import torch
import torch.nn.functional as F
from torch.autograd import forward_ad
from typing_extensions import Unpack

from distdl.torch_compat.autograd import Context

ConvArgs: TypeAlias = tuple[torch.Tensor, torch.Tensor, torch.Tensor | None, Unpack[tuple[Sequence[int], ...]]]

# torch uses oneDNN if batch, channels and the first two dimensions of space have more elements than this.
TORCH_TAKES_ONEDNN = 20480
# From this many multiplications on, oneDNN is faster (measured with torch 2.13 on x86).
ONEDNN_PAYS = 1 << 22
# With fewer input channels than this, oneDNN's backward pass is slower than torch's, measured likewise.
FEWEST_CHANNELS_BACKWARD = 3


def conv3d(
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    stride: Sequence[int] = (1, 1, 1),
    padding: Sequence[int] = (0, 0, 0),
    dilation: Sequence[int] = (1, 1, 1),
    groups: int = 1,
) -> torch.Tensor:
    """``torch.nn.functional.conv3d`` up to rounding, with the same arguments and shapes."""
    tensors = (input, weight) if bias is None else (input, weight, bias)
    shape = input.shape if input.dim() == 5 else (1, *input.shape)
    force_onednn = (
        not torch.compiler.is_compiling()  # compiled programs call torch's operators only
        and torch.backends.mkldnn.is_available()
        and torch.backends.mkldnn.enabled
        and not torch.is_autocast_enabled(input.device.type)
        and all(t.dtype == torch.float32 and t.is_cpu and t.layout == torch.strided for t in tensors)
        and takes_slow_kernel(shape, weight.shape, groups)
        and _multiplications(shape, weight.shape, stride, padding, dilation) >= ONEDNN_PAYS
        and (bias is None or bias.shape == weight.shape[:1])
    )
    if not force_onednn:
        return F.conv3d(input, weight, bias, stride, padding, dilation, groups)
    result: torch.Tensor = OneDNNConvolution.apply(input.reshape(shape), weight, bias, stride, padding, dilation)
    return result if input.dim() == 5 else result.squeeze(0)


def takes_slow_kernel(input: Sequence[int], weight: Sequence[int], groups: int) -> bool:
    """Whether torch takes its own, slow kernel here: the conditions of ``use_mkldnn`` in its Convolution.cpp."""
    if len(weight) != 5 or len(input) != 5 or input[0] != 1 or groups != 1 or input[1] != weight[1]:
        return False
    is_product = max(weight[3:]) == 1  # a matrix product, fast in torch's kernel
    return not is_product and min(weight[3:]) <= 3 and math.prod(input[:4]) <= TORCH_TAKES_ONEDNN


def _multiplications(
    input: Sequence[int], weight: Sequence[int], stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int]
) -> int:
    count = math.prod(weight)
    for n, k, s, p, d in zip(input[2:], weight[2:], stride, padding, dilation, strict=True):
        count *= max((n + 2 * p - d * (k - 1) - 1) // s + 1, 0)
    return count


class OneDNNConvolution(torch.autograd.Function):
    """A 3-d convolution without groups by oneDNN, forward and backward."""

    @staticmethod
    def forward(
        input: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        stride: Sequence[int],
        padding: Sequence[int],
        dilation: Sequence[int],
    ) -> torch.Tensor:
        return torch.mkldnn_convolution(input, weight, bias, padding, stride, dilation, 1)

    @staticmethod
    def setup_context(ctx: Context, inputs: ConvArgs, output: torch.Tensor) -> None:
        input, weight, bias, *ctx.options = inputs
        ctx.save_for_backward(input, weight)
        ctx.save_for_forward(input, weight)
        ctx.bias_sizes = None if bias is None else [*bias.shape]

    @staticmethod
    def backward(ctx: Context, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (gradient,), (input, weight) = gradients, ctx.saved_tensors
        double_backward = any(forward_ad.unpack_dual(t).tangent is not None for t in (gradient, input, weight))
        double_backward = double_backward or torch.is_grad_enabled()
        # torch uses oneDNN for inputs in oneDNN's layout; results in this layout cannot be differentiated again.
        if not double_backward and input.shape[1] >= FEWEST_CHANNELS_BACKWARD:
            gradient, input = gradient.to_mkldnn(), input.to_mkldnn()
        stride, padding, dilation = ctx.options
        computed = torch.ops.aten.convolution_backward(
            gradient, input, weight, ctx.bias_sizes, stride, padding, dilation, False, [0, 0, 0], 1,
            [*ctx.needs_input_grad[:2], ctx.bias_sizes is not None and ctx.needs_input_grad[2]],
        )  # fmt: skip
        return *(t.to_dense() if t is not None and t.is_mkldnn else t for t in computed), None, None, None

    @staticmethod
    def jvp(ctx: Context, *tangents: torch.Tensor | None) -> torch.Tensor:
        (input, weight), (input_tangent, weight_tangent, bias_tangent, *_) = ctx.saved_tensors, tangents
        input_tangent = torch.zeros_like(input) if input_tangent is None else input_tangent
        result = conv3d(input_tangent, weight, bias_tangent, *ctx.options)
        return result if weight_tangent is None else result + conv3d(input, weight_tangent, None, *ctx.options)

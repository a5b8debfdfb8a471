"""Attention of a worker's queries to keys and values in its memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch

from distdl.nn.attention.kernels.flash import InputGrads, Partial, gradients, mask_gradients, partial_attention
from distdl.nn.attention.kernels.operands import MaskRule, Masks, Operands
from distdl.nn.attention.kernels.scores import attention_by_scores
from distdl.torch_compat.autograd import Context


def attend(x: Operands, dropout: torch.Tensor | None, has_tangent: bool) -> torch.Tensor:
    """The output of attention, by the kernel where possible."""
    if dropout is not None or has_tangent or x.q.device.type != "cpu":
        return attention_by_scores(x, dropout)[0]
    output: torch.Tensor = _FlashAttention.apply(x.q, x.k, x.v, x.rule, *x.masks)
    return output


class _FlashAttention(torch.autograd.Function):
    """Attention that stores no scores: the backward pass computes them again."""

    @staticmethod
    def forward(
        ctx: Context, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, rule: MaskRule, *masks: torch.Tensor
    ) -> torch.Tensor:
        result = partial_attention(Operands(q, k, v, masks, rule))
        ctx.save_for_backward(q, k, v, *result, *masks)
        ctx.rule = rule
        return result.output

    @staticmethod
    def backward(ctx: Context, *grad_outputs: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        q, k, v, output, largest, total, *masks = ctx.saved_tensors
        wanted = ctx.needs_input_grad[4:]
        if torch.is_grad_enabled():  # for second derivatives, which the kernel lacks

            def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, masks: Masks) -> torch.Tensor:
                return attention_by_scores(Operands(q, k, v, masks, ctx.rule))[0]

            *of_inputs, of_masks = recomputed_gradients(attention, (q, k, v), masks, wanted, grad_outputs)
            return *of_inputs, None, *of_masks
        x = Operands(q, k, v, masks, ctx.rule)
        grads = gradients(grad_outputs[0], x, Partial(output, largest, total), any(wanted))
        return *grads[:3], None, *in_dtypes(mask_gradients(grads.scores, masks, wanted), masks)


Projections: TypeAlias = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def recomputed_gradients(
    function: Callable[[torch.Tensor, torch.Tensor, torch.Tensor, Masks], torch.Tensor],
    inputs: Projections,
    masks: Sequence[torch.Tensor],
    wanted: Sequence[bool],
    grad_outputs: Sequence[torch.Tensor],
) -> InputGrads:
    """Differentiable gradients of a function, which is computed again.

    Args:
        wanted: whether the gradient is wanted, by mask.
        grad_outputs: the gradient of the function's result.
    """
    learned = [i for i, is_wanted in enumerate(wanted) if is_wanted]
    variables = [tensor if tensor.requires_grad else tensor.detach().requires_grad_() for tensor in inputs]

    def of_learned(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *trained: torch.Tensor) -> torch.Tensor:
        all_masks = list(masks)
        for i, mask in zip(learned, trained, strict=True):
            all_masks[i] = mask
        return function(q, k, v, all_masks)

    variables += [masks[i] for i in learned]
    q, k, v, *of_masks = torch.autograd.grad(of_learned(*variables), variables, grad_outputs, create_graph=True)
    by_mask = dict(zip(learned, of_masks, strict=True))
    return q, k, v, [by_mask.get(i) for i in range(len(masks))]


def in_dtypes(grads: Sequence[torch.Tensor | None], masks: Masks) -> list[torch.Tensor | None]:
    """Gradients of masks in the masks' dtypes."""
    return [None if grad is None else grad.to(mask.dtype) for grad, mask in zip(grads, masks, strict=True)]

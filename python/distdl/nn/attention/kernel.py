"""Attention of one worker's queries to keys and values that it has."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch

from distdl.nn.attention.flash import Derived, Found, attended, gradients, of_masks
from distdl.nn.attention.operands import Masks, Operands, Rule
from distdl.nn.attention.scores import composed

Context: TypeAlias = torch.autograd.function.FunctionCtx


def attend(x: Operands, kept: torch.Tensor | None, has_tangent: bool) -> torch.Tensor:
    """The output of attention, of the kernel where it can compute it."""
    if kept is not None or has_tangent or x.q.device.type != "cpu":
        return composed(x, kept)[0]
    output: torch.Tensor = _Flash.apply(x.q, x.k, x.v, x.rule, *x.masks)
    return output


class _Flash(torch.autograd.Function):
    """Attention that keeps no scores: the backward pass computes them again."""

    @staticmethod
    def forward(
        ctx: Context, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, rule: Rule, *masks: torch.Tensor
    ) -> torch.Tensor:
        found = attended(Operands(q, k, v, masks, rule))
        ctx.save_for_backward(q, k, v, *found, *masks)
        ctx.rule = rule
        return found.output

    @staticmethod
    def backward(ctx: Context, *given: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        q, k, v, output, largest, total, *masks = ctx.saved_tensors
        wanted = ctx.needs_input_grad[4:]
        if torch.is_grad_enabled():  # for second derivatives, which the kernel does not have
            *found, of_each = recomputed(
                lambda q, k, v, masks: composed(Operands(q, k, v, masks, ctx.rule))[0], (q, k, v), masks, wanted, given
            )
            return *found, None, *of_each
        x = Operands(q, k, v, masks, ctx.rule)
        derived = gradients(given[0], x, Found(output, largest, total), any(wanted))
        return *derived[:3], None, *in_dtypes(of_masks(derived.scores, masks, wanted), masks)


Inputs: TypeAlias = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def recomputed(
    function: Callable[[torch.Tensor, torch.Tensor, torch.Tensor, Masks], torch.Tensor],
    inputs: Inputs,
    masks: Sequence[torch.Tensor],
    wanted: Sequence[bool],
    given: Sequence[torch.Tensor],
) -> Derived:
    """The gradients of a function that is computed again, which can be differentiated further.

    Args:
        function: of q, k, v and masks.
        inputs: q, k and v.
        masks: all of them.
        wanted: of which masks the gradient is wanted.
        given: the gradient of the function's result.
    """
    learned = [i for i, one in enumerate(wanted) if one]
    used = [one if one.requires_grad else one.detach().requires_grad_() for one in inputs]

    def of_learned(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *own: torch.Tensor) -> torch.Tensor:
        of_call = list(masks)
        for i, mask in zip(learned, own, strict=True):
            of_call[i] = mask
        return function(q, k, v, of_call)

    used += [masks[i] for i in learned]
    q, k, v, *found = torch.autograd.grad(of_learned(*used), used, given, create_graph=True)
    of_each = dict(zip(learned, found, strict=True))
    return q, k, v, [of_each.get(i) for i in range(len(masks))]


def in_dtypes(found: Sequence[torch.Tensor | None], masks: Masks) -> list[torch.Tensor | None]:
    """Gradients of masks in the dtypes of the masks."""
    return [None if one is None else one.to(mask.dtype) for one, mask in zip(found, masks, strict=True)]

"""Attention that workers along the sequence share; its backward pass takes one vote."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol, TypeAlias

import torch

from distdl import _core
from distdl.nn.attention.kernels.flash import InputGrads, Partial
from distdl.nn.attention.kernels.local import in_dtypes, recomputed_gradients
from distdl.nn.attention.kernels.operands import AttentionCall, MaskRule, Masks, Operands
from distdl.nn.attention.methods.geometry import Geometry
from distdl.torch_compat.autograd import Context


class AttentionMethod(Protocol):
    """How workers share the work of some heads. All calls are collective, and take no vote."""

    def forward(self, blocks: Operands) -> Partial:
        """The results of this worker's queries, and the statistics that the backward pass needs."""
        ...

    def backward(self, gradient: torch.Tensor, blocks: Operands, result: Partial, wanted: Sequence[bool]) -> InputGrads:
        """The gradients of this worker's blocks, and of the wanted masks."""
        ...


RecordedAttention: TypeAlias = Callable[[AttentionCall, Masks], torch.Tensor]


class SharedAttention:
    """Attention by a method, one group of heads after another, to reuse memory.

    Between the passes, only this worker's blocks are kept, with the largest scores and sums. Tokens travel again in the
    backward pass, which begins with its one vote.

    Args:
        groups: the number of groups of heads, to which each worker contributes equally.
        recorded: the same function by operations that torch differentiates any number of times.
    """

    def __init__(self, geometry: Geometry, method: AttentionMethod, groups: int, recorded: RecordedAttention) -> None:
        grid, self._method, self._groups = geometry.grid, method, groups
        self.recorded = recorded
        name = f"{geometry.layer} backward"
        self._agreement = None if grid.root is None else _core.LayerAgreement(name, grid.root, grid.ranks, ["gradient"])

    def __call__(self, call: AttentionCall, masks: Masks) -> torch.Tensor:
        """The results of this worker's queries. The masks are in the method's blocks."""
        q, k, v = call.q, call.k, call.v
        if call.differentiated:  # all workers take part in the backward pass
            q, k, v = (x if x.requires_grad else x.detach().requires_grad_() for x in (q, k, v))
        result: torch.Tensor = _SharedFunction.apply(q, k, v, self, call.factor, *masks)
        return result

    def saved(self, ctx: Context) -> tuple[torch.Tensor, ...]:
        """The tensors saved for the backward pass; if they were freed, all workers raise."""
        try:
            tensors: tuple[torch.Tensor, ...] = ctx.saved_tensors
        except RuntimeError as error:
            if self._agreement is not None:
                self._agreement.agree([error], [])
            raise
        return tensors

    @contextmanager
    def agreed(self, gradient: torch.Tensor) -> Iterator[None]:
        assert self._agreement is not None
        self._agreement.agree([gradient], [])
        try:
            yield
        finally:
            self._agreement.leave()

    def forward(self, blocks: Operands) -> tuple[torch.Tensor, list[torch.Tensor]]:
        if self._groups == 1:
            output, *statistics = self._method.forward(blocks)
            return output, statistics
        *leading, heads, rows, _ = blocks.q.shape
        # Tokens before heads: the order in which layers join the heads of a token.
        output = blocks.q.new_empty(*leading, rows, heads, blocks.v.shape[-1]).transpose(-3, -2)
        statistics = []
        for part, target in zip(self._parts(blocks), output.chunk(self._groups, -3), strict=True):
            result, *part_statistics = self._method.forward(part)
            target.copy_(result)
            statistics += part_statistics
        return output, statistics

    def backward(
        self,
        gradient: torch.Tensor,
        blocks: Operands,
        output: torch.Tensor,
        statistics: list[torch.Tensor],
        wanted: list[bool],
    ) -> InputGrads:
        if self._groups == 1:
            return self._method.backward(gradient, blocks, Partial(output, *statistics), wanted)
        totals = [torch.empty_like(x, memory_format=torch.contiguous_format) for x in blocks[:3]]
        targets = zip(*(x.chunk(self._groups, -3) for x in totals), strict=True)
        outputs = zip(gradient.chunk(self._groups, -3), output.chunk(self._groups, -3), strict=True)
        of_masks: list[torch.Tensor | None] = [None] * len(blocks.masks)
        for i, (part, into, (grad, result)) in enumerate(zip(self._parts(blocks), targets, outputs, strict=True)):
            *grads, new = self._method.backward(grad, part, Partial(result, *statistics[2 * i : 2 * i + 2]), wanted)
            for target, x in zip(into, grads, strict=True):
                target.copy_(x)
            of_masks = [
                grad if total is None or grad is None else total + grad
                for total, grad in zip(of_masks, new, strict=True)
            ]
            del grads
        return *totals, of_masks

    def _parts(self, blocks: Operands) -> Iterator[Operands]:
        for q, k, v in zip(*(x.chunk(self._groups, -3) for x in blocks[:3]), strict=True):
            yield Operands(q, k, v, *blocks[3:])


class _SharedFunction(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Context,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        shared: SharedAttention,
        scale: float,
        *masks: torch.Tensor,
    ) -> torch.Tensor:
        output, statistics = shared.forward(Operands(q, k, v, masks, MaskRule(scale)))
        ctx.save_for_backward(q, k, v, output, *masks, *statistics)
        ctx.shared, ctx.scale, ctx.masks = shared, scale, len(masks)
        return output

    @staticmethod
    def backward(ctx: Context, *grad_outputs: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        # Checkpointed activations are recomputed here, before any other communication.
        q, k, v, output, *others = ctx.shared.saved(ctx)
        masks, statistics = others[: ctx.masks], others[ctx.masks :]
        shared, wanted = ctx.shared, list(ctx.needs_input_grad[5:])
        if torch.is_grad_enabled():  # for second derivatives, which the kernel lacks

            def recorded(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, masks: Masks) -> torch.Tensor:
                result: torch.Tensor = shared.recorded(AttentionCall(q, k, v, scale=ctx.scale), masks)
                return result

            *grads, of_masks = recomputed_gradients(recorded, (q, k, v), masks, wanted, grad_outputs)
            return *grads, None, None, *of_masks
        with shared.agreed(grad_outputs[0]):
            blocks = Operands(q, k, v, masks, MaskRule(ctx.scale))
            *grads, of_masks = shared.backward(grad_outputs[0], blocks, output, statistics, wanted)
        return *grads, None, None, *in_dtypes(of_masks, masks)

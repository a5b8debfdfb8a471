"""Attention that workers along the sequence share, with derivatives that take one vote."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol, TypeAlias

import torch

from distdl import _core
from distdl.nn.attention.flash import Derived, Found
from distdl.nn.attention.geometry import Geometry
from distdl.nn.attention.kernel import Context, in_dtypes, recomputed
from distdl.nn.attention.operands import Call, Masks, Operands, Rule


class Method(Protocol):
    """How workers share the work of some heads. All calls are collective, and take no vote."""

    def forward(self, own: Operands) -> Found:
        """The results of this worker's queries, and what the backward pass needs of them."""
        ...

    def backward(self, gradient: torch.Tensor, own: Operands, found: Found, wanted: Sequence[bool]) -> Derived:
        """The gradients of this worker's blocks, and of the masks that are wanted."""
        ...


Whole: TypeAlias = Callable[[Call, Masks], torch.Tensor]


class Shared:
    """Attention by a method, for one group of heads after the other: what travels and is computed of one group is gone
    before that of the next one takes memory.

    Between the passes, only this worker's blocks are kept, with the largest scores and sums. Tokens travel again in the
    backward pass, which begins with its one vote.

    Args:
        geometry: the blocks of all heads.
        method: for the blocks of one group.
        groups: of heads, to each of which each worker contributes as many.
        recorded: the same function of operations that torch differentiates any number of times.
    """

    def __init__(self, geometry: Geometry, method: Method, groups: int, recorded: Whole) -> None:
        grid, self._method, self._groups = geometry.grid, method, groups
        self.recorded = recorded
        name = f"{geometry.layer} backward"
        self._agreement = None if grid.root is None else _core.LayerAgreement(name, grid.root, grid.ranks, ["gradient"])

    def __call__(self, call: Call, masks: Masks) -> torch.Tensor:
        """The results of this worker's queries, with masks as the method takes them."""
        q, k, v = call.q, call.k, call.v
        if call.differentiated:  # all workers take part in the backward pass
            q, k, v = (x if x.requires_grad else x.detach().requires_grad_() for x in (q, k, v))
        result: torch.Tensor = _Shared.apply(q, k, v, self, call.factor, *masks)
        return result

    def saved(self, ctx: Context) -> tuple[torch.Tensor, ...]:
        """The tensors saved for the backward pass; where they were freed, all workers raise."""
        try:
            tensors: tuple[torch.Tensor, ...] = ctx.saved_tensors
        except RuntimeError as error:
            if self._agreement is not None:
                self._agreement.agree([error], [])
            raise
        return tensors

    @contextmanager
    def agreed(self, gradient: torch.Tensor) -> Iterator[None]:
        """The backward pass, which all workers begin together."""
        assert self._agreement is not None
        self._agreement.agree([gradient], [])
        try:
            yield
        finally:
            self._agreement.leave()

    def forward(self, own: Operands) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """The results of this worker's queries, and what else is known of each group."""
        if self._groups == 1:
            output, *known = self._method.forward(own)
            return output, known
        *leading, heads, rows, _ = own.q.shape
        # Tokens before heads: how layers put the heads of a token together.
        output = own.q.new_empty(*leading, rows, heads, own.v.shape[-1]).transpose(-3, -2)
        known = []
        for part, target in zip(self._parts(own), output.chunk(self._groups, -3), strict=True):
            result, *more = self._method.forward(part)
            target.copy_(result)
            known += more
        return output, known

    def backward(
        self, gradient: torch.Tensor, own: Operands, output: torch.Tensor, known: list[torch.Tensor], wanted: list[bool]
    ) -> Derived:
        """The gradients of this worker's blocks, and of the masks that are wanted."""
        if self._groups == 1:
            return self._method.backward(gradient, own, Found(output, *known), wanted)
        totals = [torch.empty_like(x, memory_format=torch.contiguous_format) for x in own[:3]]
        targets = zip(*(x.chunk(self._groups, -3) for x in totals), strict=True)
        given = zip(gradient.chunk(self._groups, -3), output.chunk(self._groups, -3), strict=True)
        of_masks: list[torch.Tensor | None] = [None] * len(own.masks)
        for i, (part, into, (grad, result)) in enumerate(zip(self._parts(own), targets, given, strict=True)):
            *found, more = self._method.backward(grad, part, Found(result, *known[2 * i : 2 * i + 2]), wanted)
            for target, x in zip(into, found, strict=True):
                target.copy_(x)
            of_masks = [
                one if total is None or one is None else total + one for total, one in zip(of_masks, more, strict=True)
            ]
            del found
        return *totals, of_masks

    def _parts(self, own: Operands) -> Iterator[Operands]:
        for q, k, v in zip(*(x.chunk(self._groups, -3) for x in own[:3]), strict=True):
            yield Operands(q, k, v, *own[3:])


class _Shared(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Context,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        shared: Shared,
        scale: float,
        *masks: torch.Tensor,
    ) -> torch.Tensor:
        output, known = shared.forward(Operands(q, k, v, masks, Rule(scale)))
        ctx.save_for_backward(q, k, v, output, *masks, *known)
        ctx.shared, ctx.scale, ctx.masks = shared, scale, len(masks)
        return output

    @staticmethod
    def backward(ctx: Context, *given: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        # Where activations are checkpointed, this computes them again, before any other communication.
        q, k, v, output, *others = ctx.shared.saved(ctx)
        masks, known = others[: ctx.masks], others[ctx.masks :]
        shared, wanted = ctx.shared, list(ctx.needs_input_grad[5:])
        if torch.is_grad_enabled():  # for second derivatives, which the kernel does not have

            def recorded(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, masks: Masks) -> torch.Tensor:
                whole: torch.Tensor = shared.recorded(Call(q, k, v, scale=ctx.scale), masks)
                return whole

            *found, of_masks = recomputed(recorded, (q, k, v), masks, wanted, given)
            return *found, None, None, *of_masks
        with shared.agreed(given[0]):
            own = Operands(q, k, v, masks, Rule(ctx.scale))
            *found, of_masks = shared.backward(given[0], own, output, known, wanted)
        return *found, None, None, *in_dtypes(of_masks, masks)

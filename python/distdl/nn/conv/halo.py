"""Convolution without a copy of the block: the sum of the results of a worker's block and of its halos.

A convolution is linear in its input. The local layer pads the block with zeros at cuts; the outputs there lack the
products with elements beyond the cut, the halo. It travels during the convolution of the block, and its products are
added afterwards.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch

from distdl import _core, operators
from distdl.parameters.transport import zero_of
from distdl.partitions.boxes import Interval
from distdl.partitions.grid import Grid
from distdl.torch_compat.autograd import Context

Widths: TypeAlias = Sequence[tuple[int, int, int]]  # (dimension, left, right)

# HaloConvolution needs no copy of the block, but its small convolutions at the border take up to a millisecond longer
# than a copy. That pays for large blocks, and is little beside a convolution that takes long: see the page on
# performance.
SMALLEST = 1 << 20  # elements in a block
_SMALLEST_OF_LONG = 1 << 18  # in one with so many products
_MANY_PRODUCTS = 1 << 28


HaloShare: TypeAlias = _core.Share
Sliding: TypeAlias = _core.Sliding


def is_large(positions: int, weight: Sequence[int], groups: int) -> bool:
    """Whether HaloConvolution pays for a block.

    Args:
        positions: in batch and space.
        weight: the shape of the weight.
    """
    elements = positions * weight[1] * groups
    return elements >= SMALLEST or (elements >= _SMALLEST_OF_LONG and positions * math.prod(weight) >= _MANY_PRODUCTS)


def fit(slidings: Sequence[Sliding], batch: int, weight: Sequence[int], groups: int) -> bool:
    """Whether HaloConvolution can compute this convolution, and pays.

    Args:
        slidings: the windows of all workers along each spatial dimension.
        batch: of the smallest block.
        weight: the shape of the weight.
    """
    space = math.prod(min(stop - start for start, stop in sliding.blocks) for sliding in slidings)
    return (
        is_large(batch * space, weight, groups)
        and all(sliding.fits() for sliding in slidings)
        and any(sliding.has_halos() for sliding in slidings)
    )


class Borders(torch.autograd.Function):
    """A block, and for some dimensions its concatenated slices at both ends."""

    @staticmethod
    def forward(x: torch.Tensor, widths: Widths) -> tuple[torch.Tensor, ...]:
        return x.view_as(x), *Borders.cut(x, widths)

    @staticmethod
    def cut(x: torch.Tensor, widths: Widths) -> list[torch.Tensor]:
        return [
            torch.cat([x.narrow(d, 0, left), x.narrow(d, x.shape[d] - right, right)], d) for d, left, right in widths
        ]

    @staticmethod
    def setup_context(ctx: Context, inputs: tuple[torch.Tensor, Widths], output: tuple[torch.Tensor, ...]) -> None:
        _, ctx.widths = inputs

    @staticmethod
    def backward(ctx: Context, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        whole, *borders = gradients
        # The gradient of the block comes from the convolution and has no other user: no copy.
        if torch.is_grad_enabled():
            whole = whole.clone()
        for (d, left, right), border in zip(ctx.widths, borders, strict=True):
            whole.narrow(d, 0, left).add_(border.narrow(d, 0, left))
            whole.narrow(d, whole.shape[d] - right, right).add_(border.narrow(d, left, right))
        return whole, None

    @staticmethod
    def jvp(ctx: Context, *tangents: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x = tangents[0]
        return x.view_as(x), *Borders.cut(x, ctx.widths)


class Added(torch.autograd.Function):
    """Adds terms in place to a tensor, from an index of a dimension on.

    Autograd's addition to a view would copy the whole gradient in the backward pass.
    """

    @staticmethod
    def forward(whole: torch.Tensor, terms: torch.Tensor, d: int, start: int) -> torch.Tensor:
        whole.narrow(d, start, terms.shape[d]).add_(terms)
        return whole

    @staticmethod
    def setup_context(ctx: Context, inputs: tuple[torch.Tensor, torch.Tensor, int, int], output: torch.Tensor) -> None:
        whole, terms, d, start = inputs
        ctx.mark_dirty(whole)
        ctx.interval = d, start, terms.shape[d]

    @staticmethod
    def backward(ctx: Context, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        return gradients[0], gradients[0].narrow(*ctx.interval), None, None

    @staticmethod
    def jvp(ctx: Context, *tangents: torch.Tensor) -> torch.Tensor:
        whole, terms, *_ = tangents
        whole.narrow(*ctx.interval).add_(terms)
        return whole


class HaloConvolution:
    """The convolution of a worker's block of a tensor.

    Args:
        leading: the blocks along the batch, if any, and along the channels.
        slidings: for each spatial dimension the windows of all workers; :func:`fit` must be true for them.

    Constructed in a set-up, after a vote on all arguments. Calling is collective over P_x.
    """

    def __init__(
        self, layer: str, P_x: Grid, leading: Sequence[Sequence[Interval]], slidings: Sequence[Sliding]
    ) -> None:
        self._slidings, self._dims = slidings, len(slidings)
        self._place = P_x.place[-self._dims :]
        self._padding = [sliding.padding(i) or 0 for sliding, i in zip(slidings, self._place, strict=True)]
        self._split = [d for d, sliding in enumerate(slidings) if sliding.has_halos()]
        self._borders: list[tuple[int, int, int]] = []
        self._exchanges: list[operators.Operator] = []
        # Corners travel with the halo of the first of their dimensions, which includes the halos of later dimensions.
        for d in self._split:
            wanted = [list(along) for along in leading]
            for e, sliding in enumerate(slidings):
                blocks = sliding.reads if self._later(e, d) else sliding.blocks
                wanted.append(self._in_a_row(sliding) if e == d else list(blocks))
            self._borders.append((d - self._dims, *slidings[d].border(self._place[d])))
            self._exchanges.append(operators.interval_exchange(layer, P_x, P_x, wanted))

    def _later(self, e: int, d: int) -> bool:
        return e > d and e in self._split

    @staticmethod
    def _in_a_row(sliding: Sliding) -> list[Interval]:
        """The interval of each place in the concatenated borders: its own, grown by its halo."""
        wanted, start = [], 0
        for i in range(len(sliding.blocks)):
            (left, right), stop = sliding.halo(i), start + sum(sliding.border(i))
            wanted.append((start - left, stop + right))
            start = stop
        return wanted

    def __call__(
        self,
        input: torch.Tensor,
        parameters: Callable[[], tuple[torch.Tensor, torch.Tensor | None]],
        convolve: Callable[..., torch.Tensor],
    ) -> torch.Tensor:
        """The worker's outputs.

        Args:
            parameters: waits for weight and bias, and returns them.
            convolve: the local layer ``convolve(x, weight, bias, padding, along)`` along some spatial dimensions.
        """
        block, *borders = Borders.apply(input, self._borders)
        started = [exchange.start(border) for exchange, border in zip(self._exchanges, borders, strict=True)]
        weight, bias = parameters()
        output = convolve(block, weight, bias, self._padding)
        for d, call in zip(self._split, started, strict=True):
            read, at = call.wait(), d - self._dims
            before, after = self._slidings[d].halo(self._place[d])
            end = block.shape[at]
            for start, stop, first in ((-before, 0, 0), (end, end + after, read.shape[at] - after)):
                if start == stop:
                    continue
                share = self._slidings[d].share(self._place[d], start, stop)
                halo = read.narrow(at, first, stop - start).contiguous()  # backward then saves only the halo
                taps = weight.narrow(at, share.taps[0], share.taps[1] - share.taps[0])
                output = Added.apply(output, self._terms(d, share, halo, taps, convolve), at, share.outputs[0])
            if before == after == 0:  # other workers have a halo: the graphs must be equal
                zero = zero_of(read) * zero_of(weight)
                output = Added.apply(output, zero.expand_as(output.narrow(at, 0, 0)), at, 0)
        return output

    def _terms(
        self, d: int, share: HaloShare, halo: torch.Tensor, taps: torch.Tensor, convolve: Callable[..., torch.Tensor]
    ) -> torch.Tensor:
        """The terms of a halo along dimension d in the outputs."""
        at, along = d - self._dims, [*range(self._dims)]
        padding = [0 if self._later(e, d) else width for e, width in enumerate(self._padding)]
        padding[d] = share.padding
        if halo.shape[at] == 1 < self._dims:  # one tap; torch's convolutions in fewer dimensions are faster
            del along[d], padding[d]
            return convolve(halo.squeeze(at), taps.squeeze(at), None, padding, along).unsqueeze(at)
        low, high = share.outputs
        return convolve(halo, taps, None, padding, along).narrow(at, share.first, high - low)

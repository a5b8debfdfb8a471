"""Blocks of weights that all ranks have whole."""

from __future__ import annotations

from collections.abc import Sequence

import torch


def weight_block(weight: torch.Tensor, blocks: Sequence[Sequence[int]], place: Sequence[int]) -> torch.Tensor:
    """The part of a weight that is broadcast to a worker's block.

    Args:
        weight: broadcast to the whole tensor, by torch's rules.
        blocks: the sizes of the tensor's blocks by dimension.
    """
    first = len(blocks) - weight.dim()
    for d, n in enumerate(weight.shape):
        sizes, gather_or_zero = blocks[first + d], place[first + d]
        if n > 1:
            weight = weight.narrow(d, sum(sizes[:gather_or_zero]), sizes[gather_or_zero])
    return weight


def check_broadcast(layer: str, name: str, weight: torch.Tensor | None, whole: Sequence[int]) -> None:
    """Raise ValueError unless a weight can be broadcast to a tensor of this shape."""
    if weight is None:
        return
    extents = whole[len(whole) - weight.dim() :]
    if weight.dim() > len(whole) or any(n not in (1, m) for n, m in zip(weight.shape, extents, strict=True)):
        raise ValueError(f"{layer}: {name} has shape {list(weight.shape)}; the whole input has {list(whole)}")

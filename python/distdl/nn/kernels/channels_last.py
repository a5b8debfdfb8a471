"""Channels in the last place of memory, where an input has them there."""

from __future__ import annotations

import torch

_CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}


def memory_order(x: torch.Tensor) -> torch.memory_format:
    """The order in which the elements of x lie in memory: channels-last, or contiguous for any other."""
    is_last = x.dim() in _CHANNELS_LAST and x.stride(1) == 1 and not x.is_contiguous()
    return _CHANNELS_LAST[x.dim()] if is_last else torch.contiguous_format


def ordered_like(x: torch.Tensor, result: torch.Tensor) -> torch.Tensor:
    """A result in the memory order of x, if it has as many dimensions."""
    return result.contiguous(memory_format=memory_order(x)) if result.dim() == x.dim() else result


def selected(x: torch.Tensor, d: int, index: torch.Tensor) -> torch.Tensor:
    """``x.index_select(d, index)`` in the memory order of x, for a dimension of space that counts from the end."""
    if memory_order(x) == torch.contiguous_format:
        return x.index_select(d, index)
    return x.movedim(1, -1).index_select(d - 1, index).movedim(-1, 1)

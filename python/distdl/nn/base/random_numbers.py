"""Random numbers by global index: equal for every partition, since each element has its own number.

The numbers of a call follow from its key: ``self.random_key`` in the ``compute`` of a layer that overrides
:meth:`distdl.nn.Layer.is_random`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import torch

from distdl import _core
from distdl.partitions.boxes import Interval, box_shape
from distdl.partitions.grid import Grid


def draw_key() -> int:
    """A nonnegative key from torch's default generator, which activation checkpointing rewinds."""
    return int(torch.empty((), dtype=torch.int64, device="cpu").random_())


def key_of_first_worker(grid: Grid) -> int:
    """A key from torch's default generator of worker 0. Every rank that constructs the grid draws one. Collective."""
    all_ranks = grid.constructing_ranks()
    drawn = all_ranks.gather(draw_key().to_bytes(8, "little"))
    return int.from_bytes(drawn[all_ranks.ranks.index(grid.ranks[0])], "little")


def key_of_part(key: int, number: int) -> int:
    """The key of one of several tensors in a call, by an odd and large step."""
    return (key + number * 0x4F1BBCDCBFA53E0B) % (1 << 63)  # the golden ratio of 2^63


def random_mask(
    key: int,
    shape: Sequence[int],
    intervals: Sequence[Interval],
    p: float,
    *,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str | None = None,
) -> torch.Tensor:
    """A block of a dropout mask: 0 with probability p, otherwise 1/(1-p), so that its mean is 1.

    Args:
        key: of the call, equal on all ranks: ``self.random_key`` in a layer.
        shape: of the whole mask.
        intervals: for each dimension the (start, stop) of the block.
        p: the probability of 0, in [0, 1).
        dtype, device: of the block; torch.bool means False with probability p, otherwise True.

    Each element depends only on the key, p and its row-major number in the whole mask. Not collective.
    """
    return random_choice(key, shape, intervals, p, (0.0, _kept_value(p, dtype)), dtype=dtype, device=device)


@functools.cache
def _kept_value(p: float, dtype: torch.dtype) -> float:
    """1/(1-p), rounded as in torch's dropout."""
    return float(torch.ones((), dtype=dtype, device="cpu").div_(1 - p)) if dtype.is_floating_point else 1.0


def random_choice(
    key: int,
    shape: Sequence[int],
    intervals: Sequence[Interval],
    p: float,
    values: tuple[float, float],
    *,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str | None = None,
) -> torch.Tensor:
    """A block of a tensor with elements ``values[0]`` with probability p, otherwise ``values[1]``.

    Otherwise as :func:`random_mask`.
    """
    block, threshold = _empty(intervals, dtype, device), round(p * 2.0**32)
    if block.device.type == "cpu":
        _core.fill_choice(block, key, shape, intervals, threshold, *values)
        return block
    below, other = (torch.tensor(value, dtype=dtype, device=device) for value in values)
    return fill_block(block, key, shape, intervals, lambda words: torch.where(words < threshold, below, other))


def random_uniform(
    key: int,
    shape: Sequence[int],
    intervals: Sequence[Interval],
    lower: float,
    upper: float,
    *,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str | None = None,
) -> torch.Tensor:
    """A block of a tensor with elements uniform in [lower, upper), in 2**32 steps.

    Otherwise as :func:`random_mask`.
    """
    block, step = _empty(intervals, dtype, device), (upper - lower) * 2.0**-32
    if block.device.type == "cpu":
        _core.fill_uniform(block, key, shape, intervals, lower, step)
        return block
    return fill_block(block, key, shape, intervals, lambda words: lower + words.double() * step)


def _empty(intervals: Sequence[Interval], dtype: torch.dtype, device: torch.device | str | None) -> torch.Tensor:
    return torch.empty(box_shape(intervals), dtype=dtype, device=device)


# The numbers of src/base/philox.cpp by tensor operations, for other devices.

_MULTIPLIERS = 0xD2511F53, 0xCD9E8D57
_INCREMENTS = 0x9E3779B9, 0xBB67AE85
_LOW = 0xFFFFFFFF
_AT_ONCE = 1 << 22  # elements; bounds the memory


def fill_block(
    block: torch.Tensor,
    key: int,
    shape: Sequence[int],
    intervals: Sequence[Interval],
    value: Callable[[torch.Tensor], torch.Tensor],
) -> torch.Tensor:
    """Fill the block with values of the elements' words."""
    numbers = torch.zeros((), dtype=torch.int64, device=block.device)
    for n, (start, stop) in zip(shape, intervals, strict=True):
        numbers = numbers.unsqueeze(-1) * n + torch.arange(start, stop, device=block.device)
    flat, numbers = block.view(-1), numbers.reshape(-1)
    for first in range(0, flat.numel(), _AT_ONCE):
        flat[first : first + _AT_ONCE] = value(philox_words(key, numbers[first : first + _AT_ONCE]))
    return block


def philox_words(key: int, numbers: torch.Tensor) -> torch.Tensor:
    """The words of the elements of these numbers, as int64, by Philox4x32-10.

    Source: J. K. Salmon, M. A. Moraes, R. O. Dror, D. E. Shaw, "Parallel random numbers: as easy as 1, 2, 3" (2011).
    """
    counter = numbers // 64 * 16 + numbers % 16
    a, b = counter & _LOW, counter >> 32
    c, d = torch.zeros_like(a), torch.zeros_like(a)
    first, second = key & _LOW, key >> 32
    for _ in range(10):
        p, q = a * _MULTIPLIERS[0], c * _MULTIPLIERS[1]  # 64 bits, as signed numbers
        a, b, c, d = (q >> 32 & _LOW) ^ b ^ first, q & _LOW, (p >> 32 & _LOW) ^ d ^ second, p & _LOW
        first, second = first + _INCREMENTS[0] & _LOW, second + _INCREMENTS[1] & _LOW
    word = numbers % 64 // 16
    return torch.where(word < 2, torch.where(word == 0, a, b), torch.where(word == 2, c, d))

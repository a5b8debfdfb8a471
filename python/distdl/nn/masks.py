"""Random numbers by global index: the same for every partition, since each element has a number of its own.

The numbers of a call follow from its key. In the ``compute`` of a layer that overrides
:meth:`distdl.nn.Layer.is_random` it is ``self.random_key``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import torch

from distdl import _core
from distdl.parameters.layout import Interval


def draw_key() -> int:
    """A key from torch's default generator, which activation checkpointing rewinds. One number, at least 0."""
    return int(torch.empty((), dtype=torch.int64, device="cpu").random_())


def key_of_part(key: int, number: int) -> int:
    """The key of one of several tensors that are drawn in a call, by a step that is odd and large."""
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
    """A block of the mask of dropout: 0 with probability p, and otherwise 1/(1-p), so that its mean is 1.

    Args:
        key: of the call, the same on all ranks: ``self.random_key`` in a layer.
        shape: of the whole mask.
        intervals: for each dimension the (start, stop) of the block.
        p: the probability of 0; at least 0 and less than 1.
        dtype, device: of the block; with torch.bool, False with probability p and otherwise True.

    What an element is depends on the key, p and its row-major number in the whole mask alone. Not collective.
    """
    return random_choice(key, shape, intervals, p, (0.0, _kept_value(p, dtype)), dtype=dtype, device=device)


@functools.cache
def _kept_value(p: float, dtype: torch.dtype) -> float:
    """1/(1-p), rounded as torch's dropout rounds it."""
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
    """A block of a tensor whose elements are ``values[0]`` with probability p, and otherwise ``values[1]``.

    As :func:`random_mask` otherwise.
    """
    block, threshold = _empty(intervals, dtype, device), round(p * 2.0**32)
    if block.device.type == "cpu":
        _core.fill_choice(block, key, shape, intervals, threshold, *values)
        return block
    below, other = (torch.tensor(value, dtype=dtype, device=device) for value in values)
    return filled(block, key, shape, intervals, lambda words: torch.where(words < threshold, below, other))


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
    """A block of a tensor whose elements are uniform in [lower, upper), in 2**32 steps.

    As :func:`random_mask` otherwise.
    """
    block, step = _empty(intervals, dtype, device), (upper - lower) * 2.0**-32
    if block.device.type == "cpu":
        _core.fill_uniform(block, key, shape, intervals, lower, step)
        return block
    return filled(block, key, shape, intervals, lambda words: lower + words.double() * step)


def _empty(intervals: Sequence[Interval], dtype: torch.dtype, device: torch.device | str | None) -> torch.Tensor:
    return torch.empty([stop - start for start, stop in intervals], dtype=dtype, device=device)


# On other devices, the numbers of src/geometry/philox.cpp by tensor operations.

_MULTIPLIERS = 0xD2511F53, 0xCD9E8D57
_INCREMENTS = 0x9E3779B9, 0xBB67AE85
_LOW = 0xFFFFFFFF
_AT_ONCE = 1 << 22  # elements, which bounds the memory


def filled(
    block: torch.Tensor,
    key: int,
    shape: Sequence[int],
    intervals: Sequence[Interval],
    value: Callable[[torch.Tensor], torch.Tensor],
) -> torch.Tensor:
    """The block, filled with values of the elements' words."""
    numbers = torch.zeros((), dtype=torch.int64, device=block.device)
    for n, (start, stop) in zip(shape, intervals, strict=True):
        numbers = numbers.unsqueeze(-1) * n + torch.arange(start, stop, device=block.device)
    flat, numbers = block.view(-1), numbers.reshape(-1)
    for some in range(0, flat.numel(), _AT_ONCE):
        flat[some : some + _AT_ONCE] = value(philox_words(key, numbers[some : some + _AT_ONCE]))
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
        p, q = a * _MULTIPLIERS[0], c * _MULTIPLIERS[1]  # of 64 bits, though as signed numbers
        a, b, c, d = (q >> 32 & _LOW) ^ b ^ first, q & _LOW, (p >> 32 & _LOW) ^ d ^ second, p & _LOW
        first, second = first + _INCREMENTS[0] & _LOW, second + _INCREMENTS[1] & _LOW
    word = numbers % 64 // 16
    return torch.where(word < 2, torch.where(word == 0, a, b), torch.where(word == 2, c, d))

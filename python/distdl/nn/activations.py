"""Activations with parameters or random numbers, or across a dimension."""

from __future__ import annotations

from functools import partial
from typing import ClassVar

import torch
import torch.nn.functional as F

from distdl import operators
from distdl.nn.base.layer import Layer
from distdl.nn.base.option_types import Device, Dtype, Flag, Float, Integer, Natural, PlainNumber, with_options
from distdl.nn.base.random_numbers import random_uniform
from distdl.nn.dropout import RandomLayer
from distdl.operators.dispatch import Inactive, Operator
from distdl.partitions.boxes import block_intervals, cut

__all__ = ["DistributedGLU", "DistributedPReLU", "DistributedRReLU"]


@with_options
class DistributedPReLU(Layer):
    r"""Applies :math:`\max(0, x) + a \min(0, x)`, where a is learned: ``torch.nn.PReLU`` in blocks.

    Args:
        P_x: the partition of input and result, of any shape.
        num_parameters, init, device, dtype: as in ``torch.nn.PReLU``.

    Shape:
        Any dimensions of P_x, in any blocks; channels, dimension 1, in balanced blocks if there are several parameters.
        The result is in the same blocks.

    Attributes:
        weight: a number for all channels, or this worker's balanced block of numbers by channel.

    Raises:
        RuntimeError: on all ranks, if the number of parameters is neither 1 nor the number of channels, or the dtypes
            of input and weight differ.
        ValueError: on all ranks, if the input is not in blocks as described.
    """

    num_parameters: Natural = 1
    init: Float = 0.25
    device: Device = None
    dtype: Dtype = None

    def check_options(self) -> None:
        by_channel = self.num_parameters != 1 and self.grid.dim > 1
        initialize = partial(torch.nn.init.constant_, val=self.init)
        shape, axes = (self.num_parameters,), (1 if by_channel else None,)
        self.declare_parameter("weight", self.grid, shape, axes, initialize=initialize)

    def set_up(self) -> None:
        extents = [sum(sizes) for sizes in self.blocks(self.grid)]
        channels = extents[1] if len(extents) > 1 else 1
        if self.num_parameters not in (1, channels):
            raise RuntimeError(
                f"DistributedPReLU: the input of shape {extents} has {channels} channels; num_parameters="
                f"{self.num_parameters} must be 1 or as many"
            )
        if self.num_parameters != 1 and self.grid.dim > 1:
            self.check_balanced(1, channels, "num_parameters")
        _, dtype = self.structure(self.grid)[0]
        if dtype != self.weight.dtype and self.autocast is None:
            raise RuntimeError(f"DistributedPReLU: the input is {dtype} but the weight {self.weight.dtype}")

    def compute(self, input: torch.Tensor) -> torch.Tensor:
        return F.prelu(input, *self.parameters_in_use()) if self.grid.active else self.without_part(input)


@with_options
class DistributedGLU(Layer):
    r"""Applies :math:`a \sigma(b)` to the halves a and b of a dimension: ``torch.nn.GLU`` in blocks.

    If the dimension is split, each worker receives the elements of both halves for its block of the result.

    Args:
        P_x: the partition of input and result, of any shape.
        dim: the dimension, as in ``torch.nn.GLU``.

    Shape:
        Any dimensions of P_x, in any blocks. The result is half as long in ``dim``, in balanced blocks, and in the
        input's blocks in other dimensions.

    Raises:
        ValueError: on all ranks, if the input is not in blocks of P_x, or has no dimension ``dim``.
        RuntimeError: on all ranks, if an odd number of elements cannot be halved, or torch has no such dtype.
    """

    dim: Integer = -1
    tensors: ClassVar[tuple[str, ...]] = ("input",)

    def check_options(self) -> None:
        n = self.grid.dim
        if self.grid.known and not -n <= self.dim < n:
            raise ValueError(f"DistributedGLU: dim={self.dim}; P_x has {n} dimensions")
        self._halves: list[Operator | Inactive] = []

    def set_up(self) -> None:
        sizes, (_, dtype) = self.blocks(self.grid), self.structure(self.grid)[0]
        extents, d = [sum(along) for along in sizes], self.dim % self.grid.dim
        if extents[d] % 2:
            raise RuntimeError(
                f"DistributedGLU: the input of shape {extents} has an odd number of elements in dimension {d}; it "
                "must be even, so that it has halves"
            )
        if not dtype.is_floating_point:
            raise RuntimeError(f"DistributedGLU: the input is {dtype}; torch has no glu for it")
        half, wanted = extents[d] // 2, [block_intervals(along) for along in sizes]
        self._halves = []
        if len(sizes[d]) > 1:
            for start in (0, half):
                of_half = [(start + first, start + last) for first, last in cut(half, len(sizes[d]))]
                boxes = [*wanted[:d], of_half, *wanted[d + 1 :]]
                self._halves.append(operators.interval_exchange("DistributedGLU", self.grid, self.grid, boxes))

    def compute(self, input: torch.Tensor) -> torch.Tensor:
        if not self.grid.active:
            return self.without_part(input)
        x = torch.cat([half(input) for half in self._halves], self.dim) if self._halves else input
        return F.glu(x, self.dim)


@with_options
class DistributedRReLU(RandomLayer):
    """Multiplies nonpositive elements by random slopes: ``torch.nn.RReLU``, block by block.

    Args:
        P_x: the partition of the input, with as many dimensions; any may be split.
        lower, upper, inplace: as in ``torch.nn.RReLU``.

    In training each element of the whole input has its own slope, uniform between ``lower`` and ``upper``, by seed,
    call and index: see :class:`distdl.nn.DistributedDropout`. torch.nn draws other slopes, which depend on the signs of
    all elements. In evaluation the slope is (lower + upper) / 2.

    Shape:
        Any shape, in blocks of any sizes over P_x; the result in the same blocks.

    Raises:
        TypeError, ValueError: on all ranks, if torch.nn refuses an option, or the input is not in blocks over P_x of
            one floating point dtype.

    Collective: constructing over P_x's parent communicator, calling over P_x. No data is sent.
    """

    lower: PlainNumber = 1.0 / 8
    upper: PlainNumber = 1.0 / 3
    inplace: Flag = False

    def check_options(self) -> None:
        if not self.lower <= self.upper:
            raise ValueError(f"DistributedRReLU: lower={self.lower!r} must not exceed upper={self.upper!r}")

    def is_random(self) -> bool:
        return self.training

    def compute(self, input: torch.Tensor) -> torch.Tensor:
        if not self.grid.active:
            return self.without_part(input)
        if not self.training:
            return F.rrelu(input, self.lower, self.upper, False, self.inplace)
        slopes = random_uniform(
            self.random_key,
            self.whole,
            self.intervals,
            self.lower,
            self.upper,
            dtype=input.dtype,
            device=input.device,
        )
        return self.times(input, torch.where(input.detach() <= 0, slopes, 1.0))

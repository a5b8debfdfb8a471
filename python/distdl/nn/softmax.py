"""Softmax and related layers, over blocks of any dimension."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import torch
import torch.nn.functional as F

from distdl.nn.base.layer import Layer
from distdl.nn.base.option_types import Integer, with_options
from distdl.nn.base.precision import FLOATING, wide
from distdl.nn.kernels.logsumexp import along_axis

__all__ = ["DistributedLogSoftmax", "DistributedSoftmax", "DistributedSoftmax2d", "DistributedSoftmin"]

_SOFTMAX_SECTIONS = """

    Args:
        P_x: the partition of the input; any dimension may be split, also the normalized dimension.{options}

    Shape:
        Input and output have the dimensions of P_x, in any blocks.

    Raises:
        ValueError: on all ranks, if the input is not of floating point, its blocks do not match, or ``dim`` is not a
            dimension of P_x.

    If the dimension is split, the workers gather the largest element and one sum of each block. Collective:
    constructing over P_x's parent communicator, calling over P_x.
    """
_DIM = "\n        dim: the normalized dimension. None means 0 if P_x has 0, 1 or 3 dimensions, and 1 otherwise."


class _Normalization(Layer):
    """The common part of the layers."""

    dim: Integer | None
    function: ClassVar[Callable[..., torch.Tensor]]
    is_logarithm: ClassVar[bool] = False
    options_text: ClassVar[str] = _DIM

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        sections = _SOFTMAX_SECTIONS.format(options=cls.options_text)
        cls.__doc__ = (cls.__doc__ or "").rstrip() + sections

    def check_options(self) -> None:
        name, dims = type(self).__name__, self.grid.dim
        dim = self.chosen_dim()
        if self.grid.known and not -max(dims, 1) <= dim < max(dims, 1):
            raise ValueError(f"{name}: dim={dim}; P_x of shape {list(self.grid.shape)} has {dims} dimensions")
        self._axis = dim % max(dims, 1)

    def chosen_dim(self) -> int:
        return self.dim if self.dim is not None else (0 if self.grid.dim in (0, 1, 3) else 1)

    def prepare(self) -> None:
        splits = self.grid.dim > 0 and self.grid.known and self.grid.shape[self._axis] > 1
        self._over = along_axis(self.grid, self._axis) if splits else None

    def set_up(self) -> None:
        self.blocks(self.grid)  # raises if they do not match
        for worker, (_, dtype) in enumerate(self.structure(self.grid)):
            if dtype not in FLOATING:
                raise ValueError(f"{type(self).__name__}: worker {worker} of P_x has an input of {dtype}")

    def compute(self, input: torch.Tensor) -> torch.Tensor:
        if not self.grid.active:
            return self.without_part(input)
        function = type(self).function
        if self._over is None:
            return function(input, self._axis)
        y = self._over.softmax(self.exponents(wide(input)), self.is_logarithm, self.agreement)
        return y.to(input.dtype if self.autocast is None else function(input.detach().new_empty((0,)), 0).dtype)

    def exponents(self, x: torch.Tensor) -> torch.Tensor:
        return x


@with_options
class DistributedSoftmax(_Normalization):
    """Exponentials, divided by their sum along a dimension of the whole tensor: ``torch.nn.Softmax`` in blocks."""

    dim: Integer | None = None
    function = staticmethod(F.softmax)


@with_options
class DistributedLogSoftmax(_Normalization):
    """The logarithm of the softmax along a dimension of the whole tensor: ``torch.nn.LogSoftmax`` in blocks."""

    dim: Integer | None = None
    function = staticmethod(F.log_softmax)
    is_logarithm = True


@with_options
class DistributedSoftmin(_Normalization):
    """The softmax of the negative input along a dimension of the whole tensor: ``torch.nn.Softmin`` in blocks."""

    dim: Integer | None = None
    function = staticmethod(F.softmin)

    def exponents(self, x: torch.Tensor) -> torch.Tensor:
        return -x


@with_options
class DistributedSoftmax2d(_Normalization):
    """The softmax over the channels of images ``(N, C, H, W)`` or ``(C, H, W)``: ``torch.nn.Softmax2d`` in blocks."""

    dim = -3
    function = staticmethod(F.softmax)
    options_text = ""

    def check_options(self) -> None:
        self.check_shape(self.grid.dim in (3, 4), "it takes [C, H, W] or [N, C, H, W]")
        super().check_options()

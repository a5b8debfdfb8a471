"""Layer normalization and root mean square normalization over blocks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated

import torch
import torch.nn.functional as F

from distdl import _core
from distdl.nn.base.option_types import (
    Converted,
    Device,
    Dtype,
    Float,
    HasBias,
    common_options,
    named,
    option,
    with_options,
)  # fmt: skip
from distdl.nn.base.options import integer
from distdl.nn.base.precision import HALF, wide
from distdl.nn.norm.base import NormLayer
from distdl.nn.norm.moments import Gathering, SharedMoments

__all__ = ["DistributedLayerNorm", "DistributedRMSNorm"]


def _normalized_shape(layer: str, value: int | Sequence[int], name: str) -> tuple[int, ...]:
    each = value if isinstance(value, Sequence) and not isinstance(value, str) else (value,)
    shape = tuple(integer(layer, n, name, value) for n in each)
    if not shape or min(shape) < 0:
        raise RuntimeError(f"{layer}: {name}={value!r}; it must be at least one size, none negative")
    return shape


@common_options
class _FeatureNorm(NormLayer):
    """The common part of both norms: each index of the leading dimensions is a group."""

    normalized_shape: Annotated[Converted[tuple[int, ...], int | Sequence[int]], named(_normalized_shape)]

    def check_options(self) -> None:
        dims = len(self.normalized_shape)
        rule = f"it must be [*leading, *features], with {dims} dimensions for the features"
        self.check_shape(self.grid.dim >= dims, rule)
        leading = self.grid.dim - dims if self.grid.known else 0
        self._features = list(range(leading, leading + dims))
        self.declare_affine(
            self.normalized_shape, self._features, bool(self.elementwise_affine), bool(self.passed.get("bias", False))
        )

    def set_up(self) -> None:
        sizes = self.blocks(self.grid)
        for d, n in zip(self._features, self.normalized_shape, strict=True):
            if self.layouts:
                self.check_balanced(d, n, "normalized_shape")
            elif sum(sizes[d]) != n:
                raise ValueError(
                    f"{type(self).__name__}: the input has {sum(sizes[d])} elements in dimension {d}; normalized_shape "
                    f"is {self.normalized_shape}"
                )
        self._count = math.prod(self.normalized_shape)
        self.check_dtypes(self._on_one_feature)
        split = [d for d in self._features if self.grid.shape[d] > 1]
        spread = split and self._count > 0 and self.grid.active
        self._gathering = Gathering(self.grid, split, sizes, self._features) if spread else None

    def _on_one_feature(self, element: torch.Tensor) -> torch.Tensor:
        names = [name for name in ("weight", "bias") if hasattr(self, name)]
        x = element.view(1)
        return self.with_samples(lambda x, weight, bias=None: self.function(x, [1], weight, bias), x, names)

    def function(
        self, x: torch.Tensor, shape: Sequence[int], weight: torch.Tensor | None, bias: torch.Tensor | None
    ) -> torch.Tensor:
        """torch.nn's function, for groups that are whole on this worker."""
        raise NotImplementedError

    def on_part(self, x: torch.Tensor, gathering: Gathering) -> torch.Tensor:
        """A normalized block with parts of groups, in single or double precision."""
        raise NotImplementedError

    def compute(self, input: torch.Tensor) -> torch.Tensor:
        if not self.grid.active:
            return self.without_part(input)
        if self._count == 0:  # on all workers, in blocks of any shape
            return self.on_empty(input)
        if self._gathering is None:
            return self.function(input, self.normalized_shape, *self.named(self.parameters_in_use()))
        arrive = self.start_parameters()
        y = self.on_part(input, self._gathering)
        weight, bias = self.named(arrive())
        if weight is not None:
            y = y * weight if bias is None else torch.addcmul(bias.to(y.dtype), y, weight.to(y.dtype))
        return self.as_result(y, input)


@with_options
class DistributedLayerNorm(_FeatureNorm):
    """Normalizes the last dimensions by their moments: ``torch.nn.LayerNorm`` over blocks.

    Args:
        P_x: the partition of input and output, ``[*leading, *features]``; any dimension may be split.
        normalized_shape, eps, elementwise_affine, bias, device, dtype: as in ``torch.nn.LayerNorm``.

    Shape:
        ``(*leading, *normalized_shape)`` in any blocks; with parameters, features in balanced blocks. The result is in
        the same blocks.

    Attributes:
        weight, bias: this worker's block of the parameters of normalized_shape; None as in torch.nn. Workers with the
            same features share it: see :func:`distdl.parameter_layout`.

    Raises:
        ValueError: on all ranks, if P_x has fewer dimensions than normalized_shape, the input is not in such blocks, or
            its dtypes differ.
        RuntimeError: on all ranks, for a normalized_shape or dtypes of input and parameters that torch.nn refuses.

    Collective: constructing over P_x's parent communicator, calling over P_x. If features are not split, only
    parameters travel.

    Source: J. L. Ba, J. R. Kiros, G. E. Hinton, "Layer Normalization" (2016); options as in
    https://docs.pytorch.org/docs/stable/generated/torch.nn.LayerNorm.html.
    """

    eps: Float = 1e-5
    elementwise_affine: bool = True
    bias: HasBias = option(default=True)
    device: Device = None
    dtype: Dtype = None

    def function(
        self, x: torch.Tensor, shape: Sequence[int], weight: torch.Tensor | None, bias: torch.Tensor | None
    ) -> torch.Tensor:
        return F.layer_norm(x, list(shape), weight, bias, self.eps)

    def set_up(self) -> None:
        super().set_up()
        if self._gathering is not None:
            leading = self._features[0]
            own = math.prod(self.blocks(self.grid)[d][self.grid.place[d]] for d in range(leading))
            self._shared = SharedMoments.by_channel(self._gathering, (0, leading), own)

    def on_part(self, x: torch.Tensor, gathering: Gathering) -> torch.Tensor:
        groups = self._shared.groups
        x, message = _core.block_moments(x, groups)
        dtype = torch.float if x.dtype in HALF else x.dtype
        y, *_ = _core.normalize_block(x, gathering(message), groups, None, None, float(self.eps), math.nan, dtype)
        return y


@with_options
class DistributedRMSNorm(_FeatureNorm):
    """Divides the last dimensions by their root mean square: ``torch.nn.RMSNorm`` over blocks.

    Args:
        P_x: the partition of input and output, ``[*leading, *features]``; any dimension may be split.
        normalized_shape, eps, elementwise_affine, device, dtype: as in ``torch.nn.RMSNorm``.

    Shape:
        ``(*leading, *normalized_shape)`` in any blocks; with parameters, features in balanced blocks. The result is in
        the same blocks.

    Attributes:
        weight: this worker's block of the parameter of normalized_shape; None as in torch.nn. Workers with the same
            features share it: see :func:`distdl.parameter_layout`.

    Raises:
        ValueError: on all ranks, if P_x has fewer dimensions than normalized_shape, the input is not in such blocks, or
            its dtypes differ.
        RuntimeError: on all ranks, for a normalized_shape or dtypes of input and parameters that torch.nn refuses.

    Collective: constructing over P_x's parent communicator, calling over P_x. If features are not split, only
    parameters travel.

    Source: B. Zhang, R. Sennrich, "Root Mean Square Layer Normalization" (2019); options as in
    https://docs.pytorch.org/docs/stable/generated/torch.nn.RMSNorm.html.
    """

    eps: Float | None = None
    elementwise_affine: bool = True
    device: Device = None
    dtype: Dtype = None

    def function(
        self, x: torch.Tensor, shape: Sequence[int], weight: torch.Tensor | None, bias: torch.Tensor | None
    ) -> torch.Tensor:
        return F.rms_norm(x, list(shape), weight, self.eps)

    def on_part(self, x: torch.Tensor, gathering: Gathering) -> torch.Tensor:
        x = wide(x)
        sums = x.square().sum(self._features, keepdim=True)
        squares = gathering(sums.reshape(-1)).view(len(gathering.counts), *sums.shape).sum(0)
        eps = torch.finfo(x.dtype).eps if self.eps is None else self.eps
        return x * (squares / self._count + eps).rsqrt()

"""Normalization as programs written for DistDL know it."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from distdl.classic.keys import OldLayer, only_torchs, parted
from distdl.classic.primitives import Broadcast
from distdl.nn import norm
from distdl.nn.base.layer import Layer
from distdl.parameters.layout import parameter_layout
from distdl.partitions.construction import PartitionLike


class _OldNorm(OldLayer):
    """A normalization whose parameters live on the first of the workers that use them, unless they are sharded.

    Attributes:
        broadcast: the operator from there to P_x; absent where parameters live on all workers, or there are none.
    """

    def prepare(self) -> None:
        """Make the broadcast."""
        super().prepare()
        layout = self.layouts.get(self.old_name("weight"))
        if layout is not None and layout.kind == "owner":
            self.__dict__["broadcast"] = Broadcast(layout.owner_grid, layout.grid)


class DistributedBatchNorm(_OldNorm, norm.DistributedBatchNorm):
    """Our layer with parameters ``gamma`` and ``beta``. ``running_var`` is that of torch.nn, from unbiased variances.

    Args:
        P_x, num_features, eps, momentum, affine, track_running_stats: as in our layer.
        more: device, dtype, collect_state, scale_backward.
    """

    old_names = {"weight": "gamma", "bias": "beta"}

    def __init__(
        self,
        P_x: PartitionLike,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        **more: object,
    ) -> None:
        self.construct(locals())

    def named(self, parameters: Sequence[torch.Tensor]) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        weight, bias = (*parameters, None, None)[:2]
        return weight, bias


class DistributedLayerNorm(_OldNorm, norm.DistributedLayerNorm):
    """Our layer, with ``elementwise_affine`` before ``eps``."""

    def __init__(
        self,
        P_x: PartitionLike,
        normalized_shape: int | Sequence[int],
        elementwise_affine: bool = True,
        eps: float = 1e-5,
        **more: object,
    ) -> None:
        self.construct(locals())


class DistributedLayerNormZero(DistributedLayerNorm):
    """As :class:`DistributedLayerNorm`; each worker keeps a part of the parameters, which are gathered for use."""

    def __init__(
        self,
        P_x: PartitionLike,
        normalized_shape: int | Sequence[int],
        elementwise_affine: bool = True,
        eps: float = 1e-5,
        **more: object,
    ) -> None:
        with parameter_layout("sharded"):
            super().__init__(P_x, normalized_shape, elementwise_affine, eps, **more)

    @classmethod
    def sequential_classes(cls) -> tuple[type[torch.nn.Module], ...]:
        return (torch.nn.LayerNorm,)


class DistributedRMSNormZero(_OldNorm, norm.DistributedRMSNorm):
    """Our layer with an optional bias; each worker keeps a part of the parameters, which are gathered for use.

    Args:
        P_x, normalized_shape, elementwise_affine, eps: as in our layer.
        bias: whether a bias is added.
        more: device, dtype, collect_state, scale_backward, auto_clear_buffer.
    """

    def __init__(
        self,
        P_x: PartitionLike,
        normalized_shape: int | Sequence[int],
        elementwise_affine: bool = True,
        bias: bool = False,
        eps: float | None = 1e-5,
        **more: object,
    ) -> None:
        further, others = parted(more)
        options = only_torchs(self, P_x, others)
        own = {"P_x": P_x, "normalized_shape": normalized_shape, "elementwise_affine": elementwise_affine}
        with parameter_layout("sharded"):
            Layer.__init__(self, {**own, "bias": bias, "eps": eps, **options})
        self.take_further(**further)  # type: ignore[arg-type]

    @classmethod
    def sequential_classes(cls) -> tuple[type[torch.nn.Module], ...]:
        return (torch.nn.RMSNorm,)

    def function(
        self, x: torch.Tensor, shape: Sequence[int], weight: torch.Tensor | None, bias: torch.Tensor | None
    ) -> torch.Tensor:
        y = super().function(x, shape, weight, None)
        return y if bias is None else y + bias

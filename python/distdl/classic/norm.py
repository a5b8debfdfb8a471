"""Normalization as programs written for DistDL know it."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from distdl.classic.arguments import old_arguments
from distdl.classic.keys import OldLayer, Sharded
from distdl.classic.primitives import Broadcast
from distdl.nn import norm
from distdl.nn.base.layer import Layer


class _OldNorm(OldLayer):
    """A normalization whose parameters live on the first of the workers that use them, unless they are sharded.

    Attributes:
        broadcast: the operator from there to P_x; absent where parameters live on all workers, or there are none.
    """

    def prepare(self) -> None:
        super().prepare()
        layout = self.layouts.get(self.old_name("weight"))
        if layout is not None and layout.kind == "owner":
            self.__dict__["broadcast"] = Broadcast(layout.owner_grid, layout.grid)


@old_arguments("P_x num_features eps momentum affine track_running_stats")
class DistributedBatchNorm(_OldNorm, norm.DistributedBatchNorm):
    """Our layer with parameters ``gamma`` and ``beta``. ``running_var`` is unbiased, as in torch.nn."""

    old_names = {"weight": "gamma", "bias": "beta"}

    def named(self, parameters: Sequence[torch.Tensor]) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        weight, bias = (*parameters, None, None)[:2]
        return weight, bias


@old_arguments("P_x normalized_shape elementwise_affine eps")
class DistributedLayerNorm(_OldNorm, norm.DistributedLayerNorm):
    """Our layer, with ``elementwise_affine`` before ``eps``."""


class DistributedLayerNormZero(Sharded, DistributedLayerNorm):
    """:class:`DistributedLayerNorm` in which each worker keeps a part of the parameters, which are gathered for use."""


@old_arguments("P_x normalized_shape elementwise_affine", bias=False, eps=1e-5)
class DistributedRMSNormZero(Sharded, _OldNorm, norm.DistributedRMSNorm):
    """Our layer with an optional bias; each worker keeps a part of the parameters, which are gathered for use."""

    def construct_ours(self, **options: object) -> None:
        Layer.__init__(self, options)

    def function(
        self, x: torch.Tensor, shape: Sequence[int], weight: torch.Tensor | None, bias: torch.Tensor | None
    ) -> torch.Tensor:
        y = super().function(x, shape, weight, None)
        return y if bias is None else y + bias

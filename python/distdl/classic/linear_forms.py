"""The all-gather and the reduce-scatter forms of the linear layer, with the options of the descendant."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from distdl.classic.arguments import old_arguments
from distdl.classic.keys import OldLayer, Passed, Sharded
from distdl.classic.ordered import OrderedLayer, order_of_parts, parts_of_heads
from distdl.nn import linear
from distdl.nn.base.layer import Layer
from distdl.nn.primitives import Repartition
from distdl.partitions.construction import PartitionLike, constructing, grid_of


def other_than(layer: Layer, name: str, P: PartitionLike | None) -> PartitionLike | None:
    """A partition that a layer was given beside its own; None if it is the same one, or was not given.

    Collective over the ranks that construct the layer, which raise ValueError together if they disagree.
    """
    compared: dict[str, object] = {name: None}
    with constructing(type(layer).__name__, {"P_x": layer.grid}, compared):
        if P is not None:
            own, grid = layer.grid, grid_of(P)
            is_own = own.known and (own.ranks, own.shape) == (grid.ranks, grid.shape)
            compared[name] = "the partition of the layer" if is_own else "another partition"
            P = None if is_own else P
    return P


def between(P_x: PartitionLike | None, P_y: PartitionLike | None) -> Repartition | None:
    """The operator between two partitions, if both are given."""
    return None if P_x is None or P_y is None else Repartition(P_x, P_y)


@old_arguments(
    "P_y in_features out_features bias", P_x=None, P_store_weight=None, P_apply_weight=None, num_heads=None,
    num_heads_kv=None, num_vars=3, geglu=False,
)  # fmt: skip
class DistributedLinearAllGather(OrderedLayer, linear.DistributedLinearAllGather):
    """Our layer, whose input may come from another partition, and whose outputs may be heads.

    Args:
        P_y: the partition of the layer.
        in_features, out_features, bias: as in ``torch.nn.Linear``.
        P_x: the partition of the input, P_y by default.
        P_store_weight, P_apply_weight: taken, and left alone: parameters live on P_y.
        num_heads, num_heads_kv, num_vars: with ``num_heads`` the outputs are ``num_vars`` projections, the first one of
            ``num_heads`` heads, all others of ``num_heads_kv``. Each worker has its heads of every projection.
        geglu: the outputs are two halves, and each worker has its part of both.
    """

    _OWN = ("num_heads", "num_heads_kv", "num_vars", "geglu")

    def construct(self, P_y: PartitionLike, P_x: PartitionLike | None, **options: object) -> None:
        self._parts: dict[str, Passed] = {name: options.pop(name) for name in self._OWN}
        super().construct(P_x=P_y, **options)
        self.__dict__["P_y"] = self.P_x
        self._from_input = between(other_than(self, "P_x", P_x), P_y)

    def options_to_compare(self) -> dict[str, object]:
        return {**super().options_to_compare(), **self._parts}

    def order(self) -> torch.Tensor | None:
        heads, heads_kv, variables, geglu = self._parts.values()
        name, workers = type(self).__name__, self.grid.shape[-1] if self.grid.dim else 1
        if heads is None and not geglu:
            return None
        if heads is not None:
            return order_of_parts(name, parts_of_heads(name, self.out_features, heads, heads_kv, variables), workers)
        return order_of_parts(name, [(self.out_features // 2, 1)] * 2, workers)

    def forward(self, *args: object, **kwargs: object) -> object:
        if self._from_input is not None and args:
            args = (self._from_input(args[0]), *args[1:])
        return super().forward(*args, **kwargs)


@old_arguments(
    "P_y in_features out_features bias", P_x=None, P_store_bias=None, P_weight=None, num_heads=None, num_heads_kv=None,
    num_vars=3, geglu=False,
)  # fmt: skip
class DistributedLinearAllGatherZero(Sharded, DistributedLinearAllGather):
    """:class:`DistributedLinearAllGather` of which each worker keeps a part of the weight, gathered for use."""


@old_arguments("P_x in_features out_features bias", P_y=None, P_weight=None, P_store_bias=None, P_apply_bias=None)
class DistributedLinearReduceScatter(OldLayer, linear.DistributedLinearReduceScatter):
    """Our layer, whose result may go to another partition.

    Args:
        P_x: the partition of the layer.
        in_features, out_features, bias: as in ``torch.nn.Linear``.
        P_y: the partition of the result, P_x by default.
        P_weight, P_store_bias, P_apply_bias: taken, and left alone: parameters live on P_x.
    """

    def construct(self, P_x: PartitionLike, P_y: PartitionLike | None, **options: object) -> None:
        super().construct(P_x=P_x, **options)
        self._to_result = between(P_x, other_than(self, "P_y", P_y))

    def forward(self, *args: object, **kwargs: object) -> object:
        result = super().forward(*args, **kwargs)
        return result if self._to_result is None else self._to_result(result)


@old_arguments("P_x in_features out_features bias", P_y=None, P_bias=None)
class DistributedLinearReduceScatterZero(Sharded, DistributedLinearReduceScatter):
    """:class:`DistributedLinearReduceScatter` of which each worker keeps a part of the weight, gathered for use."""


class LinearAllGatherZeROFunc(torch.autograd.Function):
    """A linear layer with a weight that was gathered: ``apply(input, weight, bias=None)``."""

    @staticmethod
    def forward(input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        return F.linear(input, weight, bias)

    @staticmethod
    def setup_context(
        ctx: torch.autograd.function.FunctionCtx,
        inputs: tuple[torch.Tensor, torch.Tensor, torch.Tensor | None],
        output: torch.Tensor,
    ) -> None:
        ctx.save_for_backward(*inputs[:2])
        ctx.has_bias = len(inputs) > 2 and inputs[2] is not None

    @staticmethod
    def backward(
        ctx: torch.autograd.function.FunctionCtx, gradient: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        input, weight = ctx.saved_tensors
        rows = gradient.reshape(-1, gradient.shape[-1])
        of_weight = rows.mT @ input.reshape(-1, input.shape[-1])
        return gradient @ weight, of_weight, rows.sum(0) if ctx.has_bias else None


class LinearReduceScatterZeROFunc(LinearAllGatherZeROFunc):
    """The same."""

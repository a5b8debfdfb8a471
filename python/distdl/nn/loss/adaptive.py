"""Adaptive softmax: classes in clusters, rare classes with fewer features."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Annotated, NamedTuple

import torch
import torch.nn.functional as F

from distdl.modules.module import Module
from distdl.nn.base.option_types import Device, Dtype, Integer, Number, named, positive
from distdl.nn.base.options import integers
from distdl.nn.base.voted_layer import Described
from distdl.nn.loss.base import Loss, loss
from distdl.parameters.initial import like_linear
from distdl.parameters.transport import ParameterTransport
from distdl.partitions.grid import Grid

__all__ = ["DistributedAdaptiveLogSoftmaxWithLoss"]


class AdaptiveResult(NamedTuple):
    """The result of the adaptive softmax, with torch.nn's fields."""

    output: torch.Tensor
    loss: torch.Tensor


class _Weights(Module):
    """The parameters of a linear layer, under torch.nn's names."""

    def __init__(self, P: Grid, in_features: int, out_features: int, bias: bool, **kind: object) -> None:
        super().__init__()
        shape = (out_features, in_features)
        of_weight, of_bias = like_linear(shape)
        self.declare_parameter("weight", P, shape, (None, None), initialize=of_weight, **kind)  # type: ignore[arg-type]
        if bias:
            self.declare_parameter("bias", P, shape[:1], (None,), initialize=of_bias, **kind)  # type: ignore[arg-type]
        else:
            self.register_parameter("bias", None)
        self.reset_parameters()


@loss
class DistributedAdaptiveLogSoftmaxWithLoss(Loss):
    """Log-probabilities of targets among clustered classes: ``torch.nn.AdaptiveLogSoftmaxWithLoss`` in blocks.

    The call returns ``(output, loss)``: the block of the targets' log-probabilities ``(N)``, and the mean of their
    negatives over the whole batch, a scalar on every rank.
    """

    in_features: Integer
    n_classes: Integer
    cutoffs: Annotated[Sequence[int], named(integers)]
    div_value: Annotated[Number, positive] = 4.0
    head_bias: bool = False
    device: Device = None
    dtype: Dtype = None
    shapes = (
        "Features ``(N, in_features)`` in any blocks of the batch, over P_x ``[p, 1]``, or ``(in_features)`` over "
        "``[1]``; targets ``(N)`` or ``()``, class indices, on each worker for its own block."
    )
    integer_arguments = ("target",)
    reduction = "mean"

    @classmethod
    def options_of(cls, module: torch.nn.Module) -> dict[str, object]:
        """The options of this layer. torch.nn appends the number of classes to the cutoffs."""
        return {**super().options_of(module), "cutoffs": module.cutoffs[:-1]}

    def check_options(self) -> None:
        name = type(self).__name__
        bounds = [0, *self.cutoffs, self.n_classes]
        if not self.cutoffs or any(a >= b for a, b in itertools.pairwise(bounds)):
            raise ValueError(
                f"{name}: cutoffs={self.cutoffs}; these must be increasing numbers from 1 to n_classes - 1="
                f"{self.n_classes - 1}"
            )
        fits = self.grid.dim in (1, 2) and self.grid.shape[-1] == 1
        self.check_shape(fits, "it must be [p, 1] or [1], because features are not split")

    def prepare(self) -> None:
        super().prepare()
        options = {key: self.passed[key] for key in ("device", "dtype")}
        bounds, grid, features = [*self.cutoffs, self.n_classes], self.grid, self.in_features
        clusters = len(self.cutoffs)
        self.head = _Weights(grid, features, self.cutoffs[0] + clusters, bool(self.passed["head_bias"]), **options)
        self.tail = torch.nn.ModuleList()
        for i, (low, high) in enumerate(itertools.pairwise(bounds)):
            hidden = int(features // self.div_value ** (i + 1))
            first = _Weights(grid, features, hidden, False, **options)
            self.tail.append(torch.nn.Sequential(first, _Weights(grid, hidden, high - low, False, **options)))
        holders = [module for module in self.modules() if isinstance(module, _Weights)]
        layouts = [layout for holder in holders for layout in holder.layouts.values()]
        self._transport = ParameterTransport(layouts)

    def _declared_parameters(self) -> list[torch.Tensor]:
        return list(self.parameters())

    def why_not(self, *described: Described) -> str:
        (shape, dtype), (target, kind) = described
        if len(shape) != self.grid.dim or shape[-1] != self.in_features:
            return f"the input must have the dimensions of P_x, and in_features={self.in_features} features"
        if dtype != next(self.parameters()).dtype and self.autocast is None:
            return f"the parameters are of {next(self.parameters()).dtype}"
        return "" if target == shape[:-1] and kind == torch.int64 else "there must be a target of int64 for each row"

    def check_extents(self) -> None:
        self.blocks(self.grid)  # raises if they do not match

    def _probe_dtype(self, dtypes: Sequence[torch.dtype], device: torch.device | None = None) -> torch.dtype:
        return dtypes[0]

    def problem_of(self, *tensors: torch.Tensor) -> str:
        target = tensors[1]
        if not target.numel() or (target.min() >= 0 and target.max() < self.n_classes):
            return ""
        return f"has targets from {target.min()} to {target.max()}; there are {self.n_classes} classes"

    def result_dims(self, dims: int) -> int:
        return dims - 1

    def compute(self, *tensors: torch.Tensor) -> AdaptiveResult:
        input, target = tensors
        if not self.grid.active:
            output = self.without_part(input)
            return AdaptiveResult(output, self._reduced(output, 0.0))
        head, bias, tail = self._split_parameters()
        rows, indices = input.reshape(-1, self.in_features), target.reshape(-1)
        first = self.cutoffs[0]
        places, output = indices.clamp(max=first - 1), rows.new_zeros(len(rows))
        for i, ((low, high), weights) in enumerate(zip(self._clusters(), tail, strict=True)):
            chosen = ((indices >= low) & (indices < high)).nonzero().squeeze(1)
            places = places.index_fill(0, chosen, first + i)
            # Without rows, too: all workers have the same graph.
            log_p = self._cluster(rows.index_select(0, chosen), weights)
            picked = log_p.gather(1, (indices[chosen] - low).unsqueeze(1)).squeeze(1)
            output = output.index_add(0, chosen, picked.to(output.dtype))  # under autocast it may be of half precision
        log_p = F.log_softmax(F.linear(rows, head, bias), 1)
        output = (output + log_p.gather(1, places.unsqueeze(1)).squeeze(1)).reshape(target.shape)
        return AdaptiveResult(output, self._reduced(-output.sum(), float(output.numel())))

    def log_prob(self, input: torch.Tensor) -> torch.Tensor:
        """Log-probabilities ``(N, n_classes)`` of this rank's features ``(N, in_features)``. All ranks call it."""
        head, bias, tail = self._split_parameters()
        if not self.grid.active:
            return input.clone()
        first = self.cutoffs[0]
        log_p = F.log_softmax(F.linear(input, head, bias), 1)
        parts = [self._cluster(input, weights) + log_p[:, first + i, None] for i, weights in enumerate(tail)]
        return torch.cat([log_p[:, :first], *parts], 1)

    def predict(self, input: torch.Tensor) -> torch.Tensor:
        """The most probable classes ``(N)`` of this rank's features ``(N, in_features)``. All ranks call it."""
        log_p = self.log_prob(input)
        return log_p.argmax(1) if self.grid.active else log_p.long()

    def _clusters(self) -> list[tuple[int, int]]:
        return list(itertools.pairwise([*self.cutoffs, self.n_classes]))

    def _split_parameters(self) -> tuple[torch.Tensor, torch.Tensor | None, list[tuple[torch.Tensor, torch.Tensor]]]:
        used = list(self.parameters_in_use())
        head, bias = used.pop(0), used.pop(0) if self.head.bias is not None else None
        return head, bias, list(zip(used[::2], used[1::2], strict=True))

    @staticmethod
    def _cluster(rows: torch.Tensor, weights: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        projection, scores = weights
        return F.log_softmax(F.linear(F.linear(rows, projection), scores), 1)

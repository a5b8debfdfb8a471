"""The cross entropy of the logits of a linear layer: the last two layers of a language model in one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import KW_ONLY
from typing import Annotated, ClassVar

import torch

from distdl.nn.base.option_types import (
    Device,
    Dtype,
    FurtherPartition,
    HasBias,
    Integer,
    Number,
    in_unit_interval,
    named,
    option,
    with_options,
)  # fmt: skip
from distdl.nn.base.options import integers
from distdl.nn.base.value_checks import CheckedLayer
from distdl.nn.linear import DistributedLinear
from distdl.nn.loss.cross_entropy import DistributedCrossEntropyLoss
from distdl.partitions.grid import Grid

__all__ = ["DistributedLinearCrossEntropyLoss"]


@with_options
class DistributedLinearCrossEntropyLoss(CheckedLayer):
    """The cross entropy of linearly transformed features: ``torch.nn.LinearCrossEntropyLoss`` in blocks.

    :class:`DistributedLinear`, as ``linear``, followed by :class:`DistributedCrossEntropyLoss`: if classes are split,
    no rank ever has the logits of all classes.

    Args:
        P_x: the partition of the features: ``[batch, p_in]``, or ``[p_in]`` without a batch.
        in_features, num_classes, out_features, bias, device, dtype: as in ``torch.nn.LinearCrossEntropyLoss``.
        reduction, weight, ignore_index, label_smoothing: likewise. Weights are whole, equal on all ranks.
        P_y: the partition of the logits: ``[batch, p_classes]``, or ``[p_classes]``.
        P_W: the workers that compute the logits, as in :class:`DistributedLinear`.

    Without P_y and P_W neither features nor classes are split. torch.nn's ``options`` (chunks of logits),
    ``size_average`` and ``reduce`` are left out.

    Shape:
        Features ``(N, in_features)`` or ``(in_features)`` in blocks over P_x, balanced in features. Targets of class
        indices ``(N, *out_features)``, or of probabilities ``(N, num_classes, *out_features)``, are in blocks over P_y,
        as in :class:`DistributedCrossEntropyLoss`. The result is a scalar on every rank; with reduction='none' the
        block of the losses, on the workers with the first classes.

    Raises:
        ValueError: on all ranks, if the partitions or blocks do not match, classes are split although ``out_features``
            is not empty, or an option is out of range.
        RuntimeError: on all ranks, if dtypes of features and parameters differ without autocast.

    Constructing and calling are collective over the partitions' parent communicator. Every rank must call
    ``backward()``; the loss counts once.
    """

    in_features: Integer
    num_classes: Integer
    _: KW_ONLY
    out_features: Annotated[Sequence[int], named(integers)] = ()
    bias: HasBias = option(default=False)
    device: Device = None
    dtype: Dtype = None
    reduction: str = "mean"
    weight: torch.Tensor | None = None
    ignore_index: Integer | None = None
    label_smoothing: Annotated[Number, in_unit_interval] = 0.0
    P_y: FurtherPartition = option(default=None)
    P_W: FurtherPartition = option(default=None)
    error = ValueError
    tensors: ClassVar[tuple[str, ...]] = ("input", "target")

    def check_options(self) -> None:
        name = type(self).__name__
        self.out_features = tuple(self.out_features)
        classes = self.grid if self.P_y is None else self.P_y.grid
        dims = self.grid.dim
        if self.grid.known and (dims not in (1, 2) or classes.dim != dims):
            raise ValueError(
                f"{name}: P_x has shape {list(self.grid.shape)} and P_y {list(classes.shape)}; they must be [batch, "
                "p_in] and [batch, p_classes], or [p_in] and [p_classes]"
            )
        if self.out_features and self.grid.known and (dims == 1 or classes.shape[-1] > 1):
            raise ValueError(
                f"{name}: out_features={self.out_features}, P_x has shape {list(self.grid.shape)} and P_y "
                f"{list(classes.shape)}; with out_features there is a batch, and classes are not split"
            )
        self._logits = classes

    def prepare(self) -> None:
        options, grid = self.passed, self._logits
        self.linear = DistributedLinear(
            self.P_x, self.in_features, self.num_classes * math.prod(self.out_features), options["bias"],
            options["device"], options["dtype"], P_y=self.P_y, P_W=self.P_W,
        )  # fmt: skip
        logits = grid.reshaped((*grid.shape, *(1,) * len(self.out_features))) if grid.known else grid
        ignored = -100 if self.ignore_index is None else self.ignore_index
        loss = DistributedCrossEntropyLoss(logits, options["weight"], ignored, self.reduction, self.label_smoothing)
        loss.is_checked_around = True
        self.register_buffer("weight", loss.weight)
        self.__dict__["_loss"] = loss  # no submodule: in the state the weight is this layer's

    @classmethod
    def options_of(cls, module: torch.nn.Module) -> dict[str, object]:
        """The options of this layer, some of which torch.nn keeps in ``linear``."""
        linear = module.linear
        return {**super().options_of(module), "in_features": linear.in_features, "bias": linear.bias is not None}

    @classmethod
    def unknown_options(cls, module: torch.nn.Module) -> list[str]:
        options = super().unknown_options(module)
        return [option for option in options if not option.startswith("options=")]  # chunks change no result

    def calling_grids(self) -> list[Grid]:
        return [self.grid.constructing_ranks(), *super().calling_grids()]

    def holders(self) -> tuple[str, Grid]:
        return "P_x" if self.P_y is None else "P_y", self._logits

    def local_error(self, inputs: Sequence[object]) -> str:
        target = inputs[1] if len(inputs) > 1 else None
        return self._loss.problem_of_classes(target, self.num_classes) if isinstance(target, torch.Tensor) else ""

    def _declared_parameters(self) -> list[torch.Tensor]:
        return self.linear._declared_parameters()

    def set_up(self) -> None:
        self.blocks(self.grid)  # raises if the blocks of the features do not match
        probabilities = [1 for _, dtype in self.structure(self._logits, 1) if dtype.is_floating_point]
        if probabilities and self.ignore_index is not None:
            name, ignored = type(self).__name__, self.ignore_index
            raise ValueError(f"{name}: ignore_index={ignored} is not supported for a target of probabilities")

    def compute(self, input: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        logits = self.linear(input)
        if self._logits.active and self.out_features:
            logits = logits.unflatten(-1, (self.num_classes, *self.out_features))
        self._loss.weight = self.weight  # a conversion of this layer may have replaced it
        return self._loss(logits, target)

"""Losses of class scores, which may be split over workers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, ClassVar

import torch
import torch.nn.functional as F

from distdl import _core, operators
from distdl.nn.base.option_types import Integer, Number, must
from distdl.nn.base.voted_layer import Described
from distdl.nn.loss.base import Reduction, Weight, loss
from distdl.nn.loss.features import PartialSums

__all__ = ["DistributedMultiMarginLoss", "DistributedNLLLoss"]


class _ClassLoss(PartialSums):
    """A loss of scores ``(N, C, *others)`` and classes, with a weight for each class."""

    integer_arguments = ("target",)
    weights = ("weight",)
    weights_are_converted = True
    features = "classes"
    shapes: ClassVar[str] = (
        "Input ``(N, C)``, ``(C)`` or ``(N, C, *others)`` in any blocks of any dimension, and targets of class indices "
        "``(N)``, ``()`` or ``(N, *others)``, on each worker for its own block, so workers that differ only in the "
        "classes have equal targets. With reduction='none' the result is the block of the losses, of the shape of the "
        "targets, on the workers with the first classes."
    )
    weight: torch.Tensor | None
    ignore_index: int | None = None
    needs_classes: ClassVar[bool] = False

    def feature_axis(self, dims: int) -> int:
        return 0 if dims == 1 else 1

    def samples(self, dtypes: Sequence[torch.dtype]) -> tuple[torch.Tensor, ...]:
        input, _ = super().samples(dtypes)
        return input, torch.zeros((1,) * (self.grid.dim - 1), dtype=torch.int64, device="cpu")

    def prepare(self) -> None:
        super().prepare()
        self._sizes: list[int] = []  # of the blocks of classes, after the set-up

    def problem_of(self, *tensors: torch.Tensor) -> str:
        """Check class indices in each call: an index out of range would raise on this worker only."""
        return self.problem_of_classes(tensors[1], sum(self._sizes))

    def problem_of_classes(self, target: torch.Tensor, classes: int) -> str:
        """The error in a target for logits of so many classes, or ""."""
        if target.dtype not in (torch.int64, torch.uint8) or not target.numel():
            return ""
        lowest, highest, counted = _core.counted_classes(target, self.ignore_index)
        if not counted or (lowest >= 0 and highest < classes):
            return ""
        return f"has classes from {lowest} to {highest}; the logits are of {classes} classes"

    def why_not(self, *described: Described) -> str:
        (shape, _), (target, dtype) = described
        if dtype not in (torch.int64, torch.uint8):
            return "class indices must be of dtype int64 or uint8"
        if target != self.rows(shape):
            return "a target of class indices must have the shape of the logits without the classes"
        return ""

    def check_extents(self) -> None:
        if not sum(self._sizes) and (self.needs_classes or self._splits):  # only the workers would raise
            raise ValueError(f"{type(self).__name__}: there are no classes")
        if self.weight is not None and list(self.weight.shape) != [sum(self._sizes)]:
            shape = list(self.weight.shape)
            raise ValueError(f"{type(self).__name__}: weight has shape {shape}; there are {sum(self._sizes)} classes")

    def weight_of(self, name: str, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
        weight: torch.Tensor = getattr(self, name)
        return weight.to(tensors[0].dtype) if tensors else weight

    def own_weights(self, weight: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        part = weight.narrow(0, self.start, x.shape[self.axis])
        return part.view(-1, *(1,) * (x.dim() - 1 - self.axis))

    @property
    def start(self) -> int:
        """The first of this worker's classes; 0 on other ranks, where some tools read all attributes."""
        return sum(self._sizes[: self.grid.place[self.axis]]) if self.grid.active else 0

    def picked(self, x: torch.Tensor, target: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The targets' places among this worker's classes, with the dimension of the classes.

        Further results, for each target: whether its class is here, whether it is not ignored, and its weight.
        """
        indices = target.long().unsqueeze(self.axis)
        size, places = x.shape[self.axis], indices - self.start
        ignored = self.ignore_index
        counted = torch.ones_like(indices, dtype=torch.bool) if ignored is None else indices != ignored
        weights = counted.to(x.dtype)
        if self.weight is not None:
            weights = weights * self.weight.to(x.dtype)[indices.where(counted, 0)]
        return places.clamp(0, max(size - 1, 0)), (places >= 0) & (places < size) & counted, counted, weights


def gather_or_zero(x: torch.Tensor, axis: int, place: torch.Tensor) -> torch.Tensor:
    """The elements at places along a dimension; zeros if the dimension is empty."""
    return x.gather(axis, place) if x.shape[axis] else x.sum(axis, keepdim=True)


@loss
class DistributedMultiMarginLoss(_ClassLoss):
    """The hinge loss of scores that exceed the target's score less a margin: ``torch.nn.MultiMarginLoss`` in blocks."""

    p: Annotated[Integer, must(lambda value: value in (1, 2), "be 1 or 2")] = 1
    margin: Number = 1.0
    weight: Weight = None
    reduction: Reduction = "mean"
    function = staticmethod(F.multi_margin_loss)
    has_forward_mode = False
    most = 2
    needs_classes = True

    def prepare(self) -> None:
        super().prepare()
        if self._splits:
            self._sum = operators.all_sum_reduce(self.grid, [self.axis])

    def losses(self, reduction: str, *tensors: torch.Tensor) -> torch.Tensor:
        input, target = tensors
        return super().losses(reduction, input, target.long())

    def parts(self, *tensors: torch.Tensor) -> torch.Tensor:
        x, target = tensors
        place, here, _, weights = self.picked(x, target)
        wanted = self._sum(torch.where(here, gather_or_zero(x, self.axis, place), 0.0))
        over = self.margin - wanted + x
        over = torch.where(over > 0, over, 0.0).pow(self.p)  # relu would keep nan, which torch does not count
        if x.shape[self.axis]:
            is_target = torch.zeros_like(x, dtype=torch.bool).scatter_(self.axis, place, here)
            over = over.masked_fill(is_target, 0.0)
        return (over * weights).sum(self.axis) / sum(self._sizes)


class Likelihood(_ClassLoss):
    """A loss whose mean is weighted by the weights of the targets."""

    def losses(self, reduction: str, *tensors: torch.Tensor) -> torch.Tensor:
        input, target = tensors
        return super().losses(reduction, input, target if target.is_floating_point() else target.long())

    def count(self, *tensors: torch.Tensor) -> torch.Tensor | float:
        """The weights of the targets, on the workers with the first classes."""
        input, target = tensors
        if self.grid.place[self.axis] != 0:
            return 0.0
        if target.is_floating_point():
            return float(math.prod(self.rows(input.shape))) if sum(self._sizes) else 0.0
        if self.weight is None:
            return float(_core.counted_classes(target, self.ignore_index)[2])
        indices = target.long()
        return self.weight.to(input.dtype)[indices[indices != self.ignore_index]].sum()


@loss
class DistributedNLLLoss(Likelihood):
    """The negative log-likelihood of classes: ``torch.nn.NLLLoss`` in blocks."""

    weight: Weight = None
    ignore_index: Integer = -100
    reduction: Reduction = "mean"
    function = staticmethod(F.nll_loss)

    def losses(self, reduction: str, *tensors: torch.Tensor) -> torch.Tensor:
        """Pass contiguous input: torch's backward pass would refuse other images, on this worker only."""
        input, target = tensors
        return super().losses(reduction, input.contiguous(), target)

    def parts(self, *tensors: torch.Tensor) -> torch.Tensor:
        x, target = tensors
        place, here, _, weights = self.picked(x, target)
        return torch.where(here, -weights * gather_or_zero(x, self.axis, place), 0.0).squeeze(self.axis)

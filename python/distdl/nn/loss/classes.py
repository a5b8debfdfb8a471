"""Losses of scores of classes, which may be spread over workers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar, TypeAlias

import torch
import torch.nn.functional as F

from distdl import operators
from distdl.collective.construction import PartitionLike
from distdl.nn.layer import Described
from distdl.nn.logsumexp import LogSumExp
from distdl.nn.loss.features import _PartialSums

__all__ = ["DistributedCrossEntropyLoss", "DistributedMultiMarginLoss", "DistributedNLLLoss"]

Context: TypeAlias = torch.autograd.function.FunctionCtx


class _ClassLoss(_PartialSums):
    """A loss of scores ``(N, C, *others)`` and classes, with a weight for each class."""

    integral = ("target",)
    weights = ("weight",)
    weights_follow = True
    features = "classes"
    shapes: ClassVar[str] = (
        "Input ``(N, C)``, ``(C)`` or ``(N, C, *others)`` in any blocks of any dimension, and targets of class indices "
        "``(N)``, ``()`` or ``(N, *others)``, on each worker for its own block, so workers that differ only in the "
        "classes have equal targets. With reduction='none' the result is the block of the losses, of the shape of the "
        "targets, on the workers with the first classes."
    )
    weight: torch.Tensor | None
    ignore_index: int | None = None

    def feature_axis(self, dims: int) -> int:
        return 0 if dims == 1 else 1

    def samples(self, dtypes: Sequence[torch.dtype]) -> tuple[torch.Tensor, ...]:
        input, _ = super().samples(dtypes)
        return input, torch.zeros((1,) * (self.grid.dim - 1), dtype=torch.int64)

    def prepare(self) -> None:
        super().prepare()
        self._sizes: list[int] = []  # of the blocks of classes, after the set-up

    def problem_of(self, *tensors: torch.Tensor) -> str:
        """Check class indices in each call: an index out of range would raise on this worker alone."""
        target = tensors[1]
        if target.dtype not in (torch.int64, torch.uint8) or not target.numel():
            return ""
        kept, classes = self.kept(target), sum(self._sizes)
        if not kept.numel() or (kept.min() >= 0 and kept.max() < classes):
            return ""
        return f"has classes from {kept.min()} to {kept.max()}; the logits are of {classes} classes"

    def kept(self, target: torch.Tensor) -> torch.Tensor:
        """The indices that are not ignored. A uint8 is never equal to a negative ignore_index."""
        indices = target.long()
        return indices if self.ignore_index is None else indices[indices != self.ignore_index]

    def why_not(self, *described: Described) -> str:
        (shape, _), (target, dtype) = described
        if dtype not in (torch.int64, torch.uint8):
            return "class indices must be of dtype int64 or uint8"
        if target != self.rows(shape):
            return "a target of class indices must have the shape of the logits without the classes"
        return ""

    def check_extents(self) -> None:
        if self.weight is not None and list(self.weight.shape) != [sum(self._sizes)]:
            shape = list(self.weight.shape)
            raise ValueError(f"{type(self).__name__}: weight has shape {shape}; there are {sum(self._sizes)} classes")

    def weight_of(self, name: str, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
        weight: torch.Tensor = getattr(self, name)
        return weight.to(tensors[0].dtype) if tensors else weight

    def own(self, weight: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """The part of a weight for this worker's classes, along the dimension of the classes."""
        part = weight.narrow(0, self.start, x.shape[self.axis])
        return part.view(-1, *(1,) * (x.dim() - 1 - self.axis))

    @property
    def start(self) -> int:
        """The first of this worker's classes."""
        return sum(self._sizes[: self.grid.place[self.axis]])

    def picked(self, x: torch.Tensor, target: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The targets' places among this worker's classes, with the dimension of the classes.

        With them, of each target: whether it is there, whether it is not ignored, and its weight.
        """
        indices = target.long().unsqueeze(self.axis)
        size, own = x.shape[self.axis], indices - self.start
        kept = torch.ones_like(indices, dtype=torch.bool) if self.ignore_index is None else indices != self.ignore_index
        weights = kept.to(x.dtype)
        if self.weight is not None:
            weights = weights * self.weight.to(x.dtype)[indices.where(kept, 0)]
        return own.clamp(0, max(size - 1, 0)), (own >= 0) & (own < size) & kept, kept, weights


def at(x: torch.Tensor, axis: int, place: torch.Tensor) -> torch.Tensor:
    """The elements at places along a dimension; zeros where it has no elements."""
    return x.gather(axis, place) if x.shape[axis] else x.sum(axis, keepdim=True)


class DistributedMultiMarginLoss(_ClassLoss):
    """By how much a class is not above all others by a margin: ``torch.nn.MultiMarginLoss`` in blocks."""

    function = staticmethod(F.multi_margin_loss)
    most = 2
    p: int
    margin: float

    def __init__(
        self,
        P_x: PartitionLike,
        p: int = 1,
        margin: float = 1.0,
        weight: torch.Tensor | None = None,
        reduction: str = "mean",
    ) -> None:
        super().__init__(locals())

    def check_grid(self) -> None:
        super().check_grid()
        if self.p not in (1, 2):
            raise ValueError(f"DistributedMultiMarginLoss: p={self.p}; it must be 1 or 2")

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
        wanted = self._sum(torch.where(here, at(x, self.axis, place), 0.0))
        over = (self.margin - wanted + x).relu().pow(self.p)
        if x.shape[self.axis]:
            itself = torch.zeros_like(x, dtype=torch.bool).scatter_(self.axis, place, here)
            over = over.masked_fill(itself, 0.0)
        return (over * weights).sum(self.axis) / sum(self._sizes)


class _Likelihood(_ClassLoss):
    """The mean is weighted by the weights of the targets."""

    def losses(self, reduction: str, *tensors: torch.Tensor) -> torch.Tensor:
        input, target = tensors
        return super().losses(reduction, input, target if target.is_floating_point() else target.long())

    def count(self, *tensors: torch.Tensor) -> torch.Tensor | float:
        """The weights of the targets, on the workers with the first classes."""
        input, target = tensors
        if self.grid.place[self.axis] != 0:
            return 0.0
        if target.is_floating_point():
            return float(math.prod(self.rows(input.shape)))
        kept = self.kept(target)
        return float(kept.numel()) if self.weight is None else self.weight.to(input.dtype)[kept].sum()


class DistributedNLLLoss(_Likelihood):
    """The negative log-likelihood of classes: ``torch.nn.NLLLoss`` in blocks."""

    function = staticmethod(F.nll_loss)
    ignore_index: int

    def __init__(
        self,
        P_x: PartitionLike,
        weight: torch.Tensor | None = None,
        ignore_index: int = -100,
        reduction: str = "mean",
    ) -> None:
        super().__init__(locals())

    def parts(self, *tensors: torch.Tensor) -> torch.Tensor:
        x, target = tensors
        place, here, _, weights = self.picked(x, target)
        return torch.where(here, -weights * at(x, self.axis, place), 0.0).squeeze(self.axis)


class DistributedCrossEntropyLoss(_Likelihood):
    """The cross entropy between partitioned logits and targets: ``torch.nn.CrossEntropyLoss`` in blocks.

    Targets may also be probabilities, of the shape and in the blocks of the logits.
    """

    function = staticmethod(F.cross_entropy)
    ignore_index: int
    label_smoothing: float

    def __init__(
        self,
        P_x: PartitionLike,
        weight: torch.Tensor | None = None,
        ignore_index: int = -100,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
    ) -> None:
        super().__init__(locals())

    def check_grid(self) -> None:
        super().check_grid()
        if not 0.0 <= self.label_smoothing <= 1.0:
            raise ValueError(
                f"DistributedCrossEntropyLoss: label_smoothing={self.label_smoothing}; it must be in [0, 1]"
            )

    def prepare(self) -> None:
        super().prepare()
        if self._splits:
            self.log_sum_exp = LogSumExp(self.grid, self.axis)

    def why_not(self, *described: Described) -> str:
        (shape, dtype), (target, target_dtype) = described
        if not target_dtype.is_floating_point:
            return super().why_not(*described)
        if target != shape:
            return "a target of probabilities must have the shape of the logits"
        if self.ignore_index >= 0:
            return f"ignore_index={self.ignore_index} is not supported for a target of probabilities"
        return "" if target_dtype == dtype else "a target of probabilities must have the dtype of the logits"

    def samples(self, dtypes: Sequence[torch.dtype]) -> tuple[torch.Tensor, ...]:
        input, target = super().samples(dtypes)
        return input, torch.ones_like(input) if dtypes[1].is_floating_point else target

    def parts(self, *tensors: torch.Tensor) -> torch.Tensor:
        x, target = tensors
        if not target.is_floating_point():
            return _OfClasses.apply(x, self, *self.picked(x, target)).squeeze(self.axis)
        wanted = target * (1 - self.label_smoothing) + self.label_smoothing / sum(self._sizes)
        if self.weight is not None:
            wanted = wanted * self.own(self.weight.to(x.dtype), x)
        shift, log_sum = self.log_sum_exp(x)
        return (wanted * (log_sum - (x - shift))).sum(self.axis)

    def smoothing(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """What label smoothing adds to each of this worker's classes, and to all classes together."""
        classes = sum(self._sizes)
        weight = x.new_ones(classes) if self.weight is None else self.weight.to(x.dtype)
        weight = weight * (self.label_smoothing / classes)
        return self.own(weight, x), weight.sum()


class _OfClasses(torch.autograd.Function):
    """This worker's part of the cross entropy of class indices, with the dimension of the classes, of extent 1.

    All workers along the classes receive the same gradient, that of their sum. So the gradient of the logits takes no
    communication, and no memory but its own. Derivatives of it sum the exponentials again.
    """

    @staticmethod
    def forward(
        ctx: Context,
        x: torch.Tensor,
        loss: DistributedCrossEntropyLoss,
        place: torch.Tensor,
        here: torch.Tensor,
        kept: torch.Tensor,
        weights: torch.Tensor,
    ) -> torch.Tensor:
        axis, smoothed = loss.axis, loss.label_smoothing
        shift, log_sum = loss.log_sum_exp(x)
        picked = weights * (1 - smoothed)
        losses, total = torch.where(here, picked * (log_sum - (at(x, axis, place) - shift)), 0.0), picked
        if smoothed:
            own, everything = loss.smoothing(x)
            spread = ((log_sum - (x - shift)) * own).sum(axis, keepdim=True)
            losses, total = losses + torch.where(kept, spread, 0.0), total + everything
        ctx.save_for_backward(x, shift, log_sum, place, here, kept, picked, total)
        ctx.loss = loss
        return losses

    @staticmethod
    def backward(ctx: Context, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, shift, log_sum, place, here, kept, picked, total = ctx.saved_tensors
        loss, again = ctx.loss, torch.is_grad_enabled()
        # Of a mean of nothing the gradient is infinite: a product with 0 would not be 0.
        gradient = torch.where(kept, gradients[0], 0.0)
        if again:
            shift, log_sum = loss.log_sum_exp(x)
        scale = gradient * total * (-log_sum).exp()
        powers = (x - shift).exp_()
        result = powers * scale if again else powers.mul_(scale)
        if x.shape[loss.axis]:
            result.scatter_add_(loss.axis, place, torch.where(here, -gradient * picked, 0.0))
        if loss.label_smoothing:
            result = result - gradient * loss.smoothing(x)[0]
        return result, None, None, None, None, None

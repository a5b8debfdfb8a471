"""The cross entropy over blocks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import index

import torch
import torch.nn.functional as F

from distdl import operators
from distdl.collective.construction import PartitionLike
from distdl.nn.layer import Described
from distdl.nn.loss.base import Loss
from distdl.nn.precision import loss_dtype, wide

__all__ = ["DistributedCrossEntropyLoss"]


class DistributedCrossEntropyLoss(Loss):
    """The cross entropy between partitioned logits and targets: ``torch.nn.CrossEntropyLoss`` in blocks.

    Args:
        P_x: the partition of the logits, ``[classes]``, ``[batch, classes]`` or ``[batch, classes, *others]``; any
            dimension may be split, also the classes.
        weight: a weight for each class, of shape [C], the same on all ranks.
        ignore_index, reduction, label_smoothing: as in ``torch.nn.CrossEntropyLoss``.

    Shape:
        Logits ``(N, C, *others)`` in blocks over P_x. Targets are either class indices ``(N, *others)``, on each worker
        for its own block (so workers that differ only in the classes have equal targets), or probabilities of the same
        shape and blocks as the logits. The result is a scalar on every rank; with reduction='none' it is the block of
        the losses ``(N, *others)``, on the workers with the first classes.

    Raises:
        ValueError: on all ranks, if the logits have another number of dimensions than P_x, a target's shape or dtype
            does not belong to its logits, a class index is out of range, weight has another length than there are
            classes, or an option is unknown.
        TypeError: on all ranks, if weight is not a tensor.

    Constructing and calling are collective over the communicator that P_x comes from. Every rank has to call
    ``backward()``; the loss counts once.

    Source: https://docs.pytorch.org/docs/stable/generated/torch.nn.CrossEntropyLoss.html.
    """

    weight: torch.Tensor | None
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

    def check_options(self) -> None:
        super().check_options()
        weight: torch.Tensor | None = self.given["weight"]
        self.ignore_index = index(self.ignore_index)
        if weight is not None and not isinstance(weight, torch.Tensor):
            raise TypeError(f"DistributedCrossEntropyLoss: weight={weight!r}; it has to be a torch.Tensor")
        if not 0.0 <= self.label_smoothing <= 1.0:
            raise ValueError(
                f"DistributedCrossEntropyLoss: label_smoothing={self.label_smoothing}; it must be in [0, 1]"
            )
        if self.grid.known and self.grid.dim < 1:
            raise ValueError("DistributedCrossEntropyLoss: P_x has no dimension; it needs one for the classes")
        self.register_buffer("weight", weight)
        self._axis = 0 if self.grid.dim == 1 else 1

    def further_compared(self) -> dict[str, object]:
        return {"weight": None if self.weight is None else self.weight.tolist()}

    def prepare(self) -> None:
        super().prepare()
        self._sizes: list[int] = []  # of the blocks of classes, after the set-up
        self._splits_classes = self.grid.dim > 0 and self.grid.shape[self._axis] > 1
        if self._splits_classes:
            self._gather = operators.all_gather(self.grid, [self._axis])
            self._sum = operators.all_sum_reduce(self.grid, [self._axis])
            self._to_first_classes = operators.sum_reduce(self.grid, self.grid.first_along([self._axis]))

    def problem_of(self, target: object) -> str:
        """Check class indices in each call: an index out of range would raise on this worker alone."""
        if not isinstance(target, torch.Tensor) or target.dtype not in (torch.int64, torch.uint8) or not target.numel():
            return ""
        indices = target.long()  # a uint8 is never equal to a negative ignore_index
        kept, classes = indices[indices != self.ignore_index], sum(self._sizes)
        if not kept.numel() or (kept.min() >= 0 and kept.max() < classes):
            return ""
        return f"has classes from {kept.min()} to {kept.max()}; the logits are of {classes} classes"

    def check_input(self, inputs: Sequence[Described]) -> None:
        for worker, (shape, dtype) in enumerate(inputs):
            if len(shape) != self.grid.dim:
                raise ValueError(
                    f"DistributedCrossEntropyLoss: worker {worker} has logits of shape {shape}; they must have the "
                    f"{self.grid.dim} dimensions of P_x"
                )
            if not dtype.is_floating_point:
                raise ValueError(f"DistributedCrossEntropyLoss: worker {worker} has logits of {dtype}")
        line = self.grid.side_by_side((0,) * self.grid.dim, [self._axis])
        self._sizes = [inputs[self.grid.ranks.index(rank)][0][self._axis] for rank in line]
        for worker, (shape, _) in enumerate(inputs):
            expected = self._sizes[self.grid.index(worker)[self._axis]]
            if shape[self._axis] != expected:
                raise ValueError(
                    f"DistributedCrossEntropyLoss: worker {worker} has logits of shape {shape}, with "
                    f"{shape[self._axis]} classes; the first worker with the same classes has {expected}"
                )
        classes = sum(self._sizes)
        if self.weight is not None and list(self.weight.shape) != [classes]:
            raise ValueError(
                f"DistributedCrossEntropyLoss: weight has shape {list(self.weight.shape)}; there are {classes} classes"
            )

    def why_not(self, input: Described, target: Described) -> str:
        shape, dtype = input
        if target[1].is_floating_point:
            if target[0] != shape:
                return "a target of probabilities must have the shape of the logits"
            if self.ignore_index >= 0:
                return f"ignore_index={self.ignore_index} is not supported for a target of probabilities"
            return "" if target[1] == dtype else "a target of probabilities must have the dtype of the logits"
        if target[1] not in (torch.int64, torch.uint8):
            return "class indices must be of dtype int64 or uint8"
        if target[0] != shape[: self._axis] + shape[self._axis + 1 :]:
            return "a target of class indices must have the shape of the logits without the classes"
        return ""

    def compute(self, input: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """The loss of this rank's blocks and of all others."""
        if not self.grid.active:
            return input.clone() if self.reduction == "none" else self.reduce(input, 0.0, input.dtype)
        logits = wide(input)
        target = wide(target) if target.is_floating_point() else target.long()
        weight = None if self.weight is None else self.weight.to(logits.dtype)
        compute = self._losses_over_split_classes if self._splits_classes else self._losses_over_own_classes
        losses = compute(logits, target, weight)
        if self.reduction == "none":
            return losses.to(loss_dtype(input.dtype, input.device))
        return self.reduce(losses.sum(), self._weight_of(logits, target, weight), input.dtype)

    def _losses_over_own_classes(
        self, logits: torch.Tensor, target: torch.Tensor, weight: torch.Tensor | None
    ) -> torch.Tensor:
        reduction = "none" if self.reduction == "none" else "sum"
        return F.cross_entropy(
            logits,
            target,
            weight,
            ignore_index=self.ignore_index,
            reduction=reduction,
            label_smoothing=self.label_smoothing,
        )

    def _weight_of(
        self, logits: torch.Tensor, target: torch.Tensor, weight: torch.Tensor | None
    ) -> torch.Tensor | float:
        """This worker's part of the mean's denominator; 0 except on the workers with the first classes."""
        if self.grid.place[self._axis] != 0:
            return 0.0
        if target.is_floating_point():
            return float(math.prod(n for d, n in enumerate(logits.shape) if d != self._axis))
        kept = target[target != self.ignore_index]
        return kept.numel() if weight is None else weight[kept].sum()

    def _losses_over_split_classes(
        self, logits: torch.Tensor, target: torch.Tensor, weight: torch.Tensor | None
    ) -> torch.Tensor:
        """Each worker's part of the losses: the log-softmax needs the maximum and one sum over all classes."""
        axis = self._axis
        start = sum(self._sizes[: self.grid.place[axis]])
        lowest = logits.new_full((*logits.shape[:axis], 1, *logits.shape[axis + 1 :]), -torch.inf)
        largest = torch.cat([logits.detach(), lowest], axis).amax(axis, keepdim=True)
        shifted = logits - self._gather(largest).amax(axis, keepdim=True)
        log_p = shifted - self._sum(shifted.exp().sum(axis, keepdim=True)).log()

        along_classes = (-1, *(1,) * (logits.ndim - 1 - axis))
        if target.is_floating_point():
            wanted, kept = target, torch.ones((), dtype=torch.bool, device=logits.device)
        else:
            kept = (target != self.ignore_index).unsqueeze(axis)
            place = torch.arange(start, start + logits.shape[axis], device=logits.device).view(along_classes)
            wanted = (target.unsqueeze(axis) == place).to(logits.dtype)
        wanted = wanted * (1 - self.label_smoothing) + self.label_smoothing / sum(self._sizes)
        if weight is not None:
            wanted = wanted * weight[start : start + logits.shape[axis]].view(along_classes)
        # A product with 0 would turn the -inf of an impossible class into nan.
        terms = torch.where((wanted != 0) & kept, log_p * wanted, 0.0)
        losses = -terms.sum(axis)
        return self._to_first_classes(losses) if self.reduction == "none" else losses

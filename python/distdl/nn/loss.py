"""Losses of partitioned tensors: one number, on every rank."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from distdl import primitives
from distdl._load import _core
from distdl.construction import constructing
from distdl.nn.module import Module


class _DistributedLoss(Module):
    """A loss that is a quotient of two sums over all workers.

    The workers' sums meet on worker 0, whose loss carries the gradient. All other ranks receive its value, and take
    part in its backward pass: ``backward()`` is called on all ranks, and counts once.
    """

    def __init__(self, P_x: Any, reduction: str, options: dict[str, Any]) -> None:
        super().__init__()
        self.reduction = reduction
        with constructing(type(self).__name__, {"P_x": P_x}, {"reduction": reduction, **options}) as (self.P_x,):
            if reduction not in ("mean", "sum", "none"):
                raise ValueError(f"{type(self).__name__}: reduction={reduction!r}; it must be 'mean', 'sum' or 'none'")
            self._check()
        workers = self.P_x._related(self.P_x._ranks, (self.P_x.size,))
        first = self.P_x._related(self.P_x._ranks[:1], (1,))
        everyone = self.P_x._related(self.P_x._voters, (len(self.P_x._voters),))
        self._to_first = primitives.sum_reduce(workers, first)
        self._to_everyone = primitives.broadcast(first, everyone)
        self._distdl_agree_among(self.P_x)
        self._target_agreement = (
            None
            if self.P_x._root is None
            else _core.LayerAgreement(f"{type(self).__name__} (target)", self.P_x._root, list(self.P_x._ranks))
        )

    def _check(self) -> None:
        """Check the partition and the options of a loss, while constructing."""

    def _distdl_input_changed(self, input: tuple[Any, ...]) -> bool:
        assert self._target_agreement is not None or not self.P_x.active
        changed = super()._distdl_input_changed(input)
        return (self.P_x.active and self._target_agreement.changed(input[1])) or changed  # type: ignore[union-attr]

    def _distdl_module_setup(self, input: tuple[Any, ...]) -> None:
        """Check that every worker's target belongs to its input; the same on all workers."""
        if not self.P_x.active or self._target_agreement is None:
            return
        targets = self._target_agreement.structure
        for worker, (shape, dtype) in enumerate(self._distdl_global_structure(self.P_x)):
            try:
                self._check_target(shape, *targets[worker])
            except ValueError as error:
                self._target_agreement.forget()
                raise ValueError(
                    f"{type(self).__name__}: worker {worker} of P_x has an input of shape {shape} ({dtype}) and a "
                    f"target of shape {targets[worker][0]} ({targets[worker][1]}); {error}"
                ) from None

    def _check_target(self, shape: list[int], target_shape: list[int], target_dtype: torch.dtype) -> None:
        raise NotImplementedError

    def _reduce(self, numerator: torch.Tensor, denominator: torch.Tensor | float) -> torch.Tensor:
        """The sum of the workers' numerators over that of their denominators (with 'sum', over 1), on every rank."""
        if self.P_x.active:
            mine = torch.stack([numerator, torch.as_tensor(denominator, dtype=numerator.dtype)])
        else:
            mine = numerator  # of zero volume
        sums = self._to_first(mine)
        shared = self._to_everyone(sums.detach())
        if self.P_x.active and self.P_x.rank == 0:
            return sums[0] / sums[1] if self.reduction == "mean" else sums[0]
        if shared.numel() == 0:  # a rank that knows nothing of P_x
            return shared.sum() + sums.sum()
        value = shared[0] / shared[1] if self.reduction == "mean" else shared[0]
        loss = value + sums.sum()  # of no elements: connects this rank with the backward pass
        if not self.P_x.active and torch.is_grad_enabled() and not loss.requires_grad:
            loss.requires_grad_(True)  # so that backward() may be called here as on the workers
        return loss

    def extra_repr(self) -> str:
        """Options and the partition."""
        return f"reduction={self.reduction!r}, P_x={self.P_x}"


class DistributedMSELoss(_DistributedLoss):
    """The mean squared error of two partitioned tensors: ``torch.nn.MSELoss``, put together.

    Args:
        P_x: the partition of input and target.
        reduction: 'mean', 'sum' or 'none', as in ``torch.nn.MSELoss``.

    Shape:
        Input and target of equal shapes on each worker, zero volume on all other ranks. Out comes a scalar on every
        rank; with reduction='none' the blocks of the squared errors.

    Raises:
        ValueError: on all workers, if a target's shape is not its input's, or reduction is unknown.

    Constructing and calling are collective over the communicator that P_x comes from. ``backward()`` has to be called
    on every rank, and counts once.

    Source: https://docs.pytorch.org/docs/stable/generated/torch.nn.MSELoss.html.
    """

    def __init__(self, P_x: Any, reduction: str = "mean") -> None:
        super().__init__(P_x, reduction, {})

    def _check_target(self, shape: list[int], target_shape: list[int], target_dtype: torch.dtype) -> None:
        if shape != target_shape:
            raise ValueError("their shapes must be equal")

    def forward(self, input: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """Compute the loss. Collective."""
        if self.reduction == "none":
            return F.mse_loss(input, target, reduction="none") if self.P_x.active else input.clone()
        if not self.P_x.active:
            return self._reduce(input, 0.0)
        return self._reduce(F.mse_loss(input, target, reduction="sum"), input.numel())


class DistributedCrossEntropyLoss(_DistributedLoss):
    """The cross entropy between partitioned logits and targets: ``torch.nn.CrossEntropyLoss``, put together.

    Args:
        P_x: the partition of the logits, ``[classes]``, ``[batch, classes]`` or ``[batch, classes, *others]``; any
            dimension may be partitioned, the classes too.
        weight: a weight for each class, of shape [C], the same on all ranks.
        ignore_index, reduction, label_smoothing: as in ``torch.nn.CrossEntropyLoss``.

    Shape:
        Logits ``(N, C, *others)`` in balanced blocks over P_x. Targets as class indices ``(N, *others)``, each worker
        those of its own block (so workers that differ only in the classes have equal targets), or as probabilities of
        the shape of the logits. Out comes a scalar on every rank; with reduction='none' the blocks of the losses, on
        the workers with the first classes.

    Raises:
        ValueError: on all workers, if the logits' dimension is not that of P_x, a target's shape does not belong to its
            logits, or an option is unknown.

    Constructing and calling are collective over the communicator that P_x comes from. ``backward()`` has to be called
    on every rank, and counts once.

    Source: https://docs.pytorch.org/docs/stable/generated/torch.nn.CrossEntropyLoss.html.
    """

    weight: torch.Tensor | None

    def __init__(
        self,
        P_x: Any,
        weight: torch.Tensor | None = None,
        ignore_index: int = -100,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
    ) -> None:
        self._smoothing, self._ignored = label_smoothing, ignore_index
        options = {"ignore_index": ignore_index, "label_smoothing": label_smoothing}
        super().__init__(P_x, reduction, options)
        self.register_buffer("weight", weight, persistent=False)
        self._axis = 0 if self.P_x.dim == 1 else 1
        self._splits_classes = self.P_x.dim > 0 and self.P_x._shape[self._axis] > 1
        if self._splits_classes:
            self._gather = primitives.all_gather(self.P_x, [self._axis])
            self._sum = primitives.all_sum_reduce(self.P_x, [self._axis])
            first_classes = list(self.P_x._shape)
            first_classes[self._axis] = 1
            ranks = [r for w, r in enumerate(self.P_x._ranks) if self.P_x.cartesian_index(w)[self._axis] == 0]
            self._to_first_classes = primitives.sum_reduce(self.P_x, self.P_x._related(ranks, first_classes))

    def _check(self) -> None:
        if not 0.0 <= self._smoothing <= 1.0:
            raise ValueError(f"DistributedCrossEntropyLoss: label_smoothing={self._smoothing}; it must be in [0, 1]")
        if self.P_x._root is not None and self.P_x.dim < 1:
            raise ValueError("DistributedCrossEntropyLoss: P_x has no dimension; it needs one for the classes")

    def _check_target(self, shape: list[int], target_shape: list[int], target_dtype: torch.dtype) -> None:
        if len(shape) != self.P_x.dim:
            raise ValueError(f"the logits must have the {self.P_x.dim} dimensions of P_x")
        if target_dtype.is_floating_point:
            if target_shape != shape:
                raise ValueError("a target of probabilities must have the shape of the logits")
        elif target_shape != shape[: self._axis] + shape[self._axis + 1 :]:
            raise ValueError("a target of class indices must have the shape of the logits without the classes")

    def forward(self, input: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """Compute the loss. Collective."""
        if not self.P_x.active:
            return input.clone() if self.reduction == "none" else self._reduce(input, 0.0)
        losses = self._losses_over_split_classes if self._splits_classes else self._losses_over_own_classes
        if self.reduction == "none":
            return losses(input, target)
        return self._reduce(losses(input, target).sum(), self._weight_of(input, target))

    def _losses_over_own_classes(self, logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        reduction = "none" if self.reduction == "none" else "sum"
        return F.cross_entropy(
            logits,
            target,
            self.weight,
            ignore_index=self._ignored,
            reduction=reduction,
            label_smoothing=self._smoothing,
        )

    def _weight_of(self, logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor | float:
        """What this worker adds to the denominator of the mean; counted by the workers with the first classes."""
        if self.P_x.cartesian_index(self.P_x.rank)[self._axis] != 0:
            return 0.0
        if target.is_floating_point():
            return target.numel() / max(target.shape[self._axis], 1)
        kept = target[target != self._ignored]
        return kept.numel() if self.weight is None else self.weight[kept].sum()

    def _losses_over_split_classes(self, logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """Each worker's part of the losses: the log-softmax needs the maximum and one sum over all classes."""
        axis = self._axis
        start, classes = self._my_classes(logits)
        lowest = logits.new_full((*logits.shape[:axis], 1, *logits.shape[axis + 1 :]), -torch.inf)
        largest = torch.cat([logits.detach(), lowest], axis).amax(axis, keepdim=True)
        shifted = logits - self._gather(largest).amax(axis, keepdim=True)
        log_p = shifted - self._sum(shifted.exp().sum(axis, keepdim=True)).log()

        if target.is_floating_point():
            wanted, kept = target, torch.ones((), dtype=torch.bool)
        else:
            kept = (target != self._ignored).unsqueeze(axis)
            place = torch.arange(start, start + logits.shape[axis]).view(-1, *(1,) * (logits.ndim - 1 - axis))
            wanted = (target.unsqueeze(axis) == place).to(logits.dtype)
        wanted = wanted * (1 - self._smoothing) + self._smoothing / classes
        if self.weight is not None:
            mine = self.weight[start : start + logits.shape[axis]]
            wanted = wanted * mine.view(-1, *(1,) * (logits.ndim - 1 - axis))
        # A product with 0 would turn the -inf of an impossible class into nan.
        terms = torch.where((wanted != 0) & kept, log_p * wanted, 0.0)
        losses = -terms.sum(axis)
        return self._to_first_classes(losses) if self.reduction == "none" else losses

    def _my_classes(self, logits: torch.Tensor) -> tuple[int, int]:
        """The first class of this worker, and the number of all classes."""
        by_worker = [shape[self._axis] for shape, _ in self._distdl_global_structure(self.P_x)]
        mine = self.P_x.cartesian_index(self.P_x.rank)
        line = []
        for i in range(self.P_x._shape[self._axis]):
            there = [int(j) for j in mine]
            there[self._axis] = i
            line.append(by_worker[_core.grid_rank(list(self.P_x._shape), there)])
        return sum(line[: int(mine[self._axis])]), sum(line)

"""Losses of partitioned tensors: one number, on every rank."""

from __future__ import annotations

import math
from operator import index
from typing import Any

import torch
import torch.nn.functional as F

from distdl import primitives
from distdl._load import _core
from distdl.construction import constructing, constructor
from distdl.nn.module import Module, agreement_among, present, required

_HALF = (torch.half, torch.bfloat16)
Described = tuple[list[int], torch.dtype]  # shape and dtype of a worker's tensor


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    """In the precision in which losses are summed: single precision for half."""
    return tensor.float() if tensor.dtype in _HALF else tensor


def _result_dtype(dtype: torch.dtype) -> torch.dtype:
    """Of a loss of this dtype. Autocast leaves losses of half precision in single precision, as in torch.nn."""
    return torch.float32 if dtype in _HALF and torch.is_autocast_enabled("cpu") else dtype


class _DistributedLoss(Module):
    """A loss that is a quotient of two sums over all workers.

    The workers' sums meet on worker 0, whose loss carries the gradient. All other ranks receive its value, and take
    part in its backward pass: ``backward()`` is called on all ranks, and counts once.
    """

    def __init__(self, P_x: Any, reduction: str, options: dict[str, Any]) -> None:
        super().__init__()
        self.reduction = reduction
        compared = {"reduction": reduction, **options}
        with constructing(type(self).__name__, {"P_x": P_x}, compared) as (self.P_x,):
            if reduction not in ("mean", "sum", "none"):
                raise ValueError(f"{type(self).__name__}: reduction={reduction!r}; it must be 'mean', 'sum' or 'none'")
            compared.update(self._check())
        workers, first, everyone = map(self.P_x._line, (self.P_x._ranks, self.P_x._ranks[:1], self.P_x._voters))
        self._to_first = primitives.sum_reduce(workers, first)
        self._to_everyone = primitives.broadcast(first, everyone)
        self._distdl_agree_among(everyone)
        self._target_agreement = agreement_among(f"{type(self).__name__} (target)", everyone)

    def _check(self) -> dict[str, Any]:
        """Check the partition and the options of a loss, while constructing; what of it the ranks are to compare."""
        return {}

    def _distdl_input_changed(self, input: tuple[Any, ...]) -> bool:
        changed = super()._distdl_input_changed(input)
        if self._target_agreement is None:
            return changed
        try:
            problem = self._problem_of(input[1]) if self.P_x.active else ""
        except (RuntimeError, TypeError):  # of a tensor without values, such as a sparse one, which is refused anyway
            problem = ""
        target = ValueError(problem) if problem else required(input[1])
        changed = self._target_agreement.agree([target], []) or changed
        self._target_agreement.leave()
        return changed

    def _distdl_module_setup(self, input: tuple[Any, ...]) -> None:
        """Check that every worker's target belongs to its input; the same on all ranks."""
        if self._target_agreement is None:
            return
        inputs = self._distdl_global_structure(self.P_x)
        targets = present(self._target_agreement.structure(0, self.P_x._ranks))
        try:
            self._check_input(inputs)
            for worker, (one, target) in enumerate(zip(inputs, targets, strict=True)):
                if (one[1], target[1]) != (inputs[0][1], targets[0][1]):
                    why = f"worker 0 has {inputs[0][1]} and {targets[0][1]}: all workers must have the same dtypes"
                else:
                    why = self._why_not(one, target)
                if why:
                    raise ValueError(
                        f"{type(self).__name__}: worker {worker} of P_x has an input of shape {one[0]} ({one[1]}) "
                        f"and a target of shape {target[0]} ({target[1]}); {why}"
                    )
        except Exception:
            self._target_agreement.forget()  # so that the next call asks again, on all ranks
            raise

    def _problem_of(self, target: Any) -> str:
        """What is wrong with the values of this worker's target; "" if nothing is."""
        return ""

    def _check_input(self, inputs: list[Described]) -> None:
        """Raise for what is wrong with the input as a whole, of which all workers know the shapes."""

    def _why_not(self, input: Described, target: Described) -> str:
        """Why a worker's target does not belong to its input; "" if it does."""
        raise NotImplementedError

    def _reduce(self, numerator: torch.Tensor, denominator: torch.Tensor | float, dtype: torch.dtype) -> torch.Tensor:
        """The sum of the workers' numerators over that of their denominators (with 'sum', over 1), on every rank."""
        if self.P_x.active:
            mine = torch.stack([numerator, torch.as_tensor(denominator, dtype=numerator.dtype)])
        else:
            mine = numerator  # of zero volume
        sums = self._to_first(mine)
        if self.P_x.active and self.P_x.rank == 0:
            # The denominator is no function of the input; but a derivative of the derivative would look for one.
            loss = (sums[0] / sums[1].detach() if self.reduction == "mean" else sums[0]).to(_result_dtype(dtype))
            self._to_everyone(loss.detach())
            return loss
        value = self._to_everyone(sums.detach()).sum()
        loss = value + sums.sum().to(value.dtype)  # of no elements: connects this rank with the backward pass
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
        ValueError: on all ranks, if a target's shape is not its input's, one of them is not of floating point, or
            reduction is unknown.

    Constructing and calling are collective over the communicator that P_x comes from. ``backward()`` has to be called
    on every rank, and counts once.

    Source: https://docs.pytorch.org/docs/stable/generated/torch.nn.MSELoss.html.
    """

    @constructor
    def __init__(self, P_x: Any, reduction: str = "mean") -> None:
        super().__init__(P_x, reduction, {})

    def _why_not(self, input: Described, target: Described) -> str:
        if not (input[1].is_floating_point and target[1].is_floating_point):
            return "their dtypes must be of floating point"
        return "" if input[0] == target[0] else "their shapes must be equal"

    def forward(self, input: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """Compute the loss. Collective."""
        if self.reduction == "none":
            return F.mse_loss(input, target, reduction="none") if self.P_x.active else input.clone()
        if not self.P_x.active:
            return self._reduce(input, 0.0, input.dtype)
        dtype = torch.promote_types(input.dtype, target.dtype)
        squares = F.mse_loss(_wide(input), _wide(target), reduction="sum")
        return self._reduce(squares, input.numel(), dtype)


class DistributedCrossEntropyLoss(_DistributedLoss):
    """The cross entropy between partitioned logits and targets: ``torch.nn.CrossEntropyLoss``, put together.

    Args:
        P_x: the partition of the logits, ``[classes]``, ``[batch, classes]`` or ``[batch, classes, *others]``; any
            dimension may be partitioned, the classes too.
        weight: a weight for each class, of shape [C], the same on all ranks.
        ignore_index, reduction, label_smoothing: as in ``torch.nn.CrossEntropyLoss``.

    Shape:
        Logits ``(N, C, *others)`` in blocks over P_x. Targets as class indices ``(N, *others)``, each worker
        those of its own block (so workers that differ only in the classes have equal targets), or as probabilities of
        the shape of the logits. Out comes a scalar on every rank; with reduction='none' the blocks of the losses, on
        the workers with the first classes.

    Raises:
        ValueError: on all ranks, if the logits' dimension is not that of P_x, a target's shape or dtype does not
            belong to its logits, a class is none of theirs, weight has another length, or an option is unknown.

    Constructing and calling are collective over the communicator that P_x comes from. ``backward()`` has to be called
    on every rank, and counts once.

    Source: https://docs.pytorch.org/docs/stable/generated/torch.nn.CrossEntropyLoss.html.
    """

    weight: torch.Tensor | None

    @constructor
    def __init__(
        self,
        P_x: Any,
        weight: torch.Tensor | None = None,
        ignore_index: int = -100,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
    ) -> None:
        self._smoothing, self._ignored, self._class_weight = label_smoothing, ignore_index, weight
        super().__init__(P_x, reduction, {"ignore_index": ignore_index, "label_smoothing": label_smoothing})
        self.register_buffer("weight", weight)
        self._axis = 0 if self.P_x.dim == 1 else 1
        self._splits_classes = self.P_x.dim > 0 and self.P_x._shape[self._axis] > 1
        if self._splits_classes:
            self._gather = primitives.all_gather(self.P_x, [self._axis])
            self._sum = primitives.all_sum_reduce(self.P_x, [self._axis])
            first_classes = list(self.P_x._shape)
            first_classes[self._axis] = 1
            ranks = [r for w, r in enumerate(self.P_x._ranks) if self.P_x.cartesian_index(w)[self._axis] == 0]
            self._to_first_classes = primitives.sum_reduce(self.P_x, self.P_x._related(ranks, first_classes))

    def _check(self) -> dict[str, Any]:
        weight, self._ignored = self._class_weight, index(self._ignored)
        if weight is not None and not isinstance(weight, torch.Tensor):
            raise TypeError(f"DistributedCrossEntropyLoss: weight={weight!r}; it has to be a torch.Tensor")
        if not 0.0 <= self._smoothing <= 1.0:
            raise ValueError(f"DistributedCrossEntropyLoss: label_smoothing={self._smoothing}; it must be in [0, 1]")
        if self.P_x._root is not None and self.P_x.dim < 1:
            raise ValueError("DistributedCrossEntropyLoss: P_x has no dimension; it needs one for the classes")
        return {"weight": None if weight is None else weight.tolist()}

    def _problem_of(self, target: Any) -> str:
        """Class indices are looked at in each call: one that is no class would fail on this worker alone."""
        if not isinstance(target, torch.Tensor) or target.dtype not in (torch.int64, torch.uint8) or not target.numel():
            return ""
        target = target.long()  # a uint8 is never equal to a negative ignore_index
        kept, sizes = target[target != self._ignored], self._class_sizes()
        if not sizes or not kept.numel() or (kept.min() >= 0 and kept.max() < sum(sizes)):
            return ""
        return f"has classes from {kept.min()} to {kept.max()}; the logits are of {sum(sizes)} classes"

    def _check_input(self, inputs: list[Described]) -> None:
        for worker, (shape, dtype) in enumerate(inputs):
            if len(shape) != self.P_x.dim:
                raise ValueError(
                    f"DistributedCrossEntropyLoss: worker {worker} has logits of shape {shape}; they must have the "
                    f"{self.P_x.dim} dimensions of P_x"
                )
            if not dtype.is_floating_point:
                raise ValueError(f"DistributedCrossEntropyLoss: worker {worker} has logits of {dtype}")
        sizes = self._class_sizes()
        for worker, (shape, _) in enumerate(inputs):
            expected = sizes[int(self.P_x.cartesian_index(worker)[self._axis])]
            if shape[self._axis] != expected:
                raise ValueError(
                    f"DistributedCrossEntropyLoss: worker {worker} has logits of shape {shape}, with "
                    f"{shape[self._axis]} classes; the first worker with the same classes has {expected}"
                )
        classes = sum(sizes)
        if self.weight is not None and list(self.weight.shape) != [classes]:
            raise ValueError(
                f"DistributedCrossEntropyLoss: weight has shape {list(self.weight.shape)}; there are {classes} classes"
            )

    def _why_not(self, input: Described, target: Described) -> str:
        shape, dtype = input
        if target[1].is_floating_point:
            if target[0] != shape:
                return "a target of probabilities must have the shape of the logits"
            if self._ignored >= 0:
                return f"ignore_index={self._ignored} is not supported for a target of probabilities"
            return "" if target[1] == dtype else "a target of probabilities must have the dtype of the logits"
        if target[1] not in (torch.int64, torch.uint8):
            return "class indices must be of dtype int64 or uint8"
        if target[0] != shape[: self._axis] + shape[self._axis + 1 :]:
            return "a target of class indices must have the shape of the logits without the classes"
        return ""

    def forward(self, input: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """Compute the loss. Collective."""
        if not self.P_x.active:
            return input.clone() if self.reduction == "none" else self._reduce(input, 0.0, input.dtype)
        logits = _wide(input)
        target = _wide(target) if target.is_floating_point() else target.long()
        weight = None if self.weight is None else self.weight.to(logits.dtype)
        compute = self._losses_over_split_classes if self._splits_classes else self._losses_over_own_classes
        losses = compute(logits, target, weight)
        if self.reduction == "none":
            return losses.to(_result_dtype(input.dtype))
        return self._reduce(losses.sum(), self._weight_of(logits, target, weight), input.dtype)

    def _losses_over_own_classes(
        self, logits: torch.Tensor, target: torch.Tensor, weight: torch.Tensor | None
    ) -> torch.Tensor:
        reduction = "none" if self.reduction == "none" else "sum"
        return F.cross_entropy(
            logits,
            target,
            weight,
            ignore_index=self._ignored,
            reduction=reduction,
            label_smoothing=self._smoothing,
        )

    def _weight_of(
        self, logits: torch.Tensor, target: torch.Tensor, weight: torch.Tensor | None
    ) -> torch.Tensor | float:
        """What this worker adds to the denominator of the mean; counted by the workers with the first classes."""
        if self.P_x.cartesian_index(self.P_x.rank)[self._axis] != 0:
            return 0.0
        if target.is_floating_point():
            return float(math.prod(n for d, n in enumerate(logits.shape) if d != self._axis))
        kept = target[target != self._ignored]
        return kept.numel() if weight is None else weight[kept].sum()

    def _losses_over_split_classes(
        self, logits: torch.Tensor, target: torch.Tensor, weight: torch.Tensor | None
    ) -> torch.Tensor:
        """Each worker's part of the losses: the log-softmax needs the maximum and one sum over all classes."""
        axis = self._axis
        sizes = self._class_sizes()
        start = sum(sizes[: int(self.P_x.cartesian_index(self.P_x.rank)[axis])])
        lowest = logits.new_full((*logits.shape[:axis], 1, *logits.shape[axis + 1 :]), -torch.inf)
        largest = torch.cat([logits.detach(), lowest], axis).amax(axis, keepdim=True)
        shifted = logits - self._gather(largest).amax(axis, keepdim=True)
        log_p = shifted - self._sum(shifted.exp().sum(axis, keepdim=True)).log()

        along_classes = (-1, *(1,) * (logits.ndim - 1 - axis))
        if target.is_floating_point():
            wanted, kept = target, torch.ones((), dtype=torch.bool)
        else:
            kept = (target != self._ignored).unsqueeze(axis)
            place = torch.arange(start, start + logits.shape[axis]).view(along_classes)
            wanted = (target.unsqueeze(axis) == place).to(logits.dtype)
        wanted = wanted * (1 - self._smoothing) + self._smoothing / sum(sizes)
        if weight is not None:
            wanted = wanted * weight[start : start + logits.shape[axis]].view(along_classes)
        # A product with 0 would turn the -inf of an impossible class into nan.
        terms = torch.where((wanted != 0) & kept, log_p * wanted, 0.0)
        losses = -terms.sum(axis)
        return self._to_first_classes(losses) if self.reduction == "none" else losses

    def _class_sizes(self) -> list[int]:
        """The sizes of the blocks of classes; none while the logits have another dimension than P_x."""
        inputs = [shape for shape, _ in self._distdl_global_structure(self.P_x)]
        if any(len(shape) != self.P_x.dim for shape in inputs):
            return []
        line = [[0] * self.P_x.dim for _ in range(self.P_x._shape[self._axis])]
        for i, place in enumerate(line):
            place[self._axis] = i
        return [inputs[_core.grid_rank(list(self.P_x._shape), place)][self._axis] for place in line]

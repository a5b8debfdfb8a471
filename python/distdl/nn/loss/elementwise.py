"""Losses of single elements: any dimension may be split."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import KW_ONLY
from typing import ClassVar

import torch
import torch.nn.functional as F

from distdl.nn.base.option_types import Flag, Number
from distdl.nn.base.precision import wide
from distdl.nn.base.voted_layer import Described
from distdl.nn.loss.base import Loss, Reduction, Weight, loss
from distdl.nn.loss.weights import check_broadcast, weight_block

__all__ = [
    "DistributedBCELoss",
    "DistributedBCEWithLogitsLoss",
    "DistributedGaussianNLLLoss",
    "DistributedHingeEmbeddingLoss",
    "DistributedHuberLoss",
    "DistributedKLDivLoss",
    "DistributedL1Loss",
    "DistributedMSELoss",
    "DistributedMarginRankingLoss",
    "DistributedPoissonNLLLoss",
    "DistributedSmoothL1Loss",
    "DistributedSoftMarginLoss",
]


class _ElementwiseLoss(Loss):
    shapes: ClassVar[str] = (
        "Tensors of equal shapes on each worker, in any blocks. With reduction='none' the result is the block of the "
        "elements' losses, of the same shape."
    )

    def weight_of(self, name: str, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
        weight = wide(getattr(self, name)) if tensors and tensors[0].dtype.itemsize > 2 else getattr(self, name)
        return weight_block(weight, self._blocks, self.grid.place) if tensors else weight

    def check_extents(self) -> None:
        for name in self.weights:
            check_broadcast(type(self).__name__, name, getattr(self, name), [sum(sizes) for sizes in self._blocks])


@loss
class DistributedL1Loss(_ElementwiseLoss):
    """The absolute values of differences: ``torch.nn.L1Loss`` in blocks."""

    reduction: Reduction = "mean"
    function = staticmethod(F.l1_loss)


@loss
class DistributedMSELoss(_ElementwiseLoss):
    """The squares of differences: ``torch.nn.MSELoss`` in blocks."""

    reduction: Reduction = "mean"
    function = staticmethod(F.mse_loss)


@loss
class DistributedSmoothL1Loss(_ElementwiseLoss):
    """Squares of differences smaller than ``beta``, absolute values of others: ``torch.nn.SmoothL1Loss`` in blocks."""

    reduction: Reduction = "mean"
    beta: Number = 1.0
    function = staticmethod(F.smooth_l1_loss)


@loss
class DistributedHuberLoss(_ElementwiseLoss):
    """Squares of differences smaller than ``delta``, multiples of others: ``torch.nn.HuberLoss`` in blocks."""

    reduction: Reduction = "mean"
    delta: Number = 1.0
    function = staticmethod(F.huber_loss)


@loss
class DistributedBCELoss(_ElementwiseLoss):
    """The binary cross entropy of probabilities: ``torch.nn.BCELoss`` in blocks.

    ``weight`` is broadcast to the whole input.
    """

    weight: Weight = None
    reduction: Reduction = "mean"
    function = staticmethod(F.binary_cross_entropy)
    weights = ("weight",)

    def problem_of(self, *tensors: torch.Tensor) -> str:
        """Describe values outside of 0 to 1, and NaN, as torch does."""
        for name, x in zip(self.tensors, tensors, strict=True):
            if not ((x >= 0) & (x <= 1)).all():
                return f"has {name} values that are not between 0 and 1"
        return ""


@loss
class DistributedBCEWithLogitsLoss(_ElementwiseLoss):
    """The binary cross entropy of the sigmoid of the input: ``torch.nn.BCEWithLogitsLoss`` in blocks.

    ``weight`` and ``pos_weight`` are broadcast to the whole input.
    """

    weight: Weight = None
    reduction: Reduction = "mean"
    pos_weight: Weight = None
    function = staticmethod(F.binary_cross_entropy_with_logits)
    weights = ("weight", "pos_weight")


@loss
class DistributedKLDivLoss(_ElementwiseLoss):
    """The Kullback-Leibler divergence of log-probabilities from a target: ``torch.nn.KLDivLoss`` in blocks.

    reduction='batchmean' divides the sum by the extent of the whole first dimension.
    """

    reduction: Reduction = "mean"
    log_target: Flag = False
    function = staticmethod(F.kl_div)
    reductions = ("mean", "sum", "none", "batchmean")

    def count(self, *tensors: torch.Tensor) -> torch.Tensor | float:
        if self.reduction != "batchmean":
            return super().count(*tensors)
        if any(self.grid.place[1:]):
            return 0.0
        return float(math.prod(tensors[0].shape[:1]))


@loss
class DistributedPoissonNLLLoss(_ElementwiseLoss):
    """The negative log-likelihood of counts with Poisson distributions: ``torch.nn.PoissonNLLLoss`` in blocks."""

    log_input: Flag = True
    full: Flag = False
    eps: Number = 1e-8
    reduction: Reduction = "mean"
    tensors = ("log_input", "target")
    function = staticmethod(F.poisson_nll_loss)


@loss
class DistributedGaussianNLLLoss(_ElementwiseLoss):
    """The negative log-likelihood of a target with normal distributions: ``torch.nn.GaussianNLLLoss`` in blocks.

    The call takes a third argument, the variance: a number, or a tensor of the input's shape, with extents of 1 where
    it is broadcast, or without the last dimension.
    """

    _: KW_ONLY
    full: Flag = False
    eps: Number = 1e-6
    reduction: Reduction = "mean"
    tensors = ("input", "target", "var")
    function = staticmethod(F.gaussian_nll_loss)

    def forward(self, *args: object, **kwargs: object) -> object:
        """Accept a number as the variance."""
        if kwargs:
            args, kwargs = self._in_order(args, kwargs), {}
        if len(args) == 3 and isinstance(args[2], float) and isinstance(args[0], torch.Tensor):
            args = (*args[:2], args[0].new_full((), args[2]))
        return super().forward(*args, **kwargs)

    def problem_of(self, *tensors: torch.Tensor) -> str:
        return "has a negative variance" if (tensors[2] < 0).any() else ""

    def why_not(self, *described: Described) -> str:
        (shape, _), _, (var, _) = described
        if var == shape[:-1] and shape:
            var = [*var, 1]
        if var and (len(var) != len(shape) or any(m not in (n, 1) for n, m in zip(shape, var, strict=True))):
            return "the variance must have the shape of the input, with 1 in place of some extents"
        return super().why_not(*described[:2])

    def losses(self, reduction: str, *tensors: torch.Tensor) -> torch.Tensor:
        input, target, var = tensors
        if var.dim() and list(var.shape) == list(input.shape[:-1]):
            var = var.unsqueeze(-1)
        return super().losses(reduction, input, target, var.expand_as(input))


@loss
class DistributedHingeEmbeddingLoss(_ElementwiseLoss):
    """The input where the target is 1, its distance from ``margin`` where it is -1: ``torch.nn.HingeEmbeddingLoss``."""

    margin: Number = 1.0
    reduction: Reduction = "mean"
    function = staticmethod(F.hinge_embedding_loss)
    integer_arguments = ("target",)


@loss
class DistributedSoftMarginLoss(_ElementwiseLoss):
    """log(1 + exp(-target · input)) for targets of 1 and -1: ``torch.nn.SoftMarginLoss`` in blocks."""

    reduction: Reduction = "mean"
    function = staticmethod(F.soft_margin_loss)
    integer_arguments = ("target",)

    def problem_of(self, *tensors: torch.Tensor) -> str:
        asks = tensors[1].requires_grad and torch.is_grad_enabled()
        return "has a target that requires a gradient, which is not defined" if asks else ""


@loss
class DistributedMarginRankingLoss(_ElementwiseLoss):
    """The margin by which inputs miss the order of the target, 1 or -1: ``torch.nn.MarginRankingLoss`` in blocks."""

    margin: Number = 0.0
    reduction: Reduction = "mean"
    tensors = ("input1", "input2", "target")
    function = staticmethod(F.margin_ranking_loss)
    integer_arguments = ("target",)

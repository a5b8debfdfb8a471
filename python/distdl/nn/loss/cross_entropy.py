"""Cross entropy, also with split classes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import torch
import torch.nn.functional as F

from distdl import _core
from distdl.modules.graph import require_grad_together
from distdl.nn.base.option_types import Integer, Number, in_unit_interval
from distdl.nn.base.voted_layer import Described
from distdl.nn.kernels.logsumexp import along_axis
from distdl.nn.loss.base import Reduction, Weight, loss
from distdl.nn.loss.classes import Likelihood, gather_or_zero
from distdl.torch_compat.autograd import Context

__all__ = ["DistributedCrossEntropyLoss"]


@loss
class DistributedCrossEntropyLoss(Likelihood):
    """The cross entropy between partitioned logits and targets: ``torch.nn.CrossEntropyLoss`` in blocks.

    Targets may also be probabilities, of the shape and in the blocks of the logits.
    """

    weight: Weight = None
    ignore_index: Integer = -100
    reduction: Reduction = "mean"
    label_smoothing: Annotated[Number, in_unit_interval] = 0.0
    function = staticmethod(F.cross_entropy)

    def prepare(self) -> None:
        super().prepare()
        if self._splits:
            self.over = along_axis(self.grid, self.axis)

    def why_not(self, *described: Described) -> str:
        (shape, dtype), (target, target_dtype) = described
        if not target_dtype.is_floating_point:
            return super().why_not(*described)
        if target != shape:
            return "a target of probabilities must have the shape of the logits"
        if self.ignore_index >= 0:
            return f"ignore_index={self.ignore_index} is not supported for a target of probabilities"
        if target_dtype != dtype and self.autocast is None:
            return "a target of probabilities must have the dtype of the logits"
        return ""

    def samples(self, dtypes: Sequence[torch.dtype]) -> tuple[torch.Tensor, ...]:
        input, target = super().samples(dtypes)
        return input, torch.ones_like(input) if dtypes[1].is_floating_point else target

    def converts_weights(self, dtypes: Sequence[torch.dtype]) -> bool:
        """Whether weights follow the logits' dtype, as torch promotes for class indices, not for probabilities."""
        return not dtypes[1].is_floating_point

    def weight_of(self, name: str, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
        if tensors and not self.converts_weights([tensor.dtype for tensor in tensors]):
            weight: torch.Tensor = getattr(self, name)
            return weight
        return super().weight_of(name, tensors)

    def parts(self, *tensors: torch.Tensor) -> torch.Tensor:
        x, target = tensors
        if not target.is_floating_point():
            picked = self.picked(x, target)
            if self.has_tangent:
                return _class_index_losses(x, self, *picked)[0].squeeze(self.axis)
            x = require_grad_together(x, self.agreement)
            return _ClassIndexLoss.apply(x, self, *picked).squeeze(self.axis)
        probabilities = target * (1 - self.label_smoothing) + self.label_smoothing / sum(self._sizes)
        if self.weight is not None:
            probabilities = probabilities * self.own_weights(self.weight, x)
        shift, log_sum = self.over.log_sum_exp(x)
        return (probabilities * (log_sum - (x - shift))).sum(self.axis)

    def smoothing(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The weights that label smoothing adds to each of this worker's classes, and their sum over all classes."""
        classes = sum(self._sizes)
        weight = x.new_ones(classes) if self.weight is None else self.weight.to(x.dtype)
        weight = weight * (self.label_smoothing / classes)
        return self.own_weights(weight, x), weight.sum()


def _class_index_losses(
    x: torch.Tensor,
    loss: DistributedCrossEntropyLoss,
    place: torch.Tensor,
    here: torch.Tensor,
    counted: torch.Tensor,
    weights: torch.Tensor,
) -> tuple[torch.Tensor, ...]:
    axis, smoothed = loss.axis, loss.label_smoothing
    shift, log_sum = loss.over.log_sum_exp(x)
    picked = weights * (1 - smoothed)
    losses, total = torch.where(here, picked * (log_sum - (gather_or_zero(x, axis, place) - shift)), 0.0), picked
    if smoothed:
        own_weights, all_weights = loss.smoothing(x)
        spread = ((log_sum - (x - shift)) * own_weights).sum(axis, keepdim=True)
        losses, total = losses + torch.where(counted, spread, 0.0), total + all_weights
    return losses, shift, log_sum, picked, total


class _ClassIndexLoss(torch.autograd.Function):
    """This worker's part of the cross entropy of class indices, of extent 1 along the classes.

    All workers along the classes receive the gradient of their sum. So the gradient of the logits needs no
    communication and no further memory. Its derivatives sum the exponentials again.
    """

    @staticmethod
    def forward(
        ctx: Context,
        x: torch.Tensor,
        loss: DistributedCrossEntropyLoss,
        place: torch.Tensor,
        here: torch.Tensor,
        counted: torch.Tensor,
        weights: torch.Tensor,
    ) -> torch.Tensor:
        losses, *saved = _class_index_losses(x, loss, place, here, counted, weights)
        shift, log_sum, picked, total = saved
        ctx.save_for_backward(x, shift, log_sum, place, here, counted, picked, total)
        ctx.loss = loss
        return losses

    @staticmethod
    def backward(ctx: Context, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, shift, log_sum, place, here, counted, picked, total = ctx.saved_tensors
        loss, again = ctx.loss, torch.is_grad_enabled()
        # The mean of no losses has an infinite gradient, whose product with 0 would be nan.
        gradient = torch.where(counted, gradients[0], 0.0)
        if again:
            shift, log_sum = loss.over.log_sum_exp(x)
        scale = gradient * total * (-log_sum).exp()
        result = (x - shift).exp() * scale if again else _core.scaled_powers(x, shift, scale, loss.axis)
        if x.shape[loss.axis]:
            result.scatter_add_(loss.axis, place, torch.where(here, -gradient * picked, 0.0))
        if loss.label_smoothing:
            result = result - gradient * loss.smoothing(x)[0]
        return result, None, None, None, None, None

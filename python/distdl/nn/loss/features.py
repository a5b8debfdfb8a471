"""Losses of rows of features. Features may be split if the loss needs only a sum over them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY
from typing import Annotated, ClassVar, TypeAlias

import torch
import torch.nn.functional as F

from distdl.modules.graph import empty_of
from distdl.nn.base.option_types import Flag, Number, must, positive
from distdl.nn.base.voted_layer import Described
from distdl.nn.distances import BlockNorms
from distdl.nn.loss.base import Loss, Reduction, Weight, loss
from distdl.nn.loss.weights import check_broadcast, weight_block
from distdl.parameters.transport import zero_of

__all__ = [
    "DistributedCosineEmbeddingLoss",
    "DistributedMultiLabelMarginLoss",
    "DistributedMultiLabelSoftMarginLoss",
    "DistributedTripletMarginLoss",
    "DistributedTripletMarginWithDistanceLoss",
]


Distance: TypeAlias = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


class FeatureLoss(Loss):
    """A loss of rows of features along the last dimension.

    Attributes:
        features: the name of the features in messages.
        most: the largest number of dimensions.
        whole: the reason why the features must not be split, or "".
    """

    features: ClassVar[str] = "features"
    most: ClassVar[int | None] = None
    axis: int
    whole: ClassVar[str] = ""

    def check_grid(self) -> None:
        dims = self.grid.dim
        self.check_shape(dims > 0, f"it needs a dimension for the {self.features}")
        self.check_shape(self.most is None or dims <= self.most, f"it must not have more than {self.most} dimensions")
        self.axis = self.feature_axis(dims)
        must = f"the {self.features}, along dimension {self.axis}, must not be split, because {self.whole}"
        self.check_shape(not self.whole or self.grid.shape[self.axis] == 1, must)

    def feature_axis(self, dims: int) -> int:
        return dims - 1

    def rows(self, shape: Sequence[int]) -> list[int]:
        return [n for d, n in enumerate(shape) if d != self.axis]

    def first(self, losses: torch.Tensor) -> torch.Tensor:
        """The losses on the first worker along the features, and zero volume on others: all have them."""
        return losses if not self.grid.place[self.axis] else empty_of(losses)

    def result_dims(self, dims: int) -> int:
        return dims - 1


class PartialSums(FeatureLoss):
    """A loss that is a sum over the features."""

    def split_sum(self, *tensors: torch.Tensor) -> torch.Tensor:
        return self.parts(*tensors).sum()

    def losses_over_workers(self, *tensors: torch.Tensor) -> torch.Tensor:
        return self._to_first_blocks(self.parts(*tensors))

    def parts(self, *tensors: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError


@loss
class DistributedMultiLabelSoftMarginLoss(PartialSums):
    """The binary cross entropy, averaged over the labels: ``torch.nn.MultiLabelSoftMarginLoss`` in blocks.

    ``weight`` is broadcast to the whole input.
    """

    weight: Weight = None
    reduction: Reduction = "mean"
    function = staticmethod(F.multilabel_soft_margin_loss)
    integer_arguments = ("target",)
    weights = ("weight",)
    features = "labels"
    shapes = (
        "Input and target ``(*, C)`` of equal shapes on each worker, in any blocks of any dimension. With "
        "reduction='none' the result is the block of the losses ``(*)``, on the workers with the first labels."
    )

    def check_extents(self) -> None:
        check_broadcast(type(self).__name__, "weight", self.weight, [sum(sizes) for sizes in self._blocks])

    def weight_of(self, name: str, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
        weight: torch.Tensor = getattr(self, name)
        return weight_block(weight, self._blocks, self.grid.place).to(tensors[0].dtype) if tensors else weight

    def parts(self, *tensors: torch.Tensor) -> torch.Tensor:
        input, target = tensors
        losses = -(target * F.logsigmoid(input) + (1 - target) * F.logsigmoid(-input))
        if self.weight is not None:
            losses = losses * self.weight_of("weight", tensors)
        return losses.sum(-1) / sum(self._sizes)


@loss
class DistributedMultiLabelMarginLoss(FeatureLoss):
    """The hinge loss of labels that do not exceed all others by 1: ``torch.nn.MultiLabelMarginLoss`` in blocks."""

    reduction: Reduction = "mean"
    function = staticmethod(F.multilabel_margin_loss)
    has_forward_mode = False
    integer_arguments = ("target",)
    features = "labels"
    most = 2
    whole = "each label that applies is compared with each that does not"
    shapes = (
        "Input and target ``(N, C)`` or ``(C)`` of equal shapes on each worker, in any blocks of the batch. With "
        "reduction='none' the result is the block of the losses ``(N)`` or ``()``."
    )

    def samples(self, dtypes: Sequence[torch.dtype]) -> tuple[torch.Tensor, ...]:
        return (*super().samples(dtypes)[:1], torch.zeros((1,) * self.grid.dim, dtype=torch.int64, device="cpu"))

    def why_not(self, *described: Described) -> str:
        if described[1][1] != torch.int64:
            return "the target must be of dtype int64"
        if described[0][0][-1:] == [0]:  # only this worker would raise, and others would wait
            return "there must be labels"
        return super().why_not(*described)

    def problem_of(self, *tensors: torch.Tensor) -> str:
        input, target = tensors
        if not target.numel() or (target.min() >= -1 and target.max() < input.shape[-1]):
            return ""
        return f"has a target from {target.min()} to {target.max()}; there are {input.shape[-1]} labels"


@loss
class DistributedCosineEmbeddingLoss(FeatureLoss):
    """1 - cos for a target of 1, cos - ``margin`` for one of -1: ``torch.nn.CosineEmbeddingLoss`` in blocks."""

    margin: Number = 0.0
    reduction: Reduction = "mean"
    tensors = ("input1", "input2", "target")
    function = staticmethod(F.cosine_embedding_loss)
    integer_arguments = ("target",)
    most = 2
    shapes = (
        "Inputs ``(N, D)`` or ``(D)`` in any blocks of any dimension, and targets ``(N)`` or ``()``, on each worker "
        "for its own block, so workers that differ only in the features have equal targets. With reduction='none' the "
        "result is the block of the losses ``(N)`` or ``()``, on the workers with the first features."
    )

    def samples(self, dtypes: Sequence[torch.dtype]) -> tuple[torch.Tensor, ...]:
        first, second, target = super().samples(dtypes)
        return first, second, target[0]

    def why_not(self, *described: Described) -> str:
        if described[2][0] != self.rows(described[0][0]):
            return "the target must have the shape of the inputs without the features"
        return super().why_not(*described[:2])

    def losses_over_workers(self, *tensors: torch.Tensor) -> torch.Tensor:
        first, second, target = tensors
        products = torch.stack([(first * second).sum(-1), first.square().sum(-1), second.square().sum(-1)], -1)
        sums = self._to_first_blocks(products)
        if self.grid.place[-1]:
            return empty_of(sums) + zero_of(target) if target.requires_grad else empty_of(sums)
        # torch adds this number to each square.
        product, square, second_square = sums.unbind(-1)
        cosine = product / ((square + 1e-12) * (second_square + 1e-12)).sqrt()
        below = (cosine - self.margin).clamp_min(0)
        return torch.where(target == 1, 1 - cosine, 0.0) + torch.where(target == -1, below, 0.0)


class _Triplets(FeatureLoss):
    """A loss of anchors that are not nearer to a positive than to a negative by a margin."""

    tensors = ("anchor", "positive", "negative")


@loss
class DistributedTripletMarginLoss(_Triplets):
    """The hinge loss of anchors that are not nearer to a positive: ``torch.nn.TripletMarginLoss`` in blocks."""

    margin: Annotated[Number, positive] = 1.0
    p: Number = 2.0
    eps: Number = 1e-6
    swap: Flag = False
    reduction: Reduction = "mean"
    function = staticmethod(F.triplet_margin_loss)
    shapes = (
        "Three tensors ``(*, D)`` of equal shapes on each worker, in any blocks of any dimension. With "
        "reduction='none' the result is the block of the losses ``(*)``, on the workers with the first features."
    )

    def prepare(self) -> None:
        super().prepare()
        self._norms = BlockNorms(self.grid, self.grid.dim - 1, self.p) if self._splits else None

    def losses_over_workers(self, *tensors: torch.Tensor) -> torch.Tensor:
        anchor, positive, negative = tensors
        assert self._norms is not None
        pairs = [(anchor, positive), (anchor, negative), *([(positive, negative)] if self.swap else [])]
        near, far, *swapped = self._norms(*(x - y + self.eps for x, y in pairs))
        for distance in swapped:
            far = torch.minimum(far, distance)
        return self.first((self.margin + near - far).clamp_min(0))


@loss
class DistributedTripletMarginWithDistanceLoss(_Triplets):
    """The triplet margin loss with any distance: ``torch.nn.TripletMarginWithDistanceLoss`` in blocks.

    ``distance_function`` is called on each worker's blocks. It must be the same function on all ranks, without
    parameters, and compute each row by itself. Default: the Euclidean distance.
    """

    _: KW_ONLY
    distance_function: Annotated[Distance, must(callable, "be callable", TypeError)] | None = None
    margin: Annotated[Number, positive] = 1.0
    swap: Flag = False
    reduction: Reduction = "mean"
    function = staticmethod(F.triplet_margin_with_distance_loss)
    whole = "distance_function is called on each worker's blocks"
    shapes = (
        "Three tensors ``(*, D)`` of equal shapes on each worker, in any blocks of all dimensions but the last one. "
        "With reduction='none' the result is the block of the losses, of the shape that the distance has."
    )

    def losses(self, reduction: str, *tensors: torch.Tensor) -> torch.Tensor:
        losses = super().losses("none", *tensors)
        self._losses = losses.numel()
        return losses if reduction == "none" else losses.sum()

    def count(self, *tensors: torch.Tensor) -> torch.Tensor | float:
        return float(self._losses)

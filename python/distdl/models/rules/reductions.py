"""Reductions of dimensions: sums, means, extrema, losses."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from distdl import operators
from distdl.models.capture.recording import Node, Run, Value
from distdl.models.operations.failures import deferring
from distdl.models.operations.operation import InputSpec, NoRuleError, Operation, Sharded, Workers
from distdl.models.operations.placement import Blocks
from distdl.models.operations.table import argument, bound, broadcast_spec, in_blocks, local, rule_for, same, whole
from distdl.models.rules.checks import check_indices
from distdl.models.rules.pointwise import elementwise
from distdl.nn.kernels.logsumexp import along_axis
from distdl.nn.loss.classes import gather_or_zero

PartialSum = Callable[..., torch.Tensor]
"""From a worker's regions of the inputs to the sums of its block."""


def reduced_dims(node: Node) -> tuple[list[int], bool]:
    """The dimensions that are reduced, and whether they are kept with size 1."""
    n = len(node.inputs[0].shape)
    position = 2 if node.key in _DIM_BEHIND_ANOTHER else 1
    default = {"mode": -1, "kthvalue": -1, "linalg_matrix_norm": (-2, -1)}.get(node.key)
    dim = argument(node, position, "dim", node.kwargs.get("axis", default))
    if dim is None or isinstance(dim, bool) or (isinstance(dim, list | tuple) and not dim):
        dims = list(range(n))
    else:
        dims = sorted({d % n for d in (dim if isinstance(dim, list | tuple) else [dim])} if n else set())
    kept = len(node.outputs[0].shape) == n and n > 0
    return dims, kept


_DIM_BEHIND_ANOTHER = ("kthvalue", "linalg_matrix_norm", "linalg_norm", "linalg_vector_norm", "nanquantile", "norm",
                       "quantile")  # fmt: skip
"""Functions with another argument between the tensor and the dimensions."""


@rule_for(
    "all", "amax", "amin", "aminmax", "any", "argmax", "argmin", "count_nonzero", "kthvalue", "linalg_matrix_norm",
    "linalg_norm", "linalg_vector_norm", "logsumexp", "max", "median", "min", "mode", "nanmean", "nanmedian",
    "nanquantile", "nansum", "norm", "prod", "quantile", "special_logsumexp", "std", "std_mean", "var", "var_mean",
)  # fmt: skip
def left_over(node: Node) -> Operation:
    """The dimensions that are not reduced."""
    if len(node.inputs) > 1:
        if node.key not in ("max", "min"):
            raise NoRuleError(f"{node.key} with a tensor of parameters")
        return elementwise(node)  # of two tensors
    dims, kept = reduced_dims(node)
    shape, n = node.outputs[0].shape, len(node.inputs[0].shape)
    left = [d for d in range(n) if kept or d not in dims]
    spec = tuple(None if d in dims else Sharded(left.index(d)) for d in range(n))
    call = node.as_function()
    splittable = frozenset(d for d in range(len(shape)) if not kept or d not in dims)
    return Operation(shape, (spec,), lambda workers: call, splittable)


@rule_for("sum", "mean", takes="input dim keepdim dtype")
def total(node: Node) -> Operation:
    """Any dimension: the workers' sums are summed."""
    x = node.inputs[0]
    dims, kept = reduced_dims(node)
    dtype = node.kwargs.get("dtype")
    count = math.prod(x.shape[d] for d in dims) if node.key == "mean" else 1
    part: PartialSum = lambda x: torch.sum(x, dims, keepdim=True, dtype=dtype)  # noqa: E731
    return summed(node, x.shape, [same(len(x.shape))], part, dims, kept, lambda x: x / count if count != 1 else x)


def summed(
    node: Node,
    shape: Sequence[int],
    specs: Sequence[InputSpec],
    part: PartialSum | None,
    dims: Sequence[int],
    kept: bool,
    finish: Callable[[torch.Tensor], torch.Tensor],
    part_of: Callable[[Workers], PartialSum] | None = None,
) -> Operation:
    """An operation that sums over dimensions of a space.

    Args:
        shape: of the space.
        part: computes the sums of a block, with size 1 in these dimensions.
        kept: whether the result keeps these dimensions.
        finish: computes the result from the sums of all blocks.
        part_of: makes this function for workers that communicate within it. Constructing is collective over them.
    """
    call = deferring(node.as_function(), node)

    def make(workers: Workers) -> Run:
        split = [d for d in dims if workers.grid.shape[d] > 1]
        if not split:
            return call
        add = operators.sum_reduce(workers.grid, workers.grid.first_along(split))
        member = workers.rank in _first(workers, split).ranks
        of_block = part_of(workers) if part_of is not None else deferring(part, node) if part is not None else call

        def run(*inputs: torch.Tensor) -> torch.Tensor:
            result = add(of_block(*inputs))
            if not member:
                return result
            result = finish(result)
            return result if kept else result.reshape([m for d, m in enumerate(result.shape) if d not in dims])

        return run

    def placements(workers: Workers) -> Blocks:
        first = _first(workers, [d for d in dims if workers.grid.shape[d] > 1])
        block_sizes = [(1,) if d in dims else sizes for d, sizes in enumerate(first.block_sizes)]
        return Blocks(first.ranks, tuple(c for d, c in enumerate(block_sizes) if kept or d not in dims))

    kept_dims = frozenset(range(len(shape)))
    return Operation(tuple(shape), tuple(specs), in_blocks(make, call), kept_dims, placements=placements)


@rule_for("binary_cross_entropy", "binary_cross_entropy_with_logits", "hinge_embedding_loss", "huber_loss", "kl_div",
          "l1_loss", "margin_ranking_loss", "mse_loss", "poisson_nll_loss", "smooth_l1_loss",
          "soft_margin_loss")  # fmt: skip
def elementwise_loss(node: Node) -> Operation:
    """Any dimension: the workers' sums are summed."""
    shape = torch.broadcast_shapes(*(value.shape for value in node.inputs))
    n = len(shape)
    specs = [broadcast_spec(value, shape) for value in node.inputs]
    each, how = _each(node)
    if how == "none":
        return local(node, specs)
    if how == "mean" and node.key in _WEIGHTED_MEANS and (weight := bound(node).get("weight")) is not None:
        return _weighted_mean(node, each, weight, shape)
    rows = (*node.inputs[0].shape, 1)[0]
    count = {"mean": math.prod(shape), "batchmean": rows, "sum": 1}[how]
    part: PartialSum = lambda *inputs: each(*inputs).sum().reshape([1] * n)  # noqa: E731
    return summed(node, shape, specs, part, range(n), False, lambda x: x / count)


_WEIGHTED_MEANS = ("l1_loss", "mse_loss")
"""Losses that torch divides by the sum of the weights."""


def _weighted_mean(node: Node, each: PartialSum, weight: Value, shape: Sequence[int]) -> Operation:
    """The sum of all workers' losses over the sum of all workers' weights."""
    if weight.shape != tuple(shape):
        raise NoRuleError(f"{node.key} with a target that is larger than its weights")
    slot, n = node.inputs.index(weight), len(shape)

    def part(*inputs: torch.Tensor) -> torch.Tensor:
        return torch.stack([each(*inputs).sum(), inputs[slot].sum()]).reshape([1] * (n - 1) + [2])

    specs = [broadcast_spec(value, shape) for value in node.inputs]
    if n == 0:
        return local(node, specs)
    return summed(node, shape, specs, part, range(n), False, lambda sums: sums[..., :1] / sums[..., 1:])


@rule_for("cosine_embedding_loss", "multi_margin_loss", "multilabel_margin_loss", "multilabel_soft_margin_loss",
          "triplet_margin_loss")  # fmt: skip
def loss_of_rows(node: Node) -> Operation:
    """Any dimension but the last dimension, whose features belong together; the workers' sums are summed."""
    x = node.inputs[0].shape
    shape, n = x[:-1], len(x) - 1
    weight = bound(node).get("weight")
    specs: list[InputSpec] = []
    for value in node.inputs:
        if value is weight and len(value.shape) == 1:  # for each class
            specs.append((None,))
        elif value.shape == x:
            specs.append((*same(n), None))
        elif value.shape == shape:
            specs.append(same(n))
        else:
            raise NoRuleError(f"{node.key} of tensors of different shapes")
    each, how = _each(node)
    if how == "none":
        return local(node, specs)
    if n == 0:
        return local(node, [whole(value) for value in node.inputs])
    count = math.prod(shape) if how == "mean" else 1
    part: PartialSum = lambda *inputs: each(*inputs).sum().reshape([1] * n)  # noqa: E731
    return summed(node, shape, specs, part, range(n), False, lambda x: x / count)


@rule_for("ctc_loss")
def loss_of_sequences(node: Node) -> Operation:
    """The batch, if it is a dimension of all tensors; each step goes over all classes and needs the step before it."""
    each, how = _each(node)
    scores, targets, *lengths = node.inputs
    if len(scores.shape) < 3 or len(targets.shape) < 2 or len(lengths) < 2:
        return local(node, [whole(value) for value in node.inputs], range(len(node.outputs[0].shape)))
    specs: list[InputSpec] = [(None, Sharded(0), None), (Sharded(0), None), same(1), same(1)]
    if how == "none":
        return local(node, specs)
    count = scores.shape[1] if how == "mean" else 1

    def part(*inputs: torch.Tensor) -> torch.Tensor:
        losses = each(*inputs) if inputs[0].shape[1] else inputs[0].sum((0, 2))  # torch refuses an empty batch
        return (losses / inputs[3].clamp(min=1).to(losses) if how == "mean" else losses).sum(0, keepdim=True)

    return summed(node, scores.shape[1:2], specs, part, [0], False, lambda x: x / count)


@rule_for("cross_entropy", "nll_loss")
def loss_of_classes(node: Node) -> Operation:
    """Any dimension; classes, if they are in blocks. The workers' sums of losses and of weights are summed."""
    x, target = node.inputs[:2]
    n = len(x.shape)
    classes = min(n - 1, 1)
    shape = x.shape[:classes] + x.shape[classes + 1 :]
    of_scores: InputSpec = tuple(None if d == classes else Sharded(d - (d > classes)) for d in range(n))
    has_probabilities = target.dtype.is_floating_point
    specs = [of_scores, of_scores if has_probabilities else same(n - 1), *map(whole, node.inputs[2:])]
    each, how = _each(node)
    split_classes = None if has_probabilities or node.key == "nll_loss" else _of_split_classes(node, classes, how)
    if how == "none":
        return replace(local(node, specs), summed=split_classes)
    ignored = bound(node)["ignore_index"]

    def part(scores: torch.Tensor, target: torch.Tensor, *weight: torch.Tensor) -> torch.Tensor:
        losses = each(scores.contiguous(), target, *weight)  # torch cannot differentiate others
        if has_probabilities:
            weights = torch.ones_like(losses)
        else:
            counts = target != ignored
            weights = weight[0][target.where(counts, 0)] * counts if weight else counts.to(losses.dtype)
        return torch.stack([losses.sum(), weights.sum()]).reshape([1] * (n - 2) + [2])

    def finish(sums: torch.Tensor) -> torch.Tensor:
        return sums[..., :1] / sums[..., 1:] if how == "mean" else sums[..., :1]

    return replace(summed(node, shape, specs, part, range(n - 1), False, finish), summed=split_classes)


def _of_split_classes(node: Node, dim: int, how: str) -> Operation:
    """The cross entropy with classes in blocks: workers exchange the sums of exponentials, and not the scores."""
    x, n = node.inputs[0], len(node.inputs[0].shape)
    options, classes = bound(node), x.shape[dim]
    ignored, smoothed = options["ignore_index"], options["label_smoothing"] / classes
    specs: list[InputSpec] = [same(n), tuple(Sharded(d) for d in range(n) if d != dim), *map(whole, node.inputs[2:])]

    def part_of(workers: Workers) -> PartialSum:
        over = along_axis(workers.grid, dim)
        start, stop = workers.block[dim]

        def part(x: torch.Tensor, target: torch.Tensor, *weight: torch.Tensor) -> torch.Tensor:
            check_indices(target, classes, ignored)  # before the workers communicate
            shift, log_sum = over.log_sum_exp(x)
            index = target.unsqueeze(dim)
            counted = index != ignored
            here = counted & (index >= start) & (index < stop)
            weights = weight[0][index.where(here, 0)] if weight else torch.ones_like(log_sum)
            own = gather_or_zero(x, dim, (index - start).where(here, 0))
            losses = torch.where(here, (log_sum - (own - shift)) * weights, 0.0) * (1 - options["label_smoothing"])
            if smoothed:
                of_class = weight[0][start:stop] if weight else x.new_ones(stop - start)
                of_class = of_class.reshape([-1 if d == dim else 1 for d in range(n)])
                spread = ((log_sum - (x - shift)) * of_class).sum(dim, keepdim=True)
                losses = losses + torch.where(counted, spread * smoothed, 0.0)
            if how == "none":
                return losses
            return torch.stack([losses.sum(), (weights * here).sum()]).reshape([1] * (n - 1) + [2])

        return deferring(part, node)

    def finish(sums: torch.Tensor) -> torch.Tensor:
        return sums if how == "none" else sums[..., :1] / sums[..., 1:] if how == "mean" else sums[..., :1]

    operation = summed(node, x.shape, specs, None, [dim] if how == "none" else range(n), False, finish, part_of)

    def received(blocks: Blocks) -> int:  # a largest element and a sum, and as many in the backward pass
        return 2 * (blocks.splits[dim] - 1) * math.prod(x.shape) // max(1, classes)

    return replace(operation, received=received)


def _each(node: Node) -> tuple[PartialSum, str]:
    """A loss without a reduction, and its reduction."""
    arguments = bound(node)
    if arguments.get("size_average") is not None or arguments.get("reduce") is not None:
        raise NoRuleError(f"{node.key} with size_average or reduce; use reduction")
    if [value for value in arguments.values() if isinstance(value, Value)] != node.inputs:
        raise NoRuleError(f"{node.key} with arguments by name in another order")
    how = str(arguments["reduction"])
    options = {name: option for name, option in arguments.items() if name not in ("size_average", "reduce")}
    each: Any = replace(node, args=(), kwargs=options | {"reduction": "none"}).as_function()
    return each, how


def _first(workers: Workers, split: list[int]) -> Blocks:
    grid = workers.grid.first_along(split)
    block_sizes = [(sum(sizes),) if d in split else sizes for d, sizes in enumerate(workers.blocks.block_sizes)]
    return Blocks(grid.ranks, tuple(block_sizes))

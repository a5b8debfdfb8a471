"""Results of ranks without work. They stay connected to the graph, so that backward passes include these ranks."""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterable

import torch

from distdl import _core
from distdl.parameters.transport import zero_of
from distdl.torch_compat.trees import tree_map


def connect_to(x: torch.Tensor, weight: torch.Tensor, *others: torch.Tensor) -> torch.Tensor:
    """Connect x to parameters in the graph, as if it were ``x @ weight + others``.

    This rank has no part of that result, but takes part in the communication of the backward passes of ranks that have,
    also of higher derivatives.
    """
    result = x + zero_of(x) * zero_of(weight)
    for other in others:
        result = result + zero_of(other)
    return result


def empty_result(x: torch.Tensor) -> torch.Tensor:
    """The result for a tensor of zero volume, whose gradient depends on the tensor as on other ranks.

    So this rank can differentiate the gradient, too; the gradient of a copy would have no graph.
    """
    return x.exp() if x.is_floating_point() or x.is_complex() else x.clone()


def require_grad_together(x: torch.Tensor, agreement: _core.LayerAgreement | None) -> torch.Tensor:
    """Let x require gradients if a tensor of any rank does: before functions whose derivatives communicate."""
    if agreement is None or not agreement.requires_grad or x.requires_grad or not torch.is_grad_enabled():
        return x
    return x.detach().requires_grad_()


def connected(results: Iterable[object], others: Iterable[object]) -> list[object]:
    """Connect results of floating point to tensors that they may not depend on, in all derivatives.

    On other ranks they may depend on them, and all ranks take part in the communication of backward passes.
    """
    zeros = [zero_of(x) for x in others if isinstance(x, torch.Tensor) and x.requires_grad and not x.is_complex()]
    if not zeros:
        return list(results)
    # 0, without constant derivatives.
    zero = torch.expm1(functools.reduce(operator.add, zeros))
    return [
        result + zero.to(result.dtype) if isinstance(result, torch.Tensor) and result.is_floating_point() else result
        for result in results
    ]


def empty_of(x: torch.Tensor) -> torch.Tensor:
    """An empty view of a tensor with the same number of dimensions, in the same graph."""
    return x.flatten()[:0].reshape([0] * max(x.dim(), 1))


def reshape_empty(results: object, dims: int) -> object:
    """Reshape empty results to `dims` dimensions; keep the size of the first."""

    def reshaped(result: object) -> object:
        if not isinstance(result, torch.Tensor) or result.numel() > 0 or result.dim() == dims or dims == 0:
            return result
        return result.reshape(result.shape[0] if dims > 1 else 0, *[0] * (dims - 1))

    return tree_map(reshaped, results)


def differentiable(args: tuple[object, ...]) -> tuple[object, ...]:
    """The arguments of a call, with copies of inference tensors.

    Autograd neither saves an inference tensor, nor lets it or its views require gradients: this rank alone would raise.
    """

    def clone_inference(x: object) -> object:
        return x.clone() if isinstance(x, torch.Tensor) and x.is_inference() else x

    return tuple(clone_inference(x) if isinstance(x, torch.Tensor) else tree_map(clone_inference, x) for x in args)


def recompute_together(result: object) -> object:
    """The result of a layer under hooks on saved tensors: each rank saves a tensor after all communication.

    Non-reentrant activation checkpointing recomputes a call only on ranks that saved a tensor, and up to their last
    saved tensor. So all ranks communicate again.
    """

    def saved(x: object) -> object:
        asks = isinstance(x, torch.Tensor) and x.requires_grad
        return x * x.new_ones(()) if asks else x  # type: ignore[attr-defined]

    return tree_map(saved, result)

"""Results of ranks without work. They stay connected to the graph, so that backward passes include these ranks."""

from __future__ import annotations

import contextlib
import functools
import operator
from collections.abc import Iterable

import torch
from torch.utils._pytree import tree_map

from distdl import _core
from distdl.parameters.transport import zero_of


def tied(x: torch.Tensor, weight: torch.Tensor, *others: torch.Tensor) -> torch.Tensor:
    """x, connected with parameters as the result of a layer is that is linear in input and weight.

    Other ranks compute ``x`` times ``weight`` plus ``others``. This rank has no part of that, but it has to take part
    in the communication of their backward passes, also of derivatives of derivatives.
    """
    result = x + zero_of(x) * zero_of(weight)
    for other in others:
        result = result + zero_of(other)
    return result


def nothing_from(x: torch.Tensor) -> torch.Tensor:
    """The result for a tensor of zero volume, whose gradient depends on the tensor as on other ranks.

    So this rank, too, can differentiate the gradient; that of a copy would have no graph.
    """
    return x.exp() if x.is_floating_point() or x.is_complex() else x.clone()


def joining(x: torch.Tensor, agreement: _core.LayerAgreement | None) -> torch.Tensor:
    """x, which requires gradients if anything of any rank does: before a function whose derivatives communicate."""
    if agreement is None or not agreement.requires_grad or x.requires_grad or not torch.is_grad_enabled():
        return x
    return x.detach().requires_grad_()


def connected(results: Iterable[object], others: Iterable[object]) -> list[object]:
    """Results, those of floating point connected with tensors that they may not depend on, in all derivatives.

    On other ranks they may depend on them, and the communication of the backward passes takes all ranks.
    """
    zeros = [
        zero_of(one) for one in others if isinstance(one, torch.Tensor) and one.requires_grad and not one.is_complex()
    ]
    if not zeros:
        return list(results)
    # 0, of which no derivative is constant.
    zero = torch.expm1(functools.reduce(operator.add, zeros))
    return [
        one + zero.to(one.dtype) if isinstance(one, torch.Tensor) and one.is_floating_point() else one
        for one in results
    ]


def none_of(x: torch.Tensor) -> torch.Tensor:
    """None of the elements of a tensor, in its number of dimensions and in its graph."""
    return x.flatten()[:0].reshape([0] * max(x.dim(), 1))


def nothing_of(results: object, dims: int) -> object:
    """Results, those of zero volume with so many dimensions, of which the first keeps its size."""

    def reshaped(one: object) -> object:
        if not isinstance(one, torch.Tensor) or one.numel() > 0 or one.dim() == dims or dims == 0:
            return one
        return one.reshape(one.shape[0] if dims > 1 else 0, *[0] * (dims - 1))

    return tree_map(reshaped, results)


def differentiable(args: tuple[object, ...]) -> tuple[object, ...]:
    """The arguments of a call, with copies of tensors that were made in inference mode.

    Autograd saves no such tensor, and lets neither it nor its views ask for gradients: this rank alone would raise.
    """

    def copied(one: object) -> object:
        return one.clone() if isinstance(one, torch.Tensor) and one.is_inference() else one

    return tuple(copied(one) if isinstance(one, torch.Tensor) else tree_map(copied, one) for one in args)


def ask_for_gradients(results: object) -> None:
    """Let the results require gradients where those of other ranks do, because of what these ranks passed.

    So ``backward()`` can be called on every rank, as it is on the others.
    """
    for one in results if isinstance(results, tuple) else (results,):
        if isinstance(one, torch.Tensor) and not one.requires_grad and (one.is_floating_point() or one.is_complex()):
            one.requires_grad_(True)


def unseen_by_hooks() -> contextlib.AbstractContextManager[object]:
    """A context in which hooks from around do not see the tensors that autograd saves.

    Non-reentrant activation checkpointing counts what a call saves. A set-up happens in the first call alone.
    """
    if torch._C._autograd._top_saved_tensors_default_hooks(True) is None:
        return contextlib.nullcontext()
    return torch.autograd.graph.saved_tensors_hooks(lambda saved: saved, lambda saved: saved)


def recomputed(result: object) -> object:
    """The result of a layer, for which each rank saves a tensor where hooks look at the tensors that autograd saves.

    Non-reentrant activation checkpointing computes a call again only on ranks that saved something, and only up to what
    they saved last. With a tensor saved behind all communication, the ranks communicate together there.
    """
    if torch._C._autograd._top_saved_tensors_default_hooks(True) is None:
        return result

    def saved(one: object) -> object:
        asks = isinstance(one, torch.Tensor) and one.requires_grad
        return one * one.new_ones(()) if asks else one  # type: ignore[attr-defined]

    return tree_map(saved, result)

"""The norm of all gradients of a model in blocks, and clipping by it."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from distdl.collective.comparison import gather_or_raise
from distdl.collective.construction import constructing
from distdl.collective.grid import Grid
from distdl.nn.declared import ranks_of
from distdl.nn.owners import layouts_of_parameters, model_call
from distdl.nn.precision import wide
from distdl.parameters.layout import Layout

Norms = NDArray[np.float64]


@torch.no_grad()
@model_call
def clip_grad_norm_(
    model: torch.nn.Module | torch.Tensor | Iterable[torch.Tensor],
    max_norm: float,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
) -> torch.Tensor:
    """Scale the gradients of a model in place, so that the norm of all of them together is at most ``max_norm``.

    It is the norm of the sequential model: each number counts once, however the parameters live
    (:func:`distdl.parameter_layout`), and all ranks scale by the same factor. ``torch.nn.utils.clip_grad_norm_`` would
    take the norm of what lives on each rank.

    Args:
        model: a model, its parameters, or some of them.
        max_norm: the largest norm.
        norm_type: of the p-norm: any number, or ``inf``.
        error_if_nonfinite: whether to raise where the norm is NaN or infinite.

    Returns:
        The norm of the gradients before, a tensor without dimensions, on every rank the same bits. It is 0 where
        nothing has a gradient. A rank outside of the communicator that the partitions come from gets that of its own
        gradients.

    Raises:
        RuntimeError: on all ranks, if the norm is not finite and ``error_if_nonfinite`` is set.
        ValueError: on all ranks, if they pass other arguments, or if the gradients of a parameter that no layer
            declared differ among the ranks: nobody could tell whether to count or to add them. A layer of torch that
            works on blocks belongs into :class:`distdl.nn.Local`.

    Collective over the communicator that the partitions come from.

    Source: `torch.nn.utils.clip_grad_norm_
    <https://docs.pytorch.org/docs/stable/generated/torch.nn.utils.clip_grad_norm_.html>`__.
    """
    parameters = _parameters_of(model)
    layouts = layouts_of_parameters(parameters)
    everyone = ranks_of(layout for layout in layouts if layout is not None)
    if not everyone.known:
        filled = [parameter for parameter in parameters if parameter.numel()]
        return torch.nn.utils.clip_grad_norm_(filled, max_norm, norm_type, error_if_nonfinite)
    options = {"max_norm": max_norm, "norm_type": norm_type, "error_if_nonfinite": error_if_nonfinite}
    with constructing("clip_grad_norm_", {"ranks": everyone}, options | {"parameters": len(parameters)}):
        p = float(norm_type)
        options["max_norm"] = float(max_norm)
    total = _norm(parameters, layouts, p, everyone)
    if error_if_nonfinite and not np.isfinite(total):
        raise RuntimeError(
            f"clip_grad_norm_: the norm of order {p} of the gradients of {len(parameters)} parameters is {total}, so "
            "they cannot be clipped. To scale them by it anyway, set error_if_nonfinite=False"
        )
    dtypes = [torch.empty(0, dtype=parameter.dtype, device="cpu").abs().dtype for parameter in parameters]
    norm = torch.tensor(total, dtype=functools.reduce(torch.promote_types, dtypes), device=parameters[0].device)
    torch.nn.utils.clip_grads_with_norm_(parameters, max_norm, norm)
    return norm


def _parameters_of(model: torch.nn.Module | torch.Tensor | Iterable[torch.Tensor]) -> list[torch.Tensor]:
    if isinstance(model, torch.Tensor):
        return [model]
    given = model.parameters() if isinstance(model, torch.nn.Module) else model
    parameters = list(given) if isinstance(given, Iterable) else [given]
    if wrong := [type(one).__name__ for one in parameters if not isinstance(one, torch.Tensor)]:
        raise TypeError(f"clip_grad_norm_: model is, or has, a {wrong[0]}; it has to be a model, or its parameters")
    return parameters


def _norm(parameters: Sequence[torch.Tensor], layouts: Sequence[Layout | None], p: float, everyone: Grid) -> float:
    """The norm of the whole gradients, from the norms of what each rank has. Collective over everyone."""
    undeclared = sum(layout is None for layout in layouts)

    def mine() -> bytes:
        own = [_own_norm(parameter, layout, p) for parameter, layout in zip(parameters, layouts, strict=True)]
        declared = [norm for norm, layout in zip(own, layouts, strict=True) if layout is not None]
        # For p = 0 torch counts the tensors that are not 0, so that each of them needs a place of its own.
        first = declared if p == 0 else [_together(declared, p)]
        others = [norm for norm, layout in zip(own, layouts, strict=True) if layout is None]
        return np.array([*first, *others]).tobytes()

    views = np.array([np.frombuffer(view) for view in gather_or_raise("clip_grad_norm_", everyone, mine)])
    first = views.shape[1] - undeclared
    columns = [_together(column.tolist(), p) for column in views.T[:first]]
    columns += [_agreed(column, everyone) for column in views.T[first:]]
    norm = _together(columns, p)
    return 0.0 if norm == _ABSENT else norm


_ABSENT = -1.0  # in place of a norm


def _own_norm(parameter: torch.Tensor, layout: Layout | None, p: float) -> float:
    """The norm of what this rank contributes of a gradient: nothing where another rank counts it."""
    gradient = parameter.grad
    if gradient is None or gradient.numel() == 0 or (layout is not None and not layout.storage[0].active):
        return _ABSENT
    return float(torch.linalg.vector_norm(wide(gradient), p))


def _together(norms: Iterable[float], p: float) -> float:
    """The norm of parts, from the norms of the parts; always added in the same order."""
    present = [norm for norm in norms if norm != _ABSENT]
    if not present:
        return _ABSENT
    return float(torch.linalg.vector_norm(torch.tensor(present, dtype=torch.float64, device="cpu"), p))


def _agreed(norms: Norms, everyone: Grid) -> float:
    """The norm of a gradient that no layer declared: the same on all ranks, or none on all ranks but one."""
    nonzero = [float(norm) for norm in norms if norm not in (_ABSENT, 0.0)]
    if len(nonzero) == 1 or (len(set(map(repr, nonzero))) == 1 and len(nonzero) == len(norms)):
        return nonzero[0]
    if not nonzero:
        return float(max(norms))
    shown = {rank: norm for rank, norm in zip(everyone.ranks, norms.tolist(), strict=True) if norm != _ABSENT}
    raise ValueError(
        f"clip_grad_norm_: a parameter that no layer declared has gradients of the norms {shown} on the ranks, and it "
        "is unknown whether they are parts of one gradient. Make its layer by distdl.nn.Local, or declare the parameter"
    )

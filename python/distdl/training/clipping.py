"""The norm of all gradients of a model in blocks, and clipping by it."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from distdl.modules.layout_lookup import layouts_of_parameters, model_call
from distdl.modules.layouts import ranks_of
from distdl.nn.base.precision import wide
from distdl.parameters.layout import Layout
from distdl.partitions.comparison import gather_or_raise
from distdl.partitions.construction import constructing
from distdl.partitions.grid import Grid

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

    It is the norm of the sequential model, where ``torch.nn.utils.clip_grad_norm_`` takes the norm of each rank's
    blocks. All ranks scale by the same factor.

    Args:
        model: a model, its parameters, or some of them.
        max_norm: the largest norm.
        norm_type: the order p of the norm: any number, or ``inf``.
        error_if_nonfinite: whether to raise if the norm is NaN or infinite.

    Returns:
        The norm of the gradients before, of shape [], with the same bits on all ranks; 0 without gradients. A rank
        outside of the communicator that the partitions come from gets the norm of its own gradients.

    Raises:
        RuntimeError: on all ranks, if the norm is not finite and ``error_if_nonfinite`` is set.
        ValueError: on all ranks, if their arguments differ, or if the gradients of a parameter that no layer declared
            differ: put a layer of torch that works on blocks into :class:`distdl.nn.Local`.

    Collective over the communicator that the partitions come from.

    Source: `torch.nn.utils.clip_grad_norm_
    <https://docs.pytorch.org/docs/stable/generated/torch.nn.utils.clip_grad_norm_.html>`__.
    """
    parameters = _clipped_tensors(model)
    layouts = layouts_of_parameters(parameters)
    all_ranks = ranks_of(layout for layout in layouts if layout is not None)
    if not all_ranks.known:
        nonempty = [parameter for parameter in parameters if parameter.numel()]
        return torch.nn.utils.clip_grad_norm_(nonempty, max_norm, norm_type, error_if_nonfinite)
    options = {"max_norm": max_norm, "norm_type": norm_type, "error_if_nonfinite": error_if_nonfinite}
    with constructing("clip_grad_norm_", {"ranks": all_ranks}, options | {"parameters": len(parameters)}):
        p = float(norm_type)
        options["max_norm"] = float(max_norm)
    total = _norm_of_all(parameters, layouts, p, all_ranks)
    if error_if_nonfinite and not np.isfinite(total):
        raise RuntimeError(
            f"clip_grad_norm_: the norm of order {p} of the gradients of {len(parameters)} parameters is {total}, so "
            "they cannot be clipped. To scale them by it anyway, set error_if_nonfinite=False"
        )
    dtypes = [torch.empty(0, dtype=parameter.dtype, device="cpu").abs().dtype for parameter in parameters]
    norm = torch.tensor(total, dtype=functools.reduce(torch.promote_types, dtypes), device=parameters[0].device)
    torch.nn.utils.clip_grads_with_norm_(parameters, max_norm, norm)
    return norm


def _clipped_tensors(model: torch.nn.Module | torch.Tensor | Iterable[torch.Tensor]) -> list[torch.Tensor]:
    if isinstance(model, torch.Tensor):
        return [model]
    model = model.parameters() if isinstance(model, torch.nn.Module) else model
    parameters = list(model) if isinstance(model, Iterable) else [model]
    if wrong := [type(item).__name__ for item in parameters if not isinstance(item, torch.Tensor)]:
        raise TypeError(f"clip_grad_norm_: model is, or has, a {wrong[0]}; it has to be a model, or its parameters")
    return parameters


def _norm_of_all(
    parameters: Sequence[torch.Tensor], layouts: Sequence[Layout | None], p: float, all_ranks: Grid
) -> float:
    """The norm of the whole gradients. Collective over all_ranks."""
    undeclared = sum(layout is None for layout in layouts)

    def local_norms() -> bytes:
        norms = [_local_norm(parameter, layout, p) for parameter, layout in zip(parameters, layouts, strict=True)]
        declared = [norm for norm, layout in zip(norms, layouts, strict=True) if layout is not None]
        # For p = 0 torch counts the tensors that are not 0, so each of them is sent.
        first = declared if p == 0 else [_combined_norm(declared, p)]
        undeclared_norms = [norm for norm, layout in zip(norms, layouts, strict=True) if layout is None]
        return np.array([*first, *undeclared_norms]).tobytes()

    views = np.array([np.frombuffer(view) for view in gather_or_raise("clip_grad_norm_", all_ranks, local_norms)])
    first = views.shape[1] - undeclared
    columns = [_combined_norm(column.tolist(), p) for column in views.T[:first]]
    columns += [_undeclared_norm(column, all_ranks) for column in views.T[first:]]
    norm = _combined_norm(columns, p)
    return 0.0 if norm == _NO_NORM else norm


_NO_NORM = -1.0  # in place of a norm, where a rank has no gradient


def _local_norm(parameter: torch.Tensor, layout: Layout | None, p: float) -> float:
    """The norm of this rank's block of a gradient; _NO_NORM if another rank counts it."""
    gradient = parameter.grad
    if gradient is None or gradient.numel() == 0 or (layout is not None and not layout.storage[0].active):
        return _NO_NORM
    return float(torch.linalg.vector_norm(wide(gradient), p))


def _combined_norm(norms: Iterable[float], p: float) -> float:
    """The norm of a tensor from the norms of its parts, added in this order."""
    present = [norm for norm in norms if norm != _NO_NORM]
    if not present:
        return _NO_NORM
    return float(torch.linalg.vector_norm(torch.tensor(present, dtype=torch.float64, device="cpu"), p))


def _undeclared_norm(norms: Norms, all_ranks: Grid) -> float:
    """The norm of a gradient that no layer declared: equal on all ranks, or nonzero on exactly one."""
    nonzero = [float(norm) for norm in norms if norm not in (_NO_NORM, 0.0)]
    if len(nonzero) == 1 or (len(set(map(repr, nonzero))) == 1 and len(nonzero) == len(norms)):
        return nonzero[0]
    if not nonzero:
        return float(max(norms))
    shown = {rank: norm for rank, norm in zip(all_ranks.ranks, norms.tolist(), strict=True) if norm != _NO_NORM}
    raise ValueError(
        f"clip_grad_norm_: a parameter that no layer declared has gradients of the norms {shown} on the ranks, and it "
        "is unknown whether they are parts of one gradient. Make its layer by distdl.nn.Local, or declare the parameter"
    )

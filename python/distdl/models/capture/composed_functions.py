"""Seldom functions of torch by others, which have rules."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence

import torch
import torch.nn.functional as F

from distdl.models.capture.recording import Arguments, Function
from distdl.torch_compat.trees import tree_leaves


def block_diag(*tensors: torch.Tensor) -> torch.Tensor:
    """``torch.block_diag``: each matrix with zeros on both sides."""
    matrices = [torch.atleast_2d(x) for x in tensors]
    width, start, rows = sum(x.shape[1] for x in matrices), 0, []
    dtype = functools.reduce(torch.promote_types, (x.dtype for x in matrices))
    for x in matrices:
        rows.append(F.pad(x.to(dtype), (start, width - start - x.shape[1])))
        start += x.shape[1]
    return torch.cat(rows)


def cartesian_prod(*tensors: torch.Tensor) -> torch.Tensor:
    """``torch.cartesian_prod`` by a grid."""
    if len(tensors) == 1:
        return tensors[0]
    return torch.stack([grid.flatten() for grid in torch.meshgrid(*tensors, indexing="ij")], -1)


def combinations(input: torch.Tensor, r: int = 2, with_replacement: bool = False) -> torch.Tensor:
    """``torch.combinations`` by the elements at their numbers."""
    run = itertools.combinations_with_replacement if with_replacement else itertools.combinations
    numbers = torch.tensor([*run(range(len(input)), r)], dtype=torch.int64, device=input.device)
    return input[numbers.view(-1, r)]


def multi_dot(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """``torch.linalg.multi_dot`` from the left, or from a vector at the right; torch seeks the cheapest order."""
    if tensors[-1].dim() == 1:
        return functools.reduce(lambda y, x: x @ y, reversed(tensors))
    return functools.reduce(torch.matmul, tensors)


def dist(input: torch.Tensor, other: torch.Tensor, p: float = 2) -> torch.Tensor:
    """``torch.dist`` by a norm."""
    return torch.linalg.vector_norm(input - other, p)


def pdist(input: torch.Tensor, p: float = 2.0) -> torch.Tensor:
    """``torch.pdist`` by the distances of all pairs."""
    rows, columns = torch.triu_indices(len(input), len(input), 1, device=input.device)
    return torch.cdist(input, input, p, "donot_use_mm_for_euclid_dist")[rows, columns]


def fill_diagonal_(input: torch.Tensor, fill_value: float, wrap: bool = False) -> torch.Tensor:
    """``torch.Tensor.fill_diagonal_`` by a mask."""
    if wrap and input.dim() == 2 and input.shape[0] > input.shape[1] + 1:
        raise NotImplementedError("fill_diagonal_ with wrap=True of a tall matrix")
    indices = torch.meshgrid(*(torch.arange(n, device=input.device) for n in input.shape), indexing="ij")
    is_diagonal = functools.reduce(torch.logical_and, (index == indices[0] for index in indices))
    return input.masked_fill_(is_diagonal, fill_value)


def vander(x: torch.Tensor, *, N: int | None = None) -> torch.Tensor:
    """``torch.linalg.vander`` by powers."""
    return (x.unsqueeze(-1) ** torch.arange(x.shape[-1] if N is None else N, device=x.device)).contiguous()


def put(input: torch.Tensor, index: torch.Tensor, source: torch.Tensor, accumulate: bool = False) -> torch.Tensor:
    """``torch.put`` by ``index_add`` or ``index_copy`` of the flat tensor."""
    run = torch.index_add if accumulate else torch.index_copy
    return run(input.flatten(), 0, index.flatten() % max(1, input.numel()), source.flatten()).view(input.shape)


def sum_to_size(input: torch.Tensor, *size: int | Sequence[int]) -> torch.Tensor:
    """``torch.Tensor.sum_to_size`` by a sum."""
    shape = [*size[0]] if isinstance(size[0], Sequence) else [*map(int, size)]  # type: ignore[arg-type]
    added = input.dim() - len(shape)
    dims = [*range(added), *(d + added for d, n in enumerate(shape) if n != input.shape[d + added])]
    return input.sum(dims, keepdim=True).view(shape) if dims else input


def constant_pad_nd(input: torch.Tensor, pad: Sequence[int], value: float = 0) -> torch.Tensor:
    """``torch.constant_pad_nd`` by the function that calls it."""
    return F.pad(input, [*pad], value=value)


def grid_sampler(
    input: torch.Tensor, grid: torch.Tensor, interpolation_mode: int, padding_mode: int, align_corners: bool
) -> torch.Tensor:
    """``torch.grid_sampler`` by the function that calls it."""
    mode = ("bilinear", "nearest", "bicubic")[interpolation_mode]
    return F.grid_sample(input, grid, mode, ("zeros", "border", "reflection")[padding_mode], align_corners)


def linear_cross_entropy(
    input: torch.Tensor,
    linear_weight: torch.Tensor,
    target: torch.Tensor,
    *,
    linear_bias: torch.Tensor | None = None,
    weight: torch.Tensor | None = None,
    reduction: str = "mean",
    ignore_index: int | None = None,
    label_smoothing: float = 0.0,
    options: object = None,
) -> torch.Tensor:
    """``torch.nn.functional.linear_cross_entropy`` by both; blocks are small, so that no chunks are needed."""
    if linear_weight.dim() > 2:
        raise NotImplementedError("linear_cross_entropy with a weight of more than two dimensions")
    ignored = -100 if ignore_index is None else ignore_index
    logits = F.linear(input, linear_weight, linear_bias)
    return F.cross_entropy(logits, target, weight, None, ignored, None, reduction, label_smoothing)


def of_tensors(key: str, args: Arguments) -> Function | None:
    """A function in place of ``torch.tensor`` of a list with tensors; None for other calls."""
    if key not in ("tensor", "as_tensor") or not args or not isinstance(args[0], list | tuple):
        return None
    return tensor if any(isinstance(leaf, torch.Tensor) for leaf in tree_leaves(args[0])) else None


def tensor(
    data: Sequence[object],
    dtype: torch.dtype | None = None,
    device: torch.device | None = None,
    requires_grad: bool = False,
    pin_memory: bool = False,
) -> torch.Tensor:
    """``torch.tensor`` of nested lists with tensors: a copy without a derivative."""
    if requires_grad or pin_memory:
        raise NotImplementedError("torch.tensor of tensors with requires_grad or pin_memory")

    def own(part: object) -> torch.Tensor:
        return part.detach() if isinstance(part, torch.Tensor) else torch.tensor(part, device=device)

    def stacked(part: object) -> torch.Tensor:
        if isinstance(part, list | tuple):
            return torch.stack([*map(stacked, part)])
        return own(part).to(device=device, dtype=kind)

    kind = dtype or functools.reduce(torch.promote_types, (own(part).dtype for part in tree_leaves(data)))
    return stacked(data)


COMPOSED: dict[str, Function] = {
    "_sparse_mm": torch.matmul, "block_diag": block_diag, "cartesian_prod": cartesian_prod,
    "chain_matmul": lambda *matrices: multi_dot(matrices), "combinations": combinations,
    "constant_pad_nd": constant_pad_nd, "dist": dist, "fill_diagonal": fill_diagonal_, "grid_sampler": grid_sampler,
    "linalg_multi_dot": multi_dot, "linalg_vander": vander, "linear_cross_entropy": linear_cross_entropy,
    "pdist": pdist, "put": put, "sum_to_size": sum_to_size,
}  # fmt: skip

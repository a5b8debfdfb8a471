"""The blocks in which parameters live, where a plan splits features, vocabularies or experts."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from distdl.models.operations.placement import Blocks, balanced_sizes
from distdl.models.plan.redistribution import ReadRegions
from distdl.models.plan.requested import COLUMNS, EXPERTS, ROWS, WHOLE, Request, request_for
from distdl.parameters.layout import Layout
from distdl.partitions.boxes import cut
from distdl.partitions.grid import Grid


def split_layouts(
    model: torch.nn.Module, requested: Mapping[str, Request], workers: Grid, kind: str
) -> dict[str, Layout]:
    """The layouts of the parameters that a plan splits into blocks, by name.

    A grid splits the last dimension of the result of a Linear or an Embedding; a word splits among all workers.

    Args:
        kind: of layouts, for blocks that several workers use.

    Raises:
        ValueError: for a word that splits no parameter, though it should.
    """
    layouts: dict[str, Layout] = {}
    of_tensor: dict[int, Layout] = {}
    met: set[str] = set()
    used: set[str] = set()
    for name, tensor in model.named_parameters(remove_duplicate=False):
        pattern, request = request_for(name, requested)
        path, _, leaf = name.rpartition(".")
        is_named = request_for(path, requested)[0] != pattern
        if isinstance(request, str) and request not in WHOLE:
            met.add(pattern)
        word = "colwise" if isinstance(request, Grid) else request
        dim = None if word is None else _split_dim(model.get_submodule(path), leaf, tensor.dim(), word, is_named)
        if dim is None or (isinstance(request, Grid) and (is_named or request.shape[-1] == 1 or request.dim < 2)):
            continue
        used.add(pattern)
        grid = request if isinstance(request, Grid) else workers.line(workers.ranks)
        axes = tuple(grid.dim - 1 if d == dim else None for d in range(tensor.dim()))
        of_tensor.setdefault(id(tensor), Layout(grid, tuple(tensor.shape), axes, kind=kind))
    for name, tensor in model.named_parameters(remove_duplicate=False):  # also by other names of the same parameter
        if id(tensor) in of_tensor:
            layouts[name] = of_tensor[id(tensor)]
    for pattern in sorted(met - used):
        raise ValueError(
            f"distribute: plan[{pattern!r}]={requested[pattern]!r} cannot be followed: it splits the parameters of a "
            "Linear or an Embedding, or a parameter that it names"
        )
    return layouts


def _split_dim(module: torch.nn.Module, leaf: str, dims: int, word: str, is_named: bool) -> int | None:
    """The dimension of a parameter that a word splits; None for none.

    Args:
        is_named: whether the plan names the parameter, and not its module.
    """
    if isinstance(module, torch.nn.MultiheadAttention):
        return 0 if word in COLUMNS and leaf.startswith(("in_proj", "q_proj", "k_proj", "v_proj")) else None
    if type(module).__name__ == "NonDynamicallyQuantizableLinear" and word in COLUMNS:
        word = "rowwise"  # of a MultiheadAttention, whose heads are split
    is_transposed = type(module).__name__ == "Conv1D"  # of transformers: a Linear whose weight has the inputs as rows
    if isinstance(module, torch.nn.Linear) or is_transposed:
        of_result = 0 if dims == 1 or not is_transposed else 1
        return of_result if word in COLUMNS else 1 - of_result if word in ROWS and dims == 2 else None
    if isinstance(module, torch.nn.Embedding):
        return 1 if word in COLUMNS else 0 if word in ROWS else None
    if not is_named:
        return None
    if word in EXPERTS:
        return 0
    if word in COLUMNS:
        return max(0, dims - 2)
    return dims - 1 if word in ROWS and dims > 1 else None


def owned_blocks(layout: Layout) -> Blocks:
    """The blocks of a parameter, each on the first worker that uses it."""
    block_sizes = tuple(balanced_sizes(n, layout.parts_along(d)) for d, n in enumerate(layout.shape))
    owners = Blocks(layout.owner_grid.ranks, tuple((0,) * n for n in layout.owner_grid.shape))
    return Blocks(owners.ranks_along(layout.axes, tuple(map(len, block_sizes))), block_sizes)


def regions_of(layout: Layout) -> ReadRegions:
    """The region of a parameter that each worker has when it is used."""
    dims = [layout.axes.index(axis) if axis in layout.axes else None for axis in range(layout.grid.dim)]
    counts = layout.grid.shape
    intervals = (
        tuple(cut(layout.shape[d], p)) if d is not None else ((0, 1),) * p for d, p in zip(dims, counts, strict=True)
    )
    return ReadRegions(layout.grid.ranks, tuple(dims), tuple(intervals))

"""The blocks in which parameters live, where a plan splits features, vocabularies or experts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import torch

from distdl.models.capture.packing import Packing
from distdl.models.operations.placement import Blocks, SizesByDim, balanced_sizes
from distdl.models.plan.redistribution import ReadRegions
from distdl.models.plan.requested import COLUMNS, EXPERTS, ROWS, WHOLE, Request, own_plan_of, request_for
from distdl.parameters.layout import Layout
from distdl.partitions.boxes import block_intervals
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
        cut = None if word is None else _cut_of(model, path, leaf, tuple(tensor.shape), word, is_named)
        if cut is None or (isinstance(request, Grid) and (is_named or request.shape[-1] == 1 or request.dim < 2)):
            continue
        used.add(pattern)
        grid = request if isinstance(request, Grid) else workers.line(workers.ranks)
        axes = tuple(grid.dim - 1 if d == cut.dim else None for d in range(len(cut.shape)))
        of_tensor.setdefault(id(tensor), Layout(grid, cut.shape, axes, kind=kind, merged=cut.merged))
    for name, tensor in model.named_parameters(remove_duplicate=False):  # also by other names of the same parameter
        if id(tensor) in of_tensor:
            layouts[name] = of_tensor[id(tensor)]
    named = _named_modules(model, requested)
    for pattern in sorted((met | {*named}) - used):
        of = f"; {pattern} is a {named[pattern]}" if pattern in named else ""
        raise ValueError(
            f"distribute: plan[{pattern!r}]={requested[pattern]!r} cannot be followed: it splits the parameters of a "
            f"Linear or an Embedding, or a parameter that it names{of}"
        )
    return layouts


def _named_modules(model: torch.nn.Module, requested: Mapping[str, Request]) -> dict[str, str]:
    """The class of the first module that a word is for, by pattern; but for patterns of the model's own plan."""
    own = own_plan_of(model)
    named: dict[str, str] = {}
    for path, module in model.named_modules():
        pattern, request = request_for(path, requested)
        if isinstance(request, str) and request not in WHOLE and pattern not in own:
            named.setdefault(pattern, type(module).__name__)
    return named


class _Cut(NamedTuple):
    """The shape in which a parameter is cut, the dimension that is cut, and the dimensions that are one of it."""

    shape: tuple[int, ...]
    dim: int
    merged: tuple[int, int] | None = None

    @classmethod
    def within(cls, shape: tuple[int, ...], dim: int, sizes: tuple[int, ...], cut: int) -> _Cut:
        """A cut of a dimension that consists of several, along one of these."""
        return cls((*shape[:dim], *sizes, *shape[dim + 1 :]), dim + cut, (dim, dim + len(sizes)))


def _cut_of(
    model: torch.nn.Module, path: str, leaf: str, shape: tuple[int, ...], word: str, is_named: bool
) -> _Cut | None:
    """The cut of a parameter by a word; None for none. Attention is cut by heads, packed layers part by part.

    Args:
        path, leaf: the name of its module, and its name in it.
        is_named: whether the plan names the parameter, and not its module.
    """
    module, outer = model.get_submodule(path), model.get_submodule(path.rpartition(".")[0])
    if isinstance(module, torch.nn.MultiheadAttention):
        heads = (module.num_heads, module.head_dim)
        if word not in COLUMNS or not leaf.startswith(("in_proj", "q_proj", "k_proj", "v_proj")):
            return None
        return _Cut.within(shape, 0, (3, *heads), 1) if leaf.startswith("in_proj") else _Cut.within(shape, 0, heads, 0)
    if isinstance(outer, torch.nn.MultiheadAttention) and word in COLUMNS:  # its last layer
        return None if leaf == "bias" else _Cut.within(shape, 1, (outer.num_heads, outer.head_dim), 0)
    dim = _split_dim(module, leaf, len(shape), word, is_named)
    parts = 1 if dim is None or is_named else parts_of(module, shape[dim], word)
    if dim is None or parts == 1:
        return None if dim is None else _Cut(shape, dim)
    return _Cut.within(shape, dim, (parts, shape[dim] // parts), 1)


def parts_of(module: torch.nn.Module, features: int, word: str) -> int:
    """The number of layers that a packed layer consists of, each of which is cut: three of attention, or two."""
    is_transposed = type(module).__name__ == "Conv1D"
    weight = getattr(module, "weight", None)
    if not isinstance(weight, torch.Tensor) or not (is_transposed or isinstance(module, torch.nn.Linear)):
        return 1
    read = weight.shape[0 if is_transposed else 1]
    if word in ("packed_colwise", "local_packed_colwise") or (is_transposed and word in COLUMNS):
        return 3 if features == 3 * read else 2 if word not in ("colwise",) and features % 2 == 0 else 1
    return 1


def _split_dim(module: torch.nn.Module, leaf: str, dims: int, word: str, is_named: bool) -> int | None:
    """The dimension of a parameter that a word splits; None for none.

    Args:
        is_named: whether the plan names the parameter, and not its module.
    """
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


def packings(layouts: Mapping[str, Layout]) -> dict[str, Packing]:
    """The packings of the parameters whose blocks are in another order than the whole, by name."""
    packed = {}
    for name, layout in layouts.items():
        if layout.merged is None:
            continue
        first, stop = layout.merged
        dim = next(d for d in range(first, stop) if layout.axes[d] is not None)
        if dim > first:
            unit = math.prod(layout.shape[dim + 1 : stop])
            sizes = tuple(unit * n for n in balanced_sizes(layout.shape[dim], layout.parts_along(dim)))
            packed[name] = Packing(first, math.prod(layout.shape[first:dim]), sizes, unit)
    return packed


def owned_blocks(layout: Layout) -> Blocks:
    """The blocks of a parameter, each on the first worker that uses it."""
    block_sizes, axes = _sizes_and_axes(layout)
    owners = Blocks(layout.owner_grid.ranks, tuple((0,) * n for n in layout.owner_grid.shape))
    return Blocks(owners.ranks_along(axes, tuple(map(len, block_sizes))), block_sizes)


def regions_of(layout: Layout) -> ReadRegions:
    """The region of a parameter that each worker has when it is used."""
    block_sizes, axes = _sizes_and_axes(layout)
    dims = [axes.index(axis) if axis in axes else None for axis in range(layout.grid.dim)]
    intervals = (
        tuple(block_intervals(block_sizes[d])) if d is not None else ((0, 1),) * p
        for d, p in zip(dims, layout.grid.shape, strict=True)
    )
    return ReadRegions(layout.grid.ranks, tuple(dims), tuple(intervals))


def _sizes_and_axes(layout: Layout) -> tuple[SizesByDim, list[int | None]]:
    """The sizes of the blocks along each dimension of the tensor in its module, and the axes that cut them."""
    sizes = [balanced_sizes(n, layout.parts_along(d)) for d, n in enumerate(layout.shape)]
    axes = [*layout.axes]
    if layout.merged is not None:
        first, stop = layout.merged
        dim = next(d for d in range(first, stop) if axes[d] is not None)
        unit = math.prod(layout.shape[first:stop]) // max(1, layout.shape[dim])
        sizes[first:stop], axes[first:stop] = [tuple(unit * n for n in sizes[dim])], [axes[dim]]
    return tuple(sizes), axes

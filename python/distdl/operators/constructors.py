"""The construction of the primitives: from partitions to the C++ operators."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from operator import index
from typing import TYPE_CHECKING, TypeAlias

from typing_extensions import TypeVarTuple, Unpack

from distdl import _core
from distdl.operators.dispatch import Inactive, Operator
from distdl.partitions.construction import PartitionLike, constructing

if TYPE_CHECKING:
    from distdl.partitions.grid import Communicator, Grid, ShapeAndRanks

HaloPair: TypeAlias = tuple[int, int]
HaloWidths: TypeAlias = int | Sequence[int] | Sequence[Sequence[int]]

_WIDEST = 1 << 48  # sums of a smaller width and of any sizes fit into 64 bits
_Arguments = TypeVarTuple("_Arguments")


def _make_operator(
    make: Callable[[Communicator, Unpack[_Arguments]], _core.Primitive],
    grid: Grid,
    *arguments: Unpack[_Arguments],
    lift: Callable[[Unpack[_Arguments]], tuple[Unpack[_Arguments]]] | None = None,
) -> Operator:
    """Make an operator; ``lift`` turns its arguments into the arguments for tensors with a further first dimension."""
    if grid.root is None:
        return Inactive()
    further = None if lift is None else lambda: _make_operator(make, grid, *lift(*arguments), lift=lift)
    return Operator(make(grid.root, *arguments), further)


def _with_batch_dimension(workers: ShapeAndRanks) -> ShapeAndRanks:
    """The same workers with a further first dimension, which is not split."""
    shape, ranks = workers
    return [1, *shape], ranks


def broadcast(
    P_x: PartitionLike,
    P_y: PartitionLike,
    transpose_src: bool = False,
    transpose_dest: bool = False,
    preserve_batch: bool = True,
) -> Operator:
    """A broadcast from P_x to P_y."""
    return _make_rooted(_core.Broadcast, P_x, P_y, transpose_src, transpose_dest, preserve_batch)


def sum_reduce(
    P_x: PartitionLike,
    P_y: PartitionLike,
    transpose_src: bool = False,
    transpose_dest: bool = False,
    preserve_batch: bool = True,
) -> Operator:
    """A sum-reduction from P_x to P_y."""
    return _make_rooted(_core.SumReduce, P_x, P_y, transpose_src, transpose_dest, preserve_batch)


def _make_rooted(
    make: type[_core.Broadcast | _core.SumReduce],
    P_x: PartitionLike,
    P_y: PartitionLike,
    transpose_src: bool,
    transpose_dest: bool,
    preserve_batch: bool,
) -> Operator:
    flags = {"transpose_src": transpose_src, "transpose_dest": transpose_dest, "preserve_batch": preserve_batch}
    with constructing(make.__name__, {"P_x": P_x, "P_y": P_y}, flags) as (x, y):
        pass
    return _make_operator(make, x, x.workers, y.workers, *map(bool, flags.values()))


def all_sum_reduce(
    P_x: PartitionLike, axes_reduce: Iterable[int] | None = None, axes_keep: Iterable[int] | None = None
) -> Operator:
    """A sum along some axes of P_x, on all workers."""
    return _make_along_axes(_core.AllSumReduce, P_x, axes_reduce, axes_keep)


def all_gather(
    P_x: PartitionLike, axes_all_gather: Iterable[int] | None = None, axes_keep: Iterable[int] | None = None
) -> Operator:
    """A concatenation of blocks along some axes of P_x, on all workers."""
    return _make_along_axes(_core.AllGather, P_x, axes_all_gather, axes_keep)


def reduce_scatter(
    P_x: PartitionLike, axes_reduce_scatter: Iterable[int] | None = None, axes_keep: Iterable[int] | None = None
) -> Operator:
    """A sum along some axes of P_x, in blocks."""
    return _make_along_axes(_core.ReduceScatter, P_x, axes_reduce_scatter, axes_keep)


def _make_along_axes(
    make: type[_core.AllSumReduce | _core.AllGather | _core.ReduceScatter],
    P_x: PartitionLike,
    axes: Iterable[int] | None,
    axes_keep: Iterable[int] | None,
) -> Operator:
    options: dict[str, object] = {"axes": axes, "axes_keep": axes_keep}
    with constructing(make.__name__, {"P_x": P_x}, options) as (x,):
        along, keep = ([index(axis) for axis in a] if a is not None else None for a in (axes, axes_keep))
        options.update(axes=along, axes_keep=keep)
    if make is _core.AllSumReduce:
        return _make_operator(make, x, x.workers, along, keep)

    def lift(
        workers: ShapeAndRanks, along: list[int] | None, keep: list[int] | None
    ) -> tuple[ShapeAndRanks, list[int] | None, list[int] | None]:
        along, keep = ([a if a < 0 else a + 1 for a in axes] if axes is not None else None for axes in (along, keep))
        return _with_batch_dimension(workers), along, None if keep is None else [0, *keep]

    return _make_operator(make, x, x.workers, along, keep, lift=lift)


def repartition(P_x: PartitionLike, P_y: PartitionLike, preserve_batch: bool = True) -> Operator:
    """A repartition from P_x to P_y."""
    with constructing("Repartition", {"P_x": P_x, "P_y": P_y}, {"preserve_batch": preserve_batch}) as (x, y):
        pass
    return _make_operator(
        _core.Repartition, x, x.workers, y.workers, bool(preserve_batch),
        lift=lambda x, y, batch: (_with_batch_dimension(x), _with_batch_dimension(y), batch),
    )  # fmt: skip


def halo_exchange(
    P_x: PartitionLike, halo: HaloWidths, periodic: bool | Sequence[bool] = False, fill_value: float = 0.0
) -> Operator:
    """An exchange of halos among the workers of P_x, whose widths may differ."""
    widths_here: list[HaloPair] = []
    wraps: list[bool] = []
    options: dict[str, object] = {"periodic": periodic, "fill_value": fill_value}
    with constructing("HaloExchange", {"P_x": P_x}, options) as (x,):
        fill = float(fill_value)
        if x.active:
            widths_here = halo_widths(halo, x.dim)
        wraps = [bool(periodic)] * x.dim if isinstance(periodic, bool) else [bool(along) for along in periodic]
        if len(wraps) != x.dim:
            raise ValueError(f"HaloExchange: periodic {wraps} has {len(wraps)} values; P_x has {x.dim} dimensions")
    # The widths may differ from worker to worker: they are gathered, not compared.
    halos = gather_widths(x, widths_here) or [[[0, 0]] * x.dim] * x.size
    return _make_operator(
        _core.HaloExchange, x, x.workers, halos, wraps, fill,
        lift=lambda workers, halos, wraps, fill: (
            _with_batch_dimension(workers), [[[0, 0], *widths] for widths in halos], [False, *wraps], fill
        ),
    )  # fmt: skip


def halo_widths(halo: HaloWidths, dim: int, operation: str = "HaloExchange") -> list[HaloPair]:
    """(left, right) for each dimension, from an int, or an int or a pair for each dimension.

    Raises:
        TypeError: if a width is not an int.
        ValueError: if the number of dimensions is not ``dim``, the number of sides is not 2, or a width is too large.
    """
    sides_by_dim: list[int | Sequence[int]] = [halo] * dim if isinstance(halo, int) else list(halo)
    widths = []
    for width in sides_by_dim:
        is_number = isinstance(width, int) or getattr(width, "ndim", None) == 0  # of NumPy, too
        sides = [width, width] if is_number else list(width)  # type: ignore[arg-type]
        if len(sides) != 2 or len(sides_by_dim) != dim:
            raise ValueError(
                f"{operation}: halo {halo} for {dim} dimensions; it has to be an int, or for each "
                "dimension an int or a pair (left, right)"
            )
        widths.append((index(sides[0]), index(sides[1])))  # type: ignore[arg-type]
        if max(map(abs, widths[-1])) >= _WIDEST:
            raise ValueError(f"{operation}: halo {halo}; widths must be less than {_WIDEST}")
    return widths


def gather_widths(P_x: Grid, widths: list[HaloPair]) -> list[list[list[int]]]:
    """Every worker's widths, in worker order; [] on other ranks. Equal widths are one object.

    Collective over P_x, without a comparison.
    """
    texts = P_x.gather(json.dumps(widths).encode()) if P_x.active else []
    known = {text: json.loads(text) for text in set(texts)}
    return [known[text] for text in texts]


def interval_exchange(
    layer: str,
    P_x: Grid,
    P_y: Grid,
    ranges: Sequence[Sequence[tuple[int, int]]],
    periodic: Sequence[bool] = (),
    fill_value: float = 0.0,
) -> Operator:
    """The exchange that brings each worker of P_y a box of a tensor on P_x.

    It checks nothing: the ranks of the layer have agreed on the partitions and ranges.

    Args:
        layer: the layer's name, for messages.
        P_x, P_y: partitions with as many dimensions as the tensor.
        ranges: for each dimension, (start, stop) for each place along that dimension of P_y. Ranges may overlap, leave
            gaps and reach beyond the tensor.
        periodic: for each dimension whether the tensor wraps.
        fill_value: the value of elements beyond the tensor in dimensions that do not wrap.
    """
    if P_x.root is None:
        return Inactive()
    core = _core.IntervalExchange(layer, P_x.root, P_x.workers, P_y.workers, ranges, list(periodic), float(fill_value))

    def lift() -> Operator:
        raise NotImplementedError(f"{layer}: vmap is not supported; give the layer the batch as a dimension")

    return Operator(core, lift)


def all_gather_among(workers: Grid, axis: int = 0) -> Operator:
    """A concatenation of blocks along an axis of a grid, without checks: the layer's ranks have agreed on partitions.

    Other workers of the layer may construct operators on other grids.
    """
    return _make_operator(_core.AllGather, workers, workers.workers, [axis], None)


def reduce_scatter_among(workers: Grid, axis: int = 0) -> Operator:
    """The sum along an axis of a grid, in blocks; as :func:`all_gather_among`."""
    return _make_operator(_core.ReduceScatter, workers, workers.workers, [axis], None)


def all_sum_reduce_among(workers: Grid, axis: int = 0) -> Operator:
    """The sum along an axis of a grid, for all workers; as :func:`all_gather_among`."""
    return _make_operator(_core.AllSumReduce, workers, workers.workers, [axis], None)


def broadcast_among(workers: Grid, root: int = 0) -> Operator:
    """A broadcast from a worker to a line; as :func:`all_gather_among`."""
    source = workers.line([workers.ranks[root]])
    return _make_operator(_core.Broadcast, workers, source.workers, workers.workers, False, False, True)


def replicate(workers: Grid) -> Operator:
    """The identity of a tensor with a copy on each worker of a line; its adjoint sums over the copies."""
    return _make_operator(_core.Replicate, workers, workers.workers)

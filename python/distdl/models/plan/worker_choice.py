"""Choose the workers of an operation, and the blocks that they compute."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Container, Iterator, Mapping, Sequence

from distdl.models.capture.recording import Node, Value
from distdl.models.operations.operation import InputSpec, Operation, Sharded
from distdl.models.operations.placement import Blocks, Placement, balanced_sizes, ways_to_split
from distdl.models.plan.received import received_elements
from distdl.models.plan.redistribution import ReadRegions
from distdl.models.plan.requested import Request, request_for
from distdl.partitions.grid import Grid

_MOST_CANDIDATES = 64


Way = tuple[Operation, Blocks]
"""An operation, or its split along a sum, and the blocks of its workers."""


class WorkerChoice:
    """Chooses the workers of operations.

    They are those that the user requests; or else those that have the blocks of a parameter; or else, for an operation
    that expands, those of the base; or else those that receive the fewest elements.

    Args:
        base: all workers.
        requested: grids and words of modules, by patterns of their names.
        parameters: the parameters in blocks. Without any, no operation is split along a sum.
    """

    def __init__(self, base: Grid, requested: Mapping[str, Request], parameters: Container[Value]) -> None:
        self._base, self._requested, self._parameters = base, dict(requested), parameters
        self._followed: set[str] = set()
        self._unfit: dict[str, tuple[Node, Operation]] = {}  # the first operation that cannot be split as requested

    def choose(self, node: Node, operation: Operation, sources: Sequence[Placement]) -> Way:
        """The operation, or its split along a sum, and the blocks of its workers, for inputs with these placements."""
        pattern, requested = request_for(node.path, self._requested)
        if isinstance(requested, Grid) and requested.dim == len(operation.shape):
            if (blocks := split_like(operation, requested)) is not None:
                self._followed.add(pattern)
                return operation, blocks
            self._unfit.setdefault(pattern, (node, operation))
        ranks = requested.ranks if isinstance(requested, Grid) else self._base.ranks
        aligned: list[Way] = []
        for way, is_by_parameter in self._aligned(node, operation, sources, frozenset(ranks)):
            if is_by_parameter:
                return way
            aligned.append(way)
        if operation.expands and ranks == self._base.ranks and len(operation.shape) == self._base.dim:
            blocks = split_like(operation, self._base)
            if blocks is not None:
                return operation, blocks
        for split, workers in aligned:
            if len(workers.ranks) == len(ranks) and not _received(node, split, sources, workers):
                return split, workers
        most = [
            min(len(ranks), n // operation.units.get(d, 1)) if d in operation.splittable else 1
            for d, n in enumerate(operation.shape)
        ]
        splits_tried = itertools.islice(ways_to_split(len(ranks), most), _MOST_CANDIDATES)
        balanced = [(operation, operation.blocks(ranks[: math.prod(splits)], splits)) for splits in splits_tried]
        return min([*aligned, *balanced], key=lambda way: _cost_of(node, way[0], sources, way[1], len(ranks)))

    def _aligned(
        self, node: Node, operation: Operation, sources: Sequence[Placement], ranks: frozenset[int]
    ) -> Iterator[tuple[Way, bool]]:
        """Ways to split an operation as an input is split, and whether this input is a parameter."""
        sums = [operation.summed] if self._parameters and operation.summed is not None else []
        for way in (operation, *sums):
            seen: set[Blocks] = set()
            for value, spec, source in zip(node.inputs, way.input_specs, sources, strict=True):
                if not isinstance(source, Blocks) or spec is None:
                    continue
                is_parameter = value in self._parameters
                for blocks in dict.fromkeys((source, without_empty(source))):
                    workers = aligned_workers(way, spec, blocks, is_parameter)
                    if workers is not None and ranks.issuperset(workers.ranks):
                        if is_parameter or workers not in seen:
                            yield (way, workers), is_parameter
                        seen.add(workers)

    def refuse_unfollowed(self, moved: Mapping[str, Node]) -> None:
        """Refuse requests if no operation of their modules can be split so, or reads the blocks of their parameters.

        Args:
            moved: by the name of a parameter in blocks, an operation for which it is redistributed, if all do so.

        Raises:
            ValueError: that names an operation.
        """
        for name, node in moved.items():
            pattern, request = request_for(name, self._requested)
            if isinstance(request, str):
                raise ValueError(
                    f"distribute: plan[{pattern!r}]={request!r} cannot be followed: {node.key} in "
                    f"{node.path or 'the model'} reads more than a worker's block of {name}"
                )
        for pattern, grid in self._requested.items():
            if isinstance(grid, Grid) and pattern in self._unfit and pattern not in self._followed:
                node, operation = self._unfit[pattern]
                kept = sorted(operation.splittable | operation.if_requested)
                raise ValueError(
                    f"distribute: plan[{pattern!r}] of shape {list(grid.shape)} cannot be followed: {node.key} "
                    f"in {node.path or 'the model'}, of shape {list(operation.shape)}, can be split along "
                    f"dimensions {kept}"
                )


def _received(node: Node, operation: Operation, sources: Sequence[Placement], workers: Blocks) -> int:
    within = 0 if operation.received is None else operation.received(workers)
    return within + sum(
        sum(received_elements(source, ReadRegions.of(workers, spec), value.shape).values())
        for value, spec, source in zip(node.inputs, operation.input_specs, sources, strict=True)
        if spec is not None
    )


def _cost_of(node: Node, operation: Operation, sources: Sequence[Placement], workers: Blocks, ranks: int) -> float:
    """The number of elements that travel, and of elements that idle ranks could compute meanwhile."""
    idle = workers.largest() * ranks - math.prod(operation.shape)
    return _received(node, operation, sources, workers) + idle


@functools.lru_cache(maxsize=1024)
def without_empty(blocks: Blocks) -> Blocks:
    """Leave out empty blocks along each dimension with a single block that is not empty."""
    kept = []
    for sizes in blocks.block_sizes:
        nonempty = [i for i, n in enumerate(sizes) if n]
        kept.append(nonempty if len(nonempty) == 1 else list(range(len(sizes))))
    block_sizes = tuple(tuple(sizes[i] for i in along) for sizes, along in zip(blocks.block_sizes, kept, strict=True))
    return Blocks(tuple(blocks.rank_at[place] for place in itertools.product(*kept)), block_sizes)


def aligned_workers(operation: Operation, spec: InputSpec, source: Blocks, is_requested: bool = False) -> Blocks | None:
    """The workers that hold all or most of what they read of an input; None if the operation cannot be split so.

    Args:
        is_requested: whether dimensions of `if_requested` may be split, too.
    """
    splittable = operation.splittable | operation.if_requested if is_requested else operation.splittable
    block_sizes: list[tuple[int, ...]] = [(n,) for n in operation.shape]
    source_dims: dict[int, int] = {}
    for source_dim, sizes in enumerate(source.block_sizes):
        sharded = spec[source_dim]
        if len(sizes) == 1:
            continue
        if not isinstance(sharded, Sharded) or sharded.dim not in splittable:
            return None
        dim, unit = sharded.dim, operation.units.get(sharded.dim, 1)
        if sharded.span is not None:
            block_sizes[dim] = balanced_sizes(operation.shape[dim], len(sizes), unit)
        else:
            scaled = [n / sharded.scale for n in sizes]
            if any(n.denominator != 1 or n.numerator % unit for n in scaled):
                return None
            block_sizes[dim] = tuple(n.numerator for n in scaled)
        source_dims[dim] = source_dim
    ranks = source.ranks_along([source_dims.get(d) for d in range(len(block_sizes))], tuple(map(len, block_sizes)))
    return Blocks(ranks, tuple(block_sizes))


def split_like(operation: Operation, grid: Grid) -> Blocks | None:
    """The blocks of an operation on the workers of a requested grid; None if it cannot be split so."""
    split = {d for d, p in enumerate(grid.shape) if p > 1}
    features = split & operation.if_requested
    if not split <= (operation.if_requested | {0} if features else operation.splittable):  # 0 is the batch
        return None
    if any(grid.shape[d] > operation.shape[d] // operation.units.get(d, 1) for d in features):
        return None  # blocks would be empty
    return operation.blocks(grid.ranks, grid.shape)

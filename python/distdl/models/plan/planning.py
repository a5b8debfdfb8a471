"""Where each value of a recorded computation is, and which exchanges bring it to who reads it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

import torch

from distdl.models.capture.recording import Node, Recording, Value
from distdl.models.capture.replay import as_function
from distdl.models.operations.operation import InputSpec, NoRuleError, Operation, RandomError, Sharded, Workers
from distdl.models.operations.placement import REPLICATED, Blocks, Placement, balanced_sizes, ways_to_split
from distdl.models.operations.table import whole
from distdl.models.plan.redistribution import ReadRegions, Redistribution, received_elements
from distdl.models.rules import RULES
from distdl.models.rules.indexing import written
from distdl.partitions.grid import Grid

_MOST_CANDIDATES = 64
Transfers = list[tuple[Value, dict[int, int]]]
"""Values that are brought to workers, and how many elements each rank receives of them from others."""


@dataclass(frozen=True)
class PlanStep:
    """A node, with the workers that compute it and what has to be brought to them.

    Attributes:
        operation: as its rule describes it.
        workers: those that compute, each a block; REPLICATED if each worker computes all.
        input_regions: for each input what the workers spec, None where they have it already.
        sources: where each input is.
    """

    node: Node
    operation: Operation
    workers: Placement
    input_regions: tuple[ReadRegions | None, ...]
    sources: tuple[Placement, ...]


class Plan:
    """The placements of all values of a recording.

    Nothing is communicated or constructed here; every rank finds the same.

    Args:
        base: the workers.
        inputs: where the inputs are.
        fallback: "gather" lets one worker compute what no rule splits.
        as_sequential: whether random numbers have to be those of one process.
        asked: those of the workers that compute a module, by a pattern of its name, in a grid for its tensors.

    Raises:
        NotImplementedError: that lists every call without a rule.
    """

    def __init__(
        self,
        recording: Recording,
        base: Grid,
        inputs: Sequence[Placement],
        fallback: str = "error",
        as_sequential: bool = False,
        asked: Mapping[str, Grid] | None = None,
    ) -> None:
        self.base = base
        self._asked = dict(asked or {})
        self.recording = recording
        self.placements: dict[Value, Placement] = dict(zip(recording.inputs, inputs, strict=True))
        self.steps: list[PlanStep] = []
        self.gathered: list[Node] = []
        self._followed: set[str] = set()
        self._unfit: dict[str, tuple[Node, Operation]] = {}  # the first operation that is not split as was asked
        operations = self._operations(fallback, as_sequential)
        for node, operation in zip(recording.nodes, operations, strict=True):
            self._place(node, operation)

    def _operations(self, fallback: str, as_sequential: bool) -> list[Operation]:
        operations, missing = [], []
        of_inputs = set(self.recording.inputs)
        for node in self.recording.nodes:
            is_constant = of_inputs.isdisjoint(node.inputs)
            of_inputs.update(() if is_constant else node.outputs)
            try:
                operations.append(_by_rule(node, is_constant))
            except NoRuleError as reason:
                alone = fallback == "gather" and not (as_sequential and isinstance(reason, RandomError))
                if alone and not is_constant:
                    self.gathered.append(node)
                    operations.append(on_one_worker(node))
                else:
                    missing.append(f"  {node}: {reason}")
        if missing:
            lines = "\n".join(missing)
            raise NotImplementedError(
                f"distribute: {len(missing)} calls cannot be split:\n{lines}\nfallback='gather' computes them on one "
                "worker; distdl.models.rule registers a rule"
            )
        return operations

    def _place(self, node: Node, operation: Operation) -> None:
        sources = tuple(self.placement(value) for value in node.inputs)
        if all(
            source is REPLICATED or spec is None for source, spec in zip(sources, operation.input_specs, strict=True)
        ):
            self.steps.append(PlanStep(node, operation, REPLICATED, (None,) * len(sources), sources))
            self.placements.update(dict.fromkeys(node.outputs, REPLICATED))
            return
        workers = self._workers(node, operation, sources)
        input_regions: list[ReadRegions | None] = []
        for value, spec, source in zip(node.inputs, operation.input_specs, sources, strict=True):
            if spec is None or (source is REPLICATED and all(along is None for along in spec)):
                input_regions.append(None)
                continue
            regions = ReadRegions.of(workers, spec)
            input_regions.append(regions if Redistribution.is_needed(source, regions, value.shape) else None)
        self.steps.append(PlanStep(node, operation, workers, tuple(input_regions), sources))
        for value, place in zip(node.outputs, self._results(node, operation, workers), strict=True):
            self.placements[value] = place

    def transfers(self) -> Iterator[Transfers]:
        """For each step what is brought to its workers: values, and how many elements each rank receives of them."""
        brought: set[tuple[Value, ReadRegions]] = set()
        for step in self.steps:
            moved: Transfers = []
            for value, regions, source in zip(step.node.inputs, step.input_regions, step.sources, strict=True):
                if regions is not None and (value, regions) not in brought:
                    brought.add((value, regions))
                    moved.append((value, received_elements(source, regions, value.shape)))
            yield moved

    def placement(self, value: Value) -> Placement:
        """Where a value is; parameters, buffers and constants are on each worker."""
        return self.placements.get(value, REPLICATED)

    def _results(self, node: Node, operation: Operation, workers: Blocks) -> list[Blocks]:
        if operation.places is not None:
            places = operation.places(Workers(workers.grid(self.base), workers, self.base.me))
            return list(places) if isinstance(places, list) else [places] * len(node.outputs)
        if len(workers.ranks) == 1:  # results may have different numbers of dimensions
            return [Blocks(workers.ranks, tuple((n,) for n in value.shape)) for value in node.outputs]
        results = []
        for value in node.outputs:
            block_sizes = tuple(
                sizes if len(sizes) > 1 or sum(sizes) == n else (n,)
                for sizes, n in zip(workers.block_sizes, value.shape, strict=True)
            )
            results.append(Blocks(workers.ranks, block_sizes))
        return results

    # Who computes

    def _workers(self, node: Node, operation: Operation, sources: Sequence[Placement]) -> Blocks:
        """The candidate that moves the least, where what workers wait for each other counts as well."""
        pattern, asked = self._requested_grid(node.path)
        if asked is not None and asked.dim == len(operation.shape):
            if (blocks := split_like(operation, asked)) is not None:
                self._followed.add(pattern)
                return blocks
            self._unfit.setdefault(pattern, (node, operation))
        ranks = self.base.ranks if asked is None else asked.ranks
        stays = []
        for spec, source in zip(operation.input_specs, sources, strict=True):
            if isinstance(source, Blocks) and spec is not None:
                for blocks in dict.fromkeys((source, without_empty(source))):
                    stay = aligned_workers(operation, spec, blocks)
                    if stay is not None and set(stay.ranks) <= set(ranks):
                        stays.append(stay)
        stays = list(dict.fromkeys(stays))
        full = [workers for workers in stays if len(workers.ranks) == len(ranks)]
        for workers in full:
            if not self._received(node, operation, sources, workers):
                return workers
        most = [
            min(len(ranks), n // operation.units.get(d, 1)) if d in operation.splittable else 1
            for d, n in enumerate(operation.shape)
        ]
        ways = itertools.islice(ways_to_split(len(ranks), most), _MOST_CANDIDATES)
        spread = [operation.blocks(ranks[: math.prod(splits)], splits) for splits in ways]
        return min([*stays, *spread], key=lambda workers: self._cost(node, operation, sources, workers, len(ranks)))

    def _requested_grid(self, path: str) -> tuple[str, Grid | None]:
        """The last pattern, and its grid, for the innermost module around a call for which anything was asked."""
        while self._asked:
            for pattern, grid in reversed(self._asked.items()):
                if fnmatchcase(path, pattern):
                    return pattern, grid
            if not path:
                break
            path = path.rpartition(".")[0]
        return "", None

    def refuse_unfollowed(self) -> None:
        """Refuse what was asked for modules of which no operation can be split so.

        Raises:
            ValueError: that names the first of these operations.
        """
        for pattern, grid in self._asked.items():
            if pattern in self._unfit and pattern not in self._followed:
                node, operation = self._unfit[pattern]
                kept = sorted(operation.splittable | operation.if_requested)
                raise ValueError(
                    f"distribute: plan[{pattern!r}] of shape {list(grid.shape)} cannot be followed: {node.key} "
                    f"in {node.path or 'the model'}, of shape {list(operation.shape)}, can be split along "
                    f"dimensions {kept}"
                )

    def _received(self, node: Node, operation: Operation, sources: Sequence[Placement], workers: Blocks) -> int:
        return sum(
            sum(received_elements(source, ReadRegions.of(workers, spec), value.shape).values())
            for value, spec, source in zip(node.inputs, operation.input_specs, sources, strict=True)
            if spec is not None
        )

    def _cost(
        self, node: Node, operation: Operation, sources: Sequence[Placement], workers: Blocks, ranks: int
    ) -> float:
        """Elements that travel, and those that are computed while others of so many ranks have nothing to do."""
        idle = workers.largest() * ranks - math.prod(operation.shape)
        return self._received(node, operation, sources, workers) + idle


def without_empty(blocks: Blocks) -> Blocks:
    """The same without workers that have nothing because a dimension has one block with elements."""
    kept = []
    for sizes in blocks.block_sizes:
        full = [i for i, n in enumerate(sizes) if n]
        kept.append(full if len(full) == 1 else list(range(len(sizes))))
    block_sizes = tuple(tuple(sizes[i] for i in along) for sizes, along in zip(blocks.block_sizes, kept, strict=True))
    return Blocks(tuple(blocks.rank_at[place] for place in itertools.product(*kept)), block_sizes)


def aligned_workers(operation: Operation, spec: InputSpec, source: Blocks) -> Blocks | None:
    """The workers that have what they read of an input already, or most of it; None if this is no way to split."""
    block_sizes: list[tuple[int, ...]] = [(n,) for n in operation.shape]
    axes: dict[int, int] = {}
    for d, sizes in enumerate(source.block_sizes):
        along = spec[d]
        if len(sizes) == 1:
            continue
        if not isinstance(along, Sharded) or along.dim not in operation.splittable:
            return None
        unit = operation.units.get(along.dim, 1)
        if along.span is not None:
            block_sizes[along.dim] = balanced_sizes(operation.shape[along.dim], len(sizes), unit)
        else:
            scaled = [n / along.scale for n in sizes]
            if any(n.denominator != 1 or n.numerator % unit for n in scaled):
                return None
            block_sizes[along.dim] = tuple(n.numerator for n in scaled)
        axes[along.dim] = d
    ranks = source.ranks_along([axes.get(d) for d in range(len(block_sizes))], tuple(map(len, block_sizes)))
    return Blocks(ranks, tuple(block_sizes))


def split_like(operation: Operation, asked: Grid) -> Blocks | None:
    """The operation split as a grid is; None if it cannot be."""
    if asked.dim != len(operation.shape):
        return None
    split = {d for d, p in enumerate(asked.shape) if p > 1}
    further = split & operation.if_requested
    if not split <= (operation.if_requested | {0} if further else operation.splittable):
        return None
    if any(asked.shape[d] > operation.shape[d] // operation.units.get(d, 1) for d in further):
        return None
    return operation.blocks(asked.ranks, asked.shape)


def _by_rule(node: Node, is_constant: bool) -> Operation:
    """The operation as its rule describes it; without one, on each worker if each of them has all inputs."""
    try:
        if node.key not in RULES:
            raise NoRuleError("no rule")
        operation = RULES[node.key](node)
        if len(operation.input_specs) != len(node.inputs):
            raise NoRuleError(f"{len(node.inputs)} tensors, where its rule knows {len(operation.input_specs)}")
        for value, spec in zip(node.inputs, operation.input_specs, strict=True):
            if spec is not None and not _fits(value, spec, operation.shape):
                raise NoRuleError(f"the shape {list(value.shape)}, which its rule takes for another one")
    except RandomError:
        raise
    except NoRuleError:
        if not is_constant or isinstance(node.target, torch.nn.Module):
            raise
        return on_one_worker(node)
    return operation


def _fits(value: Value, spec: InputSpec, shape: Sequence[int]) -> bool:
    """Whether workers that read a tensor so, for blocks of a space of this shape, read all of it."""
    return len(spec) == len(value.shape) and all(
        not isinstance(along, Sharded) or along.span is not None or along.scale * shape[along.dim] == n
        for along, n in zip(spec, value.shape, strict=True)
    )


def on_one_worker(node: Node) -> Operation:
    """An operation of which nothing is split."""
    call = as_function(node, written if node.key == "setitem" else None)
    return Operation(
        node.outputs[0].shape, tuple(whole(value) for value in node.inputs), lambda workers: call, frozenset()
    )

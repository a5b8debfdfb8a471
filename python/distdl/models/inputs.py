"""The tensors of a call of a distributed model: which partition each has, their blocks, and their order in memory."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from distdl.models.capture.memory_order import InMemory, most_informative_block, order_of
from distdl.models.operations.placement import REPLICATED, Blocks, Placement
from distdl.models.plan.requested import is_grid, requested_grid
from distdl.nn.base.layer import Layer
from distdl.nn.wrapped_module import ModuleCall
from distdl.partitions.grid import Grid
from distdl.texts import text_of
from distdl.torch_compat.trees import tree_flatten, tree_leaves

_DEFAULT = object()  # no partition was named


def tensors_in(call: object) -> list[torch.Tensor]:
    """The tensors among the arguments of a call, in order."""
    return [leaf for leaf in tree_leaves(call) if isinstance(leaf, torch.Tensor)]


def text_of_others(call: object) -> str:
    """The structure of a call, and its arguments that are no tensors, which all ranks have compared."""
    leaves, structure = tree_flatten(call)
    return f"{structure} {[text_of(leaf) for leaf in leaves if not isinstance(leaf, torch.Tensor)]}"


class InputPartitions:
    """The partitions of a model's inputs.

    Args:
        requested: the option ``input_partitions``.
        forward: the function that takes the inputs.
        workers: the grid of P_x.

    Raises:
        TypeError, ValueError: if the option is no dict of partitions of these workers.
    """

    def __init__(self, requested: object, forward: Callable[..., object], workers: Grid) -> None:
        if not isinstance(requested, Mapping | None):
            raise TypeError(
                f"distribute: input_partitions is a {type(requested).__name__}; it has to be a dict of partitions"
            )
        self._workers = workers
        self._names, takes_any = _names_of(forward)
        for key in requested or {}:
            if key not in self._names and not (isinstance(key, int) and 0 <= key < len(self._names)) and not takes_any:
                raise ValueError(
                    f"distribute: input_partitions has the key {key!r}; the model's inputs are {self._names}"
                )
        self._requested = {key: self._resolved(f"[{key!r}]", value) for key, value in (requested or {}).items()}

    def _resolved(self, where: str, value: object) -> object:
        """The same structure with grids in place of partitions."""
        if value is None:
            return None
        if is_grid(value):
            return requested_grid(f"input_partitions{where}", value, self._workers)
        if isinstance(value, Mapping):
            return {key: self._resolved(f"{where}[{key!r}]", part) for key, part in value.items()}
        if isinstance(value, list | tuple):
            return [self._resolved(f"{where}[{i}]", part) for i, part in enumerate(value)]
        raise TypeError(
            f"distribute: input_partitions{where} is a {type(value).__name__}; it has to be a distdl.Partition, a list "
            "of numbers of workers, or None for a tensor that every rank has whole"
        )

    def compared(self) -> object:
        """The shapes and ranks of all partitions, which are the same on all ranks."""
        return _described(self._requested)

    def of(self, call: ModuleCall) -> Iterator[tuple[str, object]]:
        """The name of each tensor of a call, and its grid; None if every rank has it whole."""
        args, kwargs = call
        names = [*self._names[: len(args)], *map(str, range(len(self._names), len(args)))]
        for name, value in (*zip(names, args, strict=True), *kwargs.items()):
            position = names.index(name) if name in names else self._names.index(name) if name in self._names else -1
            requested = self._requested.get(name, self._requested.get(position, _DEFAULT))
            yield from _of_argument(name, value, requested)


def _described(requested: object) -> object:
    if isinstance(requested, Grid):
        return [requested.shape, requested.ranks]
    if isinstance(requested, Mapping):
        return {str(key): _described(part) for key, part in requested.items()}
    return [_described(part) for part in requested] if isinstance(requested, list) else requested


def _of_argument(name: str, value: object, requested: object) -> Iterator[tuple[str, object]]:
    """The names and grids of the tensors in an argument."""
    if isinstance(requested, Mapping) and isinstance(value, Mapping):
        for key, part in value.items():
            yield from _of_argument(f"{name}[{key!r}]", part, requested.get(key, _DEFAULT))
    elif isinstance(requested, list) and isinstance(value, list | tuple):
        for i, part in enumerate(value):
            yield from _of_argument(f"{name}[{i}]", part, requested[i] if i < len(requested) else _DEFAULT)
    elif isinstance(requested, Mapping | list):
        raise TypeError(f"distribute: {name} is of type {type(value).__name__}, which input_partitions does not match")
    else:
        yield from ((name, requested) for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor))


def _names_of(forward: Callable[..., object]) -> tuple[list[str], bool]:
    """The names of the arguments of a function, and whether it takes any others."""
    try:
        parameters = inspect.signature(forward).parameters.values()
    except ValueError:  # of a function in C++
        return [], True
    further = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    names = [parameter.name for parameter in parameters if parameter.kind not in further]
    return names, len(names) < len(parameters)


@dataclass(frozen=True)
class PlacedInput:
    """Where a tensor of a call is.

    Attributes:
        workers: the grid of its partition; that of P_x if every rank has the whole tensor.
        blocks: as they arrive; a single block, of worker 0, if every rank has the whole tensor.
        planned: the balanced blocks, or replicas, into which a program redistributes them.
    """

    workers: Grid
    blocks: Blocks
    planned: Placement


def placed_inputs(
    model: Layer, partitions: InputPartitions, call: ModuleCall, known: Mapping[torch.Tensor, Placement]
) -> list[PlacedInput]:
    """Where the tensors of a call are.

    Args:
        known: the placements of tensors that the model has returned.

    Raises:
        ValueError: if a tensor does not fit its partition, or it is not clear whether it is a block.
    """
    placed: list[PlacedInput] = []
    for i, ((name, requested), tensor) in enumerate(zip(partitions.of(call), tensors_in(call), strict=True)):
        shapes = [tuple(shape) for shape, _ in model.structure(model.grid, i)]
        if requested is _DEFAULT and (place := known.get(tensor)) is not None:
            requested = place.grid(model.grid) if isinstance(place, Blocks) else None
        elif requested is _DEFAULT and max(map(len, shapes)) > model.grid.dim:
            raise ValueError(
                f"distribute: {name} has a tensor of the shapes {_texts(shapes)}, with more dimensions than P_x; name "
                f"its partition: input_partitions={{{name!r}: P}}. Results of the model need none, passed as they are"
            )
        if isinstance(requested, Grid):
            grid, of = requested, f"input_partitions[{name!r}]"
        elif requested is _DEFAULT and max(map(len, shapes)) >= model.grid.dim:
            grid, of = model.grid, "P_x"
        else:
            if requested is _DEFAULT:
                _refuse_unclear(name, shapes, model.grid, [input.blocks for input in placed])
            elif len(set(shapes)) > 1:
                raise ValueError(
                    f"distribute: {name} is whole on every rank, as input_partitions says, and has the shapes "
                    f"{_texts(shapes)}"
                )
            first = Blocks(model.grid.ranks[:1], tuple((n,) for n in shapes[0]))
            placed.append(PlacedInput(model.grid, first, REPLICATED))
            continue
        blocks = Blocks(grid.ranks, tuple(map(tuple, model.blocks(grid, i, of))))
        placed.append(PlacedInput(grid, blocks, Blocks.balanced(grid.ranks, grid.shape, blocks.shape)))
    return placed


def _refuse_unclear(name: str, shapes: Sequence[tuple[int, ...]], grid: Grid, before: Sequence[Blocks]) -> None:
    """Refuse a tensor with fewer dimensions than P_x that may be meant as a block.

    It is taken as whole, unless its shapes differ, or it has the shape of the blocks of another input but for a
    dimension, such as labels without the dimension of the channels.
    """
    remedy = f"input_partitions={{{name!r}: None}} says that every rank has the whole tensor"
    for blocks in before:
        local = [blocks.local_shape(rank) for rank in grid.ranks]
        for d in range(len(blocks.splits)):
            without = [shape[:d] + shape[d + 1 :] for shape in local]
            whole = blocks.shape[:d] + blocks.shape[d + 1 :]
            if [*shapes] == without and {*without} != {whole}:
                splits = [*blocks.splits[:d], *blocks.splits[d + 1 :]]
                raise ValueError(
                    f"distribute: is {name}, of the shapes {_texts(shapes)}, in blocks, or whole on every rank? "
                    f"input_partitions={{{name!r}: {splits}}} says that it is in blocks, and {remedy}"
                )
    if len(set(shapes)) > 1:
        raise ValueError(
            f"distribute: {name} has fewer dimensions than P_x, so that each worker passes the whole of it; its shapes "
            f"are {_texts(shapes)}. If these are blocks, name their partition: input_partitions={{{name!r}: P}}"
        )


def _texts(shapes: Sequence[tuple[int, ...]]) -> list[list[int]]:
    return [list(shape) for shape in shapes]


def in_memory(model: Layer, placed: Sequence[PlacedInput], call: object) -> InMemory:
    """How the inputs are in memory, as far as the workers' blocks show it. Collective."""
    all_ranks, blocks = model.grid.constructing_ranks(), tensors_in(call)
    own = [*map(order_of, blocks)], [block.requires_grad for block in blocks], torch.is_grad_enabled()
    orders_of_ranks, asking, records = zip(*map(json.loads, all_ranks.gather(json.dumps(own).encode())), strict=True)
    orders = []
    for i, input in enumerate(placed):
        shapes = [shape for shape, _ in model.structure(input.workers, i)]
        block = most_informative_block(shapes, input.blocks.shape)
        orders.append(orders_of_ranks[all_ranks.ranks.index(input.workers.ranks[block])][i])
    return InMemory(orders, [*map(any, zip(*asking, strict=True))], any(records))

"""How a function finds the layer that does its work: constructed at the first call, used again at the next ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import ParamSpec, TypeVar

import torch

from distdl.collective.comparison import raise_together, shown
from distdl.collective.construction import PartitionLike, among_workers, grid_of, is_partition, tell
from distdl.nn.compiled.dispatched import call_in_graph
from distdl.nn.compiled.registry import records
from distdl.nn.layer import Layer
from distdl.process.compilers import assume_constant_result

Given = ParamSpec("Given")
Result = TypeVar("Result")
Made = TypeVar("Made", bound=Layer)
Value = TypeVar("Value")

_MOST_KEPT = 256  # layers by partition


def _tell(what: str, error: Exception, given: tuple[object, ...]) -> None:
    """Raise an error on all ranks that make the call: the workers of all partitions among the arguments."""
    grids = [grid_of(one) for one in given if is_partition(one)]
    tell(what, error, [*among_workers(grids), *(one for one in given if not is_partition(one))])


function: Callable[[Callable[Given, Result]], Callable[Given, Result]] = raise_together(_tell)
"""A decorator for functions that the workers of their partitions call together."""


def call_layer(
    kind: Callable[..., Layer],
    partitions: Mapping[str, PartitionLike | None],
    options: Mapping[str, object],
    input: torch.Tensor,
) -> torch.Tensor:
    """The result of the layer of these options on these partitions. Collective over their workers."""
    if torch.compiler.is_compiling():
        key = _key_told(kind, tuple(partitions), *partitions.values(), **options)
        return call_in_graph(key, [], (input,), {})
    result: torch.Tensor = layer_for(kind, partitions, options)(input)
    return result


@assume_constant_result
def _key_told(
    kind: Callable[..., Layer], names: Sequence[str], *values: PartitionLike | None, **options: object
) -> int:
    """By which a compiled program knows the layer: a compiler cannot trace how it is constructed."""
    return layer_for(kind, dict(zip(names, values, strict=True)), options).key_in_graphs


def layer_for(
    kind: Callable[..., Made], partitions: Mapping[str, PartitionLike | None], options: Mapping[str, object]
) -> Made:
    """The layer of these options on these partitions. Collective over their workers at the first call.

    Layers are kept with the first partition: as long as the program holds it, all ranks know them.
    """
    given = _given(partitions)
    if not all(map(is_partition, given.values())):
        known = [grid_of(P) for P in given.values() if is_partition(P)]
        alone = iter(among_workers(known))
        return kind(**{name: next(alone) if is_partition(P) else P for name, P in given.items()}, **options)
    grids = [grid_of(P) for P in given.values()]
    kept = grids[0].made
    key = (kind, tuple(given), *map(id, grids[1:]), str({name: shown(value) for name, value in options.items()}))
    if key not in kept:
        made = kind(**dict(zip(given, among_workers(grids), strict=True)), **options)
        if len(kept) >= _MOST_KEPT:
            _forget_one(kept)
        kept[key] = made, grids  # an id belongs to a grid as long as it is kept
    found: tuple[Made, object] = kept[key]  # type: ignore[assignment]
    return found[0]


def _forget_one(kept: dict[object, object]) -> None:
    """The oldest layer that no compiled program calls."""
    made: dict[object, tuple[Layer, object]] = kept  # type: ignore[assignment]
    oldest = next((key for key, (layer, _) in made.items() if layer not in records), None)
    if oldest is not None:
        del kept[oldest]


def _given(partitions: Mapping[str, Value]) -> dict[str, Value]:
    """Without those that were left out; None for P_x is an error."""
    return {name: P for name, P in partitions.items() if P is not None or name == "P_x"}


def takes_part(partitions: Mapping[str, object]) -> bool:
    """Whether this rank is a worker of any of the partitions, or has to raise an error in them."""
    given = _given(partitions).values()
    return not all(map(is_partition, given)) or any(grid_of(P).active for P in given)


def check_tensor(input: object) -> None:
    """Raise a TypeError for the input of a rank that has no part in a call if it is not a tensor."""
    if not isinstance(input, torch.Tensor):
        raise TypeError(f"the input is of type {type(input).__name__}; it has to be a torch.Tensor")

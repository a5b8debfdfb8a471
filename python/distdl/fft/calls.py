"""Functions that construct a layer at their first call, and use it again in later calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import torch

from distdl.nn.base.compile.registry import records
from distdl.nn.base.compile.torch_ops import call_in_graph
from distdl.nn.base.layer import Layer
from distdl.partitions.construction import PartitionLike, among_workers, grid_of, is_partition, tell
from distdl.partitions.signatures import Params, Returned, raise_together
from distdl.texts import safe_text
from distdl.torch_compat.compilers import assume_constant_result, refuse_objects_in_graphs

AnyLayer = TypeVar("AnyLayer", bound=Layer)
Passed = TypeVar("Passed")

_MOST_LAYERS = 256  # layers by partition


def _raise_on_workers(name: str, error: Exception, arguments: tuple[object, ...]) -> None:
    """Raise an error on the workers of all partitions among the arguments."""
    grids = [grid_of(argument) for argument in arguments if is_partition(argument)]
    tell(name, error, [*among_workers(grids), *(argument for argument in arguments if not is_partition(argument))])


collective_call: Callable[[Callable[Params, Returned]], Callable[Params, Returned]] = raise_together(_raise_on_workers)
"""A decorator for functions that the workers of their partitions call together."""


def call_layer(
    kind: Callable[..., Layer],
    partitions: Mapping[str, PartitionLike | None],
    options: Mapping[str, object],
    input: torch.Tensor,
) -> torch.Tensor:
    """Call the layer with these options on these partitions. Collective over their workers."""
    if torch.compiler.is_compiling():
        key = _layer_key(kind, tuple(partitions), *partitions.values(), **options)
        return call_in_graph(key, [], (input,), {})
    result: torch.Tensor = layer_for(kind, partitions, options)(input)
    return result


@assume_constant_result
def _layer_key(
    kind: Callable[..., Layer], names: Sequence[str], *values: PartitionLike | None, **options: object
) -> int:
    """The layer's key in compiled programs, which cannot construct it."""
    return layer_for(kind, dict(zip(names, values, strict=True)), options).key_in_graphs


def layer_for(
    kind: Callable[..., AnyLayer], partitions: Mapping[str, PartitionLike | None], options: Mapping[str, object]
) -> AnyLayer:
    """The layer with these options on these partitions. Collective over their workers at the first call.

    Layers live as long as the first partition, on all ranks.
    """
    passed = _passed_partitions(partitions)
    if not all(map(is_partition, passed.values())):
        known = [grid_of(P) for P in passed.values() if is_partition(P)]
        alone = iter(among_workers(known))
        return kind(**{name: next(alone) if is_partition(P) else P for name, P in passed.items()}, **options)
    grids = [grid_of(P) for P in passed.values()]
    layers = grids[0].cache
    key = (kind, tuple(passed), *map(id, grids[1:]), str({name: safe_text(value) for name, value in options.items()}))
    if key not in layers:
        layer = kind(**dict(zip(passed, among_workers(grids), strict=True)), **options)
        if len(layers) >= _MOST_LAYERS:
            _forget_oldest(layers)
        layers[key] = layer, grids  # the ids stay valid while the grids are kept
    kept: tuple[AnyLayer, object] = layers[key]  # type: ignore[assignment]
    return kept[0]


def _forget_oldest(layers: dict[object, object]) -> None:
    """Remove the oldest layer that no compiled program calls."""
    typed: dict[object, tuple[Layer, object]] = layers  # type: ignore[assignment]
    oldest = next((key for key, (layer, _) in typed.items() if layer not in records), None)
    if oldest is not None:
        del layers[oldest]


def _passed_partitions(partitions: Mapping[str, Passed]) -> dict[str, Passed]:
    """The partitions without None; P_x stays, since None is an error there."""
    return {name: P for name, P in partitions.items() if P is not None or name == "P_x"}


def takes_part(partitions: Mapping[str, object]) -> bool:
    """Whether this rank is a worker of any of the partitions, or has to raise an error in them."""
    if torch.compiler.is_compiling():
        refuse_objects_in_graphs("a function of distdl.fft")
    passed = _passed_partitions(partitions).values()
    return not all(map(is_partition, passed)) or any(grid_of(P).active for P in passed)


def check_tensor(input: object) -> None:
    """Raise TypeError if the input is not a tensor, on a rank that takes no part in the call."""
    if not isinstance(input, torch.Tensor):
        raise TypeError(f"the input is of type {type(input).__name__}; it has to be a torch.Tensor")

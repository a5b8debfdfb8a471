"""The primitives, interpolation and attention as functions of distributed tensors.

Each call constructs an operator and applies it; in loops, modules of the same names in :mod:`distdl.nn` are cheaper.
All ranks of the communicator that the partitions come from have to call these functions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch

from distdl import operators
from distdl.nn.attention import DistributedScaledDotProductAttention
from distdl.nn.resizing import DistributedUpsample
from distdl.operators.constructors import HaloWidths
from distdl.operators.dispatch import Started
from distdl.partitions.construction import PartitionLike, constructing, constructor, tell

__all__ = [
    "all_gather",
    "all_sum_reduce",
    "broadcast",
    "halo_exchange",
    "interpolate",
    "reduce_scatter",
    "repartition",
    "scaled_dot_product_attention",
    "start",
    "sum_reduce",
    "wait",
]


@constructor
def broadcast(
    x: torch.Tensor,
    P_x: PartitionLike,
    P_y: PartitionLike,
    transpose_src: bool = False,
    transpose_dest: bool = False,
    preserve_batch: bool = True,
) -> torch.Tensor:
    """Copy each worker's tensor from P_x to the workers of P_y that match it. See :class:`distdl.nn.Broadcast`."""
    return operators.broadcast(P_x, P_y, transpose_src, transpose_dest, preserve_batch)(x)


@constructor
def sum_reduce(
    x: torch.Tensor,
    P_x: PartitionLike,
    P_y: PartitionLike,
    transpose_src: bool = False,
    transpose_dest: bool = False,
    preserve_batch: bool = True,
) -> torch.Tensor:
    """Sum tensors from the workers of P_x on the matching workers of P_y. See :class:`distdl.nn.SumReduce`."""
    return operators.sum_reduce(P_x, P_y, transpose_src, transpose_dest, preserve_batch)(x)


@constructor
def all_sum_reduce(
    x: torch.Tensor,
    P_x: PartitionLike,
    axes_reduce: Iterable[int] | None = None,
    axes_keep: Iterable[int] | None = None,
) -> torch.Tensor:
    """Sum along axes of P_x, on all workers. See :class:`distdl.nn.AllSumReduce`."""
    return operators.all_sum_reduce(P_x, axes_reduce, axes_keep)(x)


@constructor
def all_gather(
    x: torch.Tensor,
    P_x: PartitionLike,
    axes_all_gather: Iterable[int] | None = None,
    axes_keep: Iterable[int] | None = None,
) -> torch.Tensor:
    """Put blocks together along axes of P_x, on all workers. See :class:`distdl.nn.AllGather`."""
    return operators.all_gather(P_x, axes_all_gather, axes_keep)(x)


@constructor
def reduce_scatter(
    x: torch.Tensor,
    P_x: PartitionLike,
    axes_reduce_scatter: Iterable[int] | None = None,
    axes_keep: Iterable[int] | None = None,
) -> torch.Tensor:
    """Sum along axes of P_x; each worker receives a block of the sum. See :class:`distdl.nn.ReduceScatter`."""
    return operators.reduce_scatter(P_x, axes_reduce_scatter, axes_keep)(x)


@constructor
def repartition(x: torch.Tensor, P_x: PartitionLike, P_y: PartitionLike, preserve_batch: bool = True) -> torch.Tensor:
    """Move a tensor from its blocks on P_x to balanced blocks on P_y. See :class:`distdl.nn.Repartition`."""
    return operators.repartition(P_x, P_y, preserve_batch)(x)


@constructor
def halo_exchange(
    x: torch.Tensor,
    P_x: PartitionLike,
    halo: HaloWidths,
    periodic: bool | Sequence[bool] = False,
    fill_value: float = 0.0,
) -> torch.Tensor:
    """Grow each block by a halo of its neighbors' elements. See :class:`distdl.nn.HaloExchange`."""
    return operators.halo_exchange(P_x, halo, periodic, fill_value)(x)


@constructor
def interpolate(
    x: torch.Tensor,
    P_x: PartitionLike,
    size: int | tuple[int, ...] | None = None,
    scale_factor: float | tuple[float, ...] | None = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
    antialias: bool = False,
    *,
    output_blocks: str = "balanced",
) -> torch.Tensor:
    """Resize a tensor in space. See :class:`distdl.nn.DistributedUpsample`.

    Raises:
        NotImplementedError: on all ranks, if ``antialias`` is true.
    """
    with constructing("interpolate", {"P_x": P_x}, {"antialias": antialias}) as (known,):
        if antialias:
            raise NotImplementedError("interpolate: antialias=True is not implemented")
    options = (size, scale_factor, mode, align_corners, recompute_scale_factor)
    return DistributedUpsample(known, *options, output_blocks=output_blocks)(x)


@constructor
def scaled_dot_product_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    P_x: PartitionLike,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    method: str | None = None,
) -> torch.Tensor:
    """Attend to keys in blocks. See :class:`distdl.nn.DistributedScaledDotProductAttention`."""
    options = (dropout_p, is_causal, scale, enable_gqa)
    return DistributedScaledDotProductAttention(P_x, *options, method=method)(query, key, value, attn_mask)


@constructor
def start(function: Callable[..., torch.Tensor], x: torch.Tensor, *arguments: object, **options: object) -> Started:
    """Begin ``function(x, *arguments, **options)``; :func:`distdl.functional.wait` returns the result.

    Args:
        function: a primitive of this module, such as ``distdl.functional.broadcast``.
        x: this rank's tensor.
        arguments, options: further arguments of the function.

    Collective like the function. See :meth:`distdl.nn.Broadcast.start`.

    Example:
        >>> started = distdl.functional.start(distdl.functional.broadcast, x, P_x, P_y)
        >>> z = compute_something_else()
        >>> y = distdl.functional.wait(started)

    Raises:
        ValueError: on all ranks, if ``function`` is not a primitive of this module.
    """
    if getattr(function, "__module__", None) != __name__ or not hasattr(operators, function.__name__):
        error = ValueError(f"start: {function!r} is no primitive of distdl.functional")
        tell("start", error, (*arguments, *options.values()))
    construct = constructor(getattr(operators, function.__name__))
    return construct(*arguments, **options).start(x)


def wait(started: Started) -> torch.Tensor:
    """The result of a started call. Each start needs a wait; no other rank has to call it.

    Raises:
        TypeError: if ``started`` is not a result of :func:`distdl.functional.start`.
        RuntimeError: if the call was waited for before, or its input was written since the start.
    """
    if not hasattr(started, "wait"):
        raise TypeError(f"wait: {started!r} is not what start() returned")
    return started.wait()

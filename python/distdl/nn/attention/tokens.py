"""Checks of layers of tokens: partitions and tensors of (N, L, E), (L, N, E) or (L, E)."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from distdl.collective.grid import Grid
from distdl.nn.layer import Described, Layer


def check_partition(layer: str, grid: Grid) -> None:
    """Refuse a partition that is not of tokens, or splits the features.

    Raises:
        ValueError: if it does.
    """
    if grid.known and (len(grid.shape) not in (2, 3) or grid.shape[-1] != 1):
        raise ValueError(
            f"{layer}: P_x has shape {list(grid.shape)}; it must be [batch, sequence, 1] with batch_first, [sequence, "
            "batch, 1] without, or [sequence, 1]. Each projection reads all features of a token, so these are not "
            "split; split the sequence, whose tokens are exchanged for heads. Repartition brings split features there"
        )


def check_features(
    layer: Layer, name: str, described: Sequence[Described], features: int | None, autocast: torch.dtype | None
) -> None:
    """Refuse tensors of other features or another dtype than the layer's.

    Raises:
        ValueError: if a worker's tensor does not fit.
        RuntimeError: if its dtype does not.
    """
    title, dtype = type(layer).__name__, next(layer.parameters()).dtype
    for worker, (shape, kind) in enumerate(described):
        if len(shape) != layer.grid.dim or shape[-1] != features:
            raise ValueError(
                f"{title}: worker {worker} of P_x has a {name} of shape {shape}; it must have the {layer.grid.dim} "
                f"dimensions of P_x, and {features} features"
            )
        if kind != dtype and (autocast is None or not kind.is_floating_point):
            raise RuntimeError(f"{title}: the {name} of worker {worker} is {kind} but the parameters are {dtype}")

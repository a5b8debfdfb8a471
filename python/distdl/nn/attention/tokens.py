"""Checks of partitions and tensors of tokens, (N, L, E), (L, N, E) or (L, E)."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from distdl.nn.base.layer import Layer
from distdl.nn.base.voted_layer import Described

TOKENS = (
    "it must be [batch, sequence, 1] with batch_first, [sequence, batch, 1] without, or [sequence, 1]. Each projection "
    "reads all features of a token, so these are not split; split the sequence, whose tokens are exchanged for heads. "
    "Repartition brings split features there"
)


def check_partition(layer: Layer) -> None:
    """Raise ValueError if P_x is not of tokens, or splits the features."""
    layer.check_shape(layer.grid.dim in (2, 3) and layer.grid.shape[-1] == 1, TOKENS)


def check_token_features(
    layer: Layer, name: str, described: Sequence[Described], features: int | None, autocast: torch.dtype | None
) -> None:
    """Check the features and dtype of all workers' tensors.

    Raises:
        ValueError: if a worker's tensor has other dimensions or features.
        RuntimeError: if its dtype differs from the layer's.
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

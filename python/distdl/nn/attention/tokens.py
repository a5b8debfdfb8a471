"""Checks of partitions and tensors of tokens, (N, L, E), (L, N, E) or (L, E)."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from distdl.nn.base.layer import Layer
from distdl.nn.base.voted_layer import Described

TOKENS = (
    "it must be [batch, sequence, 1] with batch_first, [sequence, batch, 1] without, or [sequence, 1]. Each projection "
    "reads all features of a token, so they cannot be split; split the sequence, if need be by Repartition before"
)


def check_partition(layer: Layer) -> None:
    """Raise ValueError if P_x has other dimensions than tokens, or splits the features."""
    layer.check_shape(layer.grid.dim in (2, 3) and layer.grid.shape[-1] == 1, TOKENS)


def check_token_features(
    layer: Layer, name: str, described: Sequence[Described], features: int | None, autocast: torch.dtype | None
) -> None:
    """Check the features and the dtype of a tensor on all workers.

    Args:
        name: of the tensor, for messages.
        described: its shape and dtype on each worker.

    Raises:
        ValueError: if it has another number of dimensions or features on any worker.
        RuntimeError: if it has another dtype than the parameters, and autocast does not convert it.
    """
    title, dtype_of_parameters = type(layer).__name__, next(layer.parameters()).dtype
    for worker, (shape, dtype) in enumerate(described):
        if len(shape) != layer.grid.dim or shape[-1] != features:
            raise ValueError(
                f"{title}: worker {worker} of P_x has a {name} of shape {shape}; it must have the {layer.grid.dim} "
                f"dimensions of P_x, and {features} features"
            )
        if dtype != dtype_of_parameters and (autocast is None or not dtype.is_floating_point):
            raise RuntimeError(
                f"{title}: the {name} of worker {worker} is {dtype} but the parameters are {dtype_of_parameters}"
            )

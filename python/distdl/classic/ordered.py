"""Layers whose outputs are in another order than the sequential layer's: each worker has its own of each part."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from distdl.classic.keys import OldLayer
from distdl.modules.sequential_state import load_sequential, sequential_state_dict
from distdl.parameters.initial import Initializer
from distdl.partitions.boxes import cut
from distdl.partitions.comparison import gather_or_raise
from distdl.partitions.construction import PartitionLike


def order_of_parts(name: str, parts: Sequence[tuple[int, int]], workers: int) -> torch.Tensor:
    """Where the outputs of all workers, one after the other, stand in the sequential layer.

    Args:
        name: of the layer, for messages.
        parts: of the outputs of the sequential layer, (units, size of a unit): heads of queries, of keys, of values.
        workers: over which the units of each part are spread.

    Raises:
        ValueError: if the units of a part cannot be spread evenly.
    """
    starts, start = [], 0
    for units, size in parts:
        if units % workers:
            raise ValueError(f"{name}: {units} units of outputs cannot be spread evenly over {workers} workers")
        starts.append(start)
        start += units * size
    order: list[int] = []
    for worker in range(workers):
        for (units, size), first in zip(parts, starts, strict=True):
            low, high = cut(units, workers)[worker]
            order.extend(range(first + low * size, first + high * size))
    return torch.tensor(order, dtype=torch.long, device="cpu")


def parts_of_heads(name: str, outputs: int, heads: int, heads_kv: int | None, variables: int) -> list[tuple[int, int]]:
    """The parts of a projection to queries, keys and values.

    Raises:
        ValueError: if the outputs are not those of so many heads.
    """
    units = [heads, *[heads if heads_kv is None else heads_kv] * (variables - 1)]
    if outputs % sum(units):
        raise ValueError(f"{name}: out_features={outputs} is not divisible by the {sum(units)} heads of {units}")
    return [(count, outputs // sum(units)) for count in units]


class OrderedLayer(OldLayer):
    """A layer whose parameters have outputs in dimension ``outputs_dim``, which may be in another order.

    States of the whole model, and first values, are those of the sequential layer.
    """

    outputs_dim = 0

    def order(self) -> torch.Tensor | None:
        """Where the outputs stand in the sequential layer; None if they stand there in order."""
        return None

    def declare_parameter(
        self, name: str, P: PartitionLike, shape: Sequence[int], axes: Sequence[int | None], **options: object
    ) -> None:
        """Declare a parameter whose first values are put in order."""
        order, initialize = self.order(), options.get("initialize")
        if order is not None and callable(initialize):
            options["initialize"] = self._ordered(initialize, order)
        super().declare_parameter(name, P, shape, axes, **options)

    def _ordered(self, initialize: Initializer, order: torch.Tensor) -> Initializer:
        def fill(whole: torch.Tensor) -> None:
            initialize(whole)
            whole.copy_(whole.index_select(self.outputs_dim, order))

        return fill

    @contextmanager
    def in_order_of_torch(self, optimizer: torch.optim.Optimizer | None) -> Iterator[None]:
        if self.order() is None or not self.grid.constructing_ranks().known:
            yield
            return
        self._rearrange_all(optimizer, True)
        try:
            yield
        finally:
            self._rearrange_all(optimizer, False)

    def _rearrange_all(self, optimizer: torch.optim.Optimizer | None, gathered: bool) -> None:
        """Rearrange in place the parameters, their gradients, and what an optimizer keeps in their shape."""
        self._rearrange(gathered)
        parameters = dict(self.named_parameters())
        kept: dict[str, dict[str, torch.Tensor]] = {}  # by kind, and by parameter

        def kinds() -> bytes:
            for name, parameter in parameters.items():
                states = {} if optimizer is None else optimizer.state.get(parameter, {})
                for kind, tensor in {"gradient": parameter.grad, **states}.items():
                    if isinstance(tensor, torch.Tensor) and tensor.shape == parameter.shape:
                        kept.setdefault(kind, {})[name] = tensor
            return json.dumps(list(kept)).encode()

        told = gather_or_raise(type(self).__name__, self.grid.constructing_ranks(), kinds)
        values = {name: parameter.data for name, parameter in parameters.items()}
        for kind in sorted({kind for text in told for kind in json.loads(text)}):
            for name, parameter in parameters.items():
                parameter.data = kept.get(kind, {}).get(name, torch.zeros_like(values[name])).detach()
            self._rearrange(gathered)
        for name, parameter in parameters.items():
            parameter.data = values[name]

    def _rearrange(self, gathered: bool) -> None:
        """Bring the parameters into the order of the sequential layer, or back into that of this layer's blocks."""
        wholes = sequential_state_dict(self)
        load_sequential(self, {name: self.in_order(name, tensor, gathered) for name, tensor in wholes.items()})

    def in_order(self, name: str, whole: torch.Tensor, gathered: bool) -> torch.Tensor:
        order = self.order()
        if order is None or whole.dim() <= self.outputs_dim or whole.shape[self.outputs_dim] != len(order):
            return whole
        return whole.index_select(self.outputs_dim, order.argsort() if gathered else order)

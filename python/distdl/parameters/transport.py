"""The transport of parameters from their owners to the workers that use them, as a linear operator.

Its adjoint brings gradients back, summed over the workers.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence

import torch

from distdl import _core, operators
from distdl.operators.dispatch import Applied, Operator
from distdl.parameters.layout import Layout
from distdl.partitions.boxes import cut
from distdl.torch_compat.memory import flatten_tensors

TensorSequence = Sequence[torch.Tensor]

_LARGE_PARAMETER = 1 << 14  # elements; a large parameter is a message without a copy


def zero_of(tensor: torch.Tensor) -> torch.Tensor:
    """0, as an empty sum over a tensor, to connect a result with the tensor in the autograd graph.

    Without the connection on a rank without work, ``torch.autograd.grad`` and second derivatives would leave out
    communication there, for which other ranks wait.
    """
    return tensor.flatten()[:0].sum(dtype=tensor.dtype)  # autocast gives sums single precision on a GPU


class Transport:
    """Brings parameters to the workers that use them, as one message.

    Args:
        layouts: the layouts of the parameters, of the same kind, on the same grid and with the same copies.

    Constructing and calling are collective over the workers.
    """

    def __init__(self, layouts: Sequence[Layout]) -> None:
        self.layouts = layouts
        self._shapes = [layout.used_shape for layout in layouts]

    @staticmethod
    def of(layouts: Sequence[Layout]) -> Transport:
        first = layouts[0]
        if not first.grid.known or first.replicas == 1:
            return Transport(layouts)
        return {"owner": FromOwner, "sharded": FromShards, "replicated": FromReplicas}[first.kind](layouts)

    def start(self, parameters: TensorSequence) -> Callable[[], TensorSequence]:
        """Start the transport; the returned function waits for it. Other ranks get their arguments back."""
        return lambda: parameters

    def __call__(self, parameters: TensorSequence) -> TensorSequence:
        """The blocks that this worker uses, from the parts on all ranks."""
        return self.start(parameters)()

    def beside_vote(self, parameters: TensorSequence) -> list[Applied]:
        """The operator that brings these parameters, and its message, if it is small on all ranks; at most one."""
        return []


class ByMessage(Transport):
    """A transport by an operator that takes the parameters as one message.

    Args:
        operator: None on ranks without a part.
    """

    def __init__(self, layouts: Sequence[Layout], operator: Operator | None) -> None:
        super().__init__(layouts)
        self._operator = operator

    def start(self, parameters: TensorSequence) -> Callable[[], TensorSequence]:
        if self._operator is None:
            return lambda: parameters
        started = self._operator.start(self._message(parameters))
        return lambda: self._parts(started.wait())

    def __call__(self, parameters: TensorSequence) -> TensorSequence:
        return parameters if self._operator is None else self._parts(self._operator(self._message(parameters)))

    def beside_vote(self, parameters: TensorSequence) -> list[Applied]:
        if self._operator is None:
            return []
        elements = sum(math.prod(layout.shape) for layout in self.layouts)  # of wholes, which all ranks know
        small = _core.goes_directly(elements * parameters[0].dtype.itemsize, self.layouts[0].replicas)
        return [(self._operator.core, self._message(parameters))] if small else []

    def _message(self, parameters: TensorSequence) -> torch.Tensor:
        return flatten_to_message(parameters)

    def _parts(self, flat: torch.Tensor) -> TensorSequence:
        return tensors_of_message(flat, self._shapes)


class FromOwner(ByMessage):
    """A broadcast from the owner of a block. The adjoint sums the gradients there."""

    def __init__(self, layouts: Sequence[Layout]) -> None:
        self._owners, workers = layouts[0].owner_grid, layouts[0].grid
        broadcast = operators.broadcast(self._owners, workers)
        super().__init__(layouts, broadcast if workers.active else None)

    def _message(self, parameters: TensorSequence) -> torch.Tensor:
        if self._owners.active:
            return flatten_to_message(parameters)
        return functools.reduce(torch.add, [parameter.reshape(-1) for parameter in parameters])


class FromShards(ByMessage):
    """A gathering of the shards of a block. The adjoint scatters the sum of gradients."""

    def __init__(self, layouts: Sequence[Layout]) -> None:
        grid, gather = layouts[0].grid, None
        if grid.active:
            gather = operators.all_gather_among(grid.line(layouts[0].replica_ranks(grid.place)))
            self._pieces = [self._pieces_of(layout) for layout in layouts]
        super().__init__(layouts, gather)

    @staticmethod
    def _pieces_of(layout: Layout) -> list[tuple[int, ...]]:
        """The shapes of the shards of the block that this worker uses, by worker."""
        shape, d = layout.used_shape, layout.shard_dim
        if d is None:  # a scalar, on the first worker
            return [shape] + [(0, *shape[1:])] * (layout.replicas - 1)
        return [(*shape[:d], stop - start, *shape[d + 1 :]) for start, stop in cut(shape[d], layout.replicas)]

    def _parts(self, flat: torch.Tensor) -> TensorSequence:
        if len(self.layouts) == 1 and self.layouts[0].shard_dim == 0:  # the shards are in order
            return super()._parts(flat)
        by_worker = [shapes for worker in zip(*self._pieces, strict=True) for shapes in worker]
        pieces = tensors_of_message(flat, by_worker)
        count = len(self.layouts)
        return [
            pieces[i] if layout.shard_dim is None else torch.cat(pieces[i::count], layout.shard_dim)
            for i, layout in enumerate(self.layouts)
        ]


class FromReplicas(Transport):
    """Nothing travels: each worker has its block. The adjoint sums the gradients on all workers, in one message."""

    def __init__(self, layouts: Sequence[Layout]) -> None:
        super().__init__(layouts)
        self._active = layouts[0].grid.active
        if self._active:
            users = layouts[0].grid.line(layouts[0].replica_ranks(layouts[0].grid.place))
            self._replicate = [operators.replicate(users) for _ in layouts]

    def start(self, parameters: TensorSequence) -> Callable[[], TensorSequence]:
        used = self(parameters)
        return lambda: used

    def __call__(self, parameters: TensorSequence) -> TensorSequence:
        if not self._active:
            return parameters
        if len({parameter.dtype for parameter in parameters}) > 1 or len(parameters) == 1:
            return [replicate(parameter) for replicate, parameter in zip(self._replicate, parameters, strict=True)]
        return tensors_of_message(self._replicate[0](flatten_to_message(parameters)), self._shapes)


def flatten_to_message(parameters: TensorSequence) -> torch.Tensor:
    """The elements of all parameters, as one message."""
    if len({parameter.dtype for parameter in parameters}) > 1:
        raise TypeError(
            f"the parameters have dtypes {[str(p.dtype) for p in parameters]}, and travel together; convert all "
            "parameters of the layer, or make it with parameters of these dtypes"
        )
    if all(parameter.numel() for parameter in parameters):
        message: torch.Tensor = flatten_tensors(parameters)
        return message
    # torch would lose parameters without elements from second derivatives.
    whole = torch.cat([parameter.reshape(-1) for parameter in parameters])
    for empty in (parameter for parameter in parameters if parameter.numel() == 0):
        whole = whole + zero_of(empty)
    return whole


def tensors_of_message(message: torch.Tensor, shapes: Sequence[tuple[int, ...]]) -> TensorSequence:
    """The tensors of these shapes in a message.

    Several tensors are copied, since views of other dtypes, and some kernels, need aligned memory.
    """
    if len(shapes) == 1:
        return [message.view(shapes[0])]
    parts = torch.split_with_sizes_copy(message, [math.prod(shape) for shape in shapes])
    return [part.view(shape) for part, shape in zip(parts, shapes, strict=True)]


class ParameterTransport:
    """Brings a layer's parameters to the workers that use them. Small parameters of the same workers share a message.

    Args:
        layouts: the layouts of the parameters, in order.
        dtypes: their dtypes, since a message has a single dtype; None if all are equal.

    Attributes:
        is_identity: whether each worker has the parameters that it uses, so that nothing travels.
        is_small: whether no parameter is a message of its own.
        was_called: whether parameters were ever brought.

    Constructing and calling are collective over the workers of the layouts.
    """

    def __init__(self, layouts: Sequence[Layout], dtypes: Sequence[torch.dtype] | None = None) -> None:
        together: dict[tuple[object, ...], list[int]] = {}
        for i, layout in enumerate(layouts):
            alone = i if math.prod(layout.shape) > _LARGE_PARAMETER else None
            kind = layout.kind, dtypes[i] if dtypes else None
            together.setdefault((layout.grid.ranks, layout.grid.shape, layout.replica_axes, *kind, alone), []).append(i)
        self._transports = [(members, Transport.of([layouts[i] for i in members])) for members in together.values()]
        self.is_small = all(math.prod(layout.shape) <= _LARGE_PARAMETER for layout in layouts)
        self.is_identity = all(type(transport) is Transport for _, transport in self._transports)
        self.was_called = False

    def __call__(self, parameters: TensorSequence) -> TensorSequence:
        """The blocks that this worker uses; see :class:`Transport`."""
        if self.is_identity:
            return parameters
        if len(self._transports) == 1:
            self.was_called = True
            return self._transports[0][1](parameters)
        return self.start(parameters)()

    def beside_vote(self, parameters: TensorSequence) -> list[Applied]:
        """The operator that brings the first of these parameters, and its message; see :class:`Transport`."""
        if self.is_identity:
            return []
        members, transport = self._transports[0]
        return transport.beside_vote([parameters[i] for i in members])

    def start(self, parameters: TensorSequence) -> Callable[[], TensorSequence]:
        """Start the transport; see :class:`Transport`."""
        if self.is_identity:
            return lambda: parameters
        self.was_called = True
        started = [
            (members, transport.start([parameters[i] for i in members])) for members, transport in self._transports
        ]

        def wait() -> TensorSequence:
            arrived: dict[int, torch.Tensor] = {}
            for members, transported in started:
                arrived.update(zip(members, transported(), strict=True))
            return [arrived[i] for i in range(len(parameters))]

        return wait

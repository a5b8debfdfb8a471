"""How parameters get from where they live to the workers that use them: a linear operator, too.

Its adjoint brings gradients back to where the parameters live, summed over the workers that used them.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Sequence

import torch
from torch._utils import _flatten_dense_tensors

from distdl import operators
from distdl.parameters.layout import Layout, cut

Tensors = Sequence[torch.Tensor]

_LARGE = 1 << 14  # elements: in a message of its own, a parameter needs no copy


def zero_of(tensor: torch.Tensor) -> torch.Tensor:
    """0, as the sum of none of the elements: where nothing is computed, it connects a result with a tensor.

    A derivative that does not reach a parameter or an input on one rank leaves out the communication on the way, for
    which the other ranks wait: in ``torch.autograd.grad``, and in derivatives of derivatives.
    """
    return tensor.flatten()[:0].sum()


class Transport:
    """Brings parameters to their use, as one message.

    Args:
        layouts: of the parameters, of the same kind, on the same grid and with the same copies.

    Constructing and calling are collective over the workers.
    """

    def __init__(self, layouts: Sequence[Layout]) -> None:
        self.layouts = layouts
        self._shapes = [layout.used_shape for layout in layouts]

    @staticmethod
    def of(layouts: Sequence[Layout]) -> Transport:
        """The way that fits the kind of these layouts."""
        first = layouts[0]
        if not first.grid.known or first.users == 1:
            return Transport(layouts)
        return {"owner": FromOwner, "sharded": FromShards, "replicated": FromCopies}[first.kind](layouts)

    def start(self, parameters: Tensors) -> Callable[[], Tensors]:
        """Let the parameters travel; what it returns waits for them. Outside of the workers they stay as they are."""
        return lambda: parameters

    def __call__(self, parameters: Tensors) -> Tensors:
        """The blocks that this worker uses, from what lives on this rank."""
        return self.start(parameters)()


class FromOwner(Transport):
    """A broadcast from the worker on which a block lives. The adjoint sums the gradients there."""

    def __init__(self, layouts: Sequence[Layout]) -> None:
        super().__init__(layouts)
        self._owners, self._workers = layouts[0].owners, layouts[0].grid
        self._broadcast = operators.broadcast(self._owners, self._workers)

    def start(self, parameters: Tensors) -> Callable[[], Tensors]:
        if not self._workers.active:
            return lambda: parameters
        started = self._broadcast.start(self._message(parameters))
        return lambda: self._parts(started.wait())

    def __call__(self, parameters: Tensors) -> Tensors:
        return self._parts(self._broadcast(self._message(parameters))) if self._workers.active else parameters

    def _message(self, parameters: Tensors) -> torch.Tensor:
        if self._owners.active:
            return joined(parameters)
        return functools.reduce(operator.add, [parameter.reshape(-1) for parameter in parameters])

    def _parts(self, flat: torch.Tensor) -> Tensors:
        return parted(flat, self._shapes)


class FromShards(Transport):
    """A gathering of the shards of a block from all workers that use it. The adjoint scatters the sum of gradients."""

    def __init__(self, layouts: Sequence[Layout]) -> None:
        super().__init__(layouts)
        self._active = layouts[0].grid.active
        if self._active:
            place = layouts[0].grid.place
            users = layouts[0].users_of(place)
            self._gather = operators.all_gather_among(layouts[0].grid.line(users))
            self._pieces = [self._pieces_of(layout) for layout in layouts]

    @staticmethod
    def _pieces_of(layout: Layout) -> list[tuple[int, ...]]:
        """The shapes of the shards of the block that this worker uses, by worker."""
        shape, d = layout.used_shape, layout.shard_dim
        if d is None:  # a scalar, which is all on the first worker
            return [shape] + [(0, *shape[1:])] * (layout.users - 1)
        return [(*shape[:d], stop - start, *shape[d + 1 :]) for start, stop in cut(shape[d], layout.users)]

    def start(self, parameters: Tensors) -> Callable[[], Tensors]:
        if not self._active:
            return lambda: parameters
        started = self._gather.start(joined(parameters))
        return lambda: self._parts(started.wait())

    def __call__(self, parameters: Tensors) -> Tensors:
        if not self._active:
            return parameters
        return self._parts(self._gather(joined(parameters)))

    def _parts(self, flat: torch.Tensor) -> Tensors:
        if len(self.layouts) == 1 and self.layouts[0].shard_dim == 0:  # the shards are in order
            return parted(flat, self._shapes)
        by_worker = [shapes for worker in zip(*self._pieces, strict=True) for shapes in worker]
        pieces = parted(flat, by_worker)
        count = len(self.layouts)
        return [
            pieces[i] if layout.shard_dim is None else torch.cat(pieces[i::count], layout.shard_dim)
            for i, layout in enumerate(self.layouts)
        ]


class FromCopies(Transport):
    """Nothing travels: each worker has its block. The adjoint sums the gradients on all workers that used it."""

    def __init__(self, layouts: Sequence[Layout]) -> None:
        super().__init__(layouts)
        self._active = layouts[0].grid.active
        if self._active:
            users = layouts[0].grid.line(layouts[0].users_of(layouts[0].grid.place))
            self._replicate = [operators.replicate(users) for _ in layouts]

    def start(self, parameters: Tensors) -> Callable[[], Tensors]:
        used = self(parameters)
        return lambda: used

    def __call__(self, parameters: Tensors) -> Tensors:
        if not self._active:
            return parameters
        return [replicate(one) for replicate, one in zip(self._replicate, parameters, strict=True)]


def joined(parameters: Tensors) -> torch.Tensor:
    """The elements of all tensors, as one message."""
    if len({one.dtype for one in parameters}) > 1:
        raise TypeError(
            f"the parameters have dtypes {[str(one.dtype) for one in parameters]}, and travel together; convert all "
            "parameters of the layer, or make it with parameters of these dtypes"
        )
    if all(parameter.numel() for parameter in parameters):
        message: torch.Tensor = _flatten_dense_tensors(parameters)
        return message
    # torch would lose those without elements from derivatives of derivatives.
    whole = torch.cat([parameter.reshape(-1) for parameter in parameters])
    for empty in (one for one in parameters if one.numel() == 0):
        whole = whole + zero_of(empty)
    return whole


def parted(message: torch.Tensor, shapes: Sequence[tuple[int, ...]]) -> Tensors:
    """The tensors of these shapes whose elements are in a message.

    Each of several has memory of its own, as parameters of torch.nn: views of another dtype, and some kernels, need it
    aligned. A large parameter travels alone, and is the message itself.
    """
    if len(shapes) == 1:
        return [message.view(shapes[0])]
    parts = torch.split_with_sizes_copy(message, [math.prod(shape) for shape in shapes])
    return [part.view(shape) for part, shape in zip(parts, shapes, strict=True)]


class ParameterTransport:
    """Brings all parameters of a layer to their use: what the same workers use as one message, but large ones alone.

    Args:
        layouts: of the parameters, in order.
        dtypes: likewise; None where all parameters have the same one. Of others, none travel together.

    Constructing and calling are collective over the workers of the layouts.
    """

    def __init__(self, layouts: Sequence[Layout], dtypes: Sequence[torch.dtype] | None = None) -> None:
        together: dict[tuple[object, ...], list[int]] = {}
        for i, layout in enumerate(layouts):
            alone = i if math.prod(layout.shape) > _LARGE else None
            kind = layout.kind, dtypes[i] if dtypes else None
            together.setdefault((layout.grid.ranks, layout.grid.shape, layout.copies, *kind, alone), []).append(i)
        self._transports = [(members, Transport.of([layouts[i] for i in members])) for members in together.values()]
        self.is_identity = all(type(transport) is Transport for _, transport in self._transports)

    def __call__(self, parameters: Tensors) -> Tensors:
        """The blocks that this worker uses, from what lives on this rank; outside of the workers what is there."""
        if self.is_identity:
            return parameters
        if len(self._transports) == 1:
            return self._transports[0][1](parameters)
        return self.start(parameters)()

    def start(self, parameters: Tensors) -> Callable[[], Tensors]:
        """Let the parameters travel; what it returns waits for them."""
        if self.is_identity:
            return lambda: parameters
        started = [
            (members, transport.start([parameters[i] for i in members])) for members, transport in self._transports
        ]

        def wait() -> Tensors:
            arrived: dict[int, torch.Tensor] = {}
            for members, transported in started:
                arrived.update(zip(members, transported(), strict=True))
            return [arrived[i] for i in range(len(parameters))]

        return wait

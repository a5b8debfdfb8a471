"""The base class of primitives: layers around a linear operator."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from distdl.modules.module import Module
from distdl.operators.dispatch import Operator, Started
from distdl.operators.halo_in_room import HaloInRoom
from distdl.partitions.construction import PartitionLike, grid_of


class Primitive(Module):
    """A layer around an operator of the C++ core, which votes on the structure of its input.

    ``layer(x)`` is ``layer.wait(layer.start(x))``.
    """

    uses_hooks = False

    workers_of_blocks: tuple[Sequence[int], Sequence[int] | None]
    """The workers along each dimension of the input and of the result; None if the result's blocks may be equal."""

    def __init__(
        self,
        operator: Operator | HaloInRoom,
        description: str,
        P_x: PartitionLike,
        P_y: PartitionLike | None = None,
    ) -> None:
        super().__init__()
        self.workers_of_blocks = grid_of(P_x).shape, None if P_y is None else grid_of(P_y).shape
        self._operator = operator
        self._description = description

    def __call__(self, *args: object, **kwargs: object) -> torch.Tensor:
        try:
            return super().__call__(*args, **kwargs)
        except TypeError:
            self.refuse_misfit(self.forward, args, kwargs)
            raise

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Apply the operator. Collective over the ranks of its partitions."""
        return self._operator(input)

    def refuse(self, problem: Exception) -> None:
        self._operator.refuse(problem)

    def start(self, input: torch.Tensor) -> Started:
        """Start to apply the operator, and return the started call at once, for :meth:`wait`.

        The data travels during other computation; in the backward pass, the adjoint's travels during derivatives of
        that computation. Several calls may be under way; all ranks must start them in the same order. The input must
        not be written before the wait.

        Collective over the ranks of the partitions. Raises the exceptions of a call.
        """
        return self._operator.start(input)

    def wait(self, started: Started) -> torch.Tensor:
        """The result of a started call. Each start needs a wait; no other rank has to call it.

        Raises:
            RuntimeError: if the call was waited for before, or the input was written since :meth:`start`. A started
                call that was never waited for raises at the next call of any operator, on all of its ranks.
            TypeError: if ``started`` is not a result of :meth:`start`.
            ValueError: if another layer started the call.
        """
        if not hasattr(started, "wait"):
            raise TypeError(f"{type(self).__name__}: wait() was passed {started!r}, which is not what start() returned")
        if started.name not in (self._operator.name, "Clone"):
            raise ValueError(f"{type(self).__name__}: wait() was passed a start of {started.name}")
        return started.wait()

    def extra_repr(self) -> str:
        return self._description

    def __deepcopy__(self, memo: dict[int, object]) -> Primitive:
        return self  # without parameters; copies share the operator

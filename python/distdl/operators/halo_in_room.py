"""The halo exchange of tensors with room for their halos: the form with four arguments."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from distdl.operators.constructors import HaloWidths, gather_widths, halo_exchange, halo_widths
from distdl.operators.dispatch import Started
from distdl.partitions.construction import PartitionLike, constructing

if TYPE_CHECKING:
    from distdl.partitions.grid import Grid


class HaloInRoom:
    """A halo exchange of tensors with room for their halos: the form with four arguments.

    Args:
        room: [dim, 2] widths of the room around this worker's block.
        received: [dim, 2] widths of the halos that arrive in the room, next to the block; at most the room.
        sent: [dim, 2] widths of the slices for the neighbors, which must equal the neighbors' ``received``.

    Raises:
        ValueError: on all ranks, if widths do not fit the partition or each other.

    Constructing is collective over the communicator that P_x comes from, calling over its workers.
    """

    name = "HaloExchange"

    def __init__(
        self, P_x: PartitionLike, room: HaloWidths, received: HaloWidths, sent: HaloWidths | None = None
    ) -> None:
        form = "three arguments" if sent is None else "four arguments"
        with constructing("HaloExchange", {"P_x": P_x}, {"form": form}) as (x,):
            if x.active:
                self._room, self._received = halo_widths(room, x.dim), halo_widths(received, x.dim)
                for d, (space, width) in enumerate(zip(self._room, self._received, strict=True)):
                    if any(not 0 <= w <= s for w, s in zip(width, space, strict=True)):
                        raise ValueError(
                            f"HaloExchange: in dimension {d} widths {width} are received into room for {space}; they "
                            "must be at least 0 and at most the room"
                        )
        if sent is not None:
            self._check_sent(x, sent)
        self._exchange = halo_exchange(x, self._received if x.active else 0)
        self._active = x.active

    def _check_sent(self, x: Grid, sent: HaloWidths) -> None:
        widths_of_workers = gather_widths(x, self._received if x.active else [])
        with constructing("HaloExchange", {"P_x": x}, {}):
            if x.active:
                widths = halo_widths(sent, x.dim)
                for d, neighbors in enumerate(x.neighbors(x.rank)):
                    for side, neighbor in enumerate(neighbors):
                        expected = 0 if neighbor < 0 else widths_of_workers[neighbor][d][1 - side]
                        if widths[d][side] != expected:
                            raise ValueError(
                                f"HaloExchange: worker {x.rank} sends {widths[d][side]} elements to its "
                                f"{('left', 'right')[side]} neighbor in dimension {d}, which receives {expected}"
                            )

    @property
    def active(self) -> bool:
        return self._active

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """A copy of x with the halos in the room."""
        if not self._active:
            return self._exchange(x)
        arrived = self._exchange(self._block(x))  # raises for an unreadable x before it is copied
        grown, target = self._copy(x)
        target.copy_(arrived)
        return grown

    def start(self, x: torch.Tensor) -> Started:
        """Begin to receive the halos in a copy of x."""
        if not self._active:
            return self._exchange.start(x)
        started = self._exchange.start(self._block(x))
        return _StartedHaloInRoom(*self._copy(x), started)

    def refuse(self, problem: object) -> None:
        """Raise an error in this worker's input on all workers, in place of a call."""
        self._exchange.refuse(problem)

    def _problem_of(self, x: object) -> object:
        """None if x has room for its halos, else an argument for refuse(): x or an exception."""
        if not isinstance(x, torch.Tensor) or x.is_nested or x.is_quantized or x.layout is not torch.strided:
            return x
        needed = [left + right for left, right in self._room]
        if x.ndim == len(needed) and all(n >= room for n, room in zip(x.shape, needed, strict=True)):
            return x if x.is_meta else None
        return ValueError(f"is of shape {list(x.shape)}; it must have room for halos of {self._room}")

    def _block(self, x: torch.Tensor) -> torch.Tensor:
        problem = self._problem_of(x)
        if problem is not None or not isinstance(x, torch.Tensor):
            self._exchange.refuse(problem)
        block = x
        try:
            for d, (left, right) in enumerate(self._room):
                block = block.narrow(d, left, x.shape[d] - left - right)
        except RuntimeError:  # its memory was taken away
            self._exchange.refuse(x)
            raise
        return block

    def _copy(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """A copy of x, and the part of the copy that the exchange fills."""
        grown = x.clone()
        target = grown
        for d, ((left, right), (from_left, from_right)) in enumerate(zip(self._room, self._received, strict=True)):
            width = x.shape[d] - left - right
            target = target.narrow(d, left - from_left, width + from_left + from_right)
        return grown, target


@dataclass(frozen=True)
class _StartedHaloInRoom:
    grown: torch.Tensor
    target: torch.Tensor
    started: Started

    name = HaloInRoom.name

    def wait(self) -> torch.Tensor:
        self.target.copy_(self.started.wait())
        return self.grown

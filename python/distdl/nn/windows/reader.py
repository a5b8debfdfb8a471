"""Boxes of a tensor in blocks, with padding for the elements beyond the tensor."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from distdl import operators
from distdl.nn.kernels.channels_last import selected
from distdl.partitions.boxes import Interval
from distdl.partitions.grid import Grid

# Modes that repeat elements: positions inside for positions beyond the tensor. The exchange wraps 'circular'.
_REPEATING: dict[str, Callable[[torch.Tensor, int], torch.Tensor]] = {
    "replicate": lambda at, n: at.clamp(0, n - 1),
    "reflect": lambda at, n: n - 1 - (n - 1 - at.abs()).abs(),
}


def repeated(interval: Interval, n: int, mode: str) -> torch.Tensor | None:
    """For each position of the interval, the element of [0, n) that it repeats; None without repetition."""
    start, stop = interval
    if mode not in _REPEATING or (start >= 0 and stop <= n) or stop <= start:
        return None
    return _REPEATING[mode](torch.arange(start, stop, device="cpu"), n)


class BoxReader:
    """Brings each worker of P_y its box of a tensor on P_x, with padding beyond the tensor.

    Args:
        P_x, P_y: partitions with as many dimensions as the tensor.
        extents: the shape of the tensor.
        reads: for each dimension the (start, stop) that each place along it of P_y reads. The intervals may reach
            beyond the tensor; in mode 'reflect', by less than its extent.
        mode: the kind of padding, by its name in ``torch.nn.functional.pad``.
        fill_value: the value of the padding in mode 'constant'.

    Attributes:
        exchange: brings the boxes.
        repeats: the dimensions where the padding repeats elements, and the positions in the received box.

    Constructed in a set-up, after a vote on all arguments. Calling is collective over P_x and P_y.
    """

    def __init__(
        self,
        layer: str,
        P_x: Grid,
        P_y: Grid,
        extents: Sequence[int],
        reads: Sequence[Sequence[Interval]],
        mode: str = "constant",
        fill_value: float = 0.0,
    ) -> None:
        wanted: list[list[Interval]] = []
        self.repeats: list[tuple[int, torch.Tensor]] = []
        for d, (n, along) in enumerate(zip(extents, reads, strict=True)):
            wanted.append([])
            for i, interval in enumerate(along):
                at = repeated(interval, n, mode)
                source = interval if at is None else (int(at.min()), int(at.max()) + 1)
                wanted[d].append(source)
                if at is not None and P_y.active and P_y.place[d] == i:
                    self.repeats.append((d, at - source[0]))
        periodic = [mode == "circular"] * len(wanted)
        self.exchange = operators.interval_exchange(layer, P_x, P_y, wanted, periodic, fill_value)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """The box of this worker of P_y; zero volume on all other ranks."""
        read = self.exchange(x)
        for d, at in self.repeats:
            read = selected(read, d - read.dim(), at.to(read.device))
        return read

"""What is read of a tensor in blocks, and what stands for the elements beyond it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from distdl import operators
from distdl.collective.grid import Grid
from distdl.nn.windows.blocks import Interval

# Modes in which elements of the tensor itself are repeated, each in another place; 'circular' wraps on its way.
_REPEATING: dict[str, Callable[[torch.Tensor, int], torch.Tensor]] = {
    "replicate": lambda at, n: at.clamp(0, n - 1),
    "reflect": lambda at, n: n - 1 - (n - 1 - at.abs()).abs(),
}


def repeated(interval: Interval, n: int, mode: str) -> torch.Tensor | None:
    """The elements of [0, n) that stand at these positions, of which some may lie beyond; None where none does."""
    start, stop = interval
    if mode not in _REPEATING or (start >= 0 and stop <= n) or stop <= start:
        return None
    return _REPEATING[mode](torch.arange(start, stop), n)


class Reader:
    """Brings each worker of P_y the box that it reads of a tensor on P_x, with what lies beyond the tensor.

    Args:
        layer: its name, for messages.
        P_x, P_y: partitions with as many dimensions as the tensor.
        extents: the shape of the tensor.
        reads: for each dimension the (start, stop) of each place along that dimension of P_y, beyond the tensor too.
        mode: what lies there, by the names of ``torch.nn.functional.pad``. 'reflect' takes less than an extent of it.
        fill_value: what lies there in mode 'constant'.

    To be made in the set-up of a layer, where all this is agreed on. Calling is collective over P_x and P_y.
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
        self._repeats: list[tuple[int, torch.Tensor]] = []  # of what this worker receives, by dimension
        for d, (n, along) in enumerate(zip(extents, reads, strict=True)):
            wanted.append([])
            for i, interval in enumerate(along):
                at = repeated(interval, n, mode)
                source = interval if at is None else (int(at.min()), int(at.max()) + 1)
                wanted[d].append(source)
                if at is not None and P_y.active and P_y.place[d] == i:
                    self._repeats.append((d, at - source[0]))
        periodic = [mode == "circular"] * len(wanted)
        self._exchange = operators.interval_exchange(layer, P_x, P_y, wanted, periodic, fill_value)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """What this worker of P_y reads; zero volume on all other ranks."""
        read = self._exchange(x)
        for d, at in self._repeats:
            read = read.index_select(d, at)
        return read

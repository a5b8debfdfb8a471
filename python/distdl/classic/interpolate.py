"""Interpolation of a part of a tensor: what a worker does between its exchanges."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from distdl import _core
from distdl.classic.nothing import nothing_for
from distdl.nn.base.precision import wide
from distdl.nn.resizing.upsample import interpolated, is_vectorized, kernel_of


class Interpolate(torch.nn.Module):
    """Interpolates a part of a tensor from a part of another that holds what it depends on. It takes no communication.

    Args:
        x_local_start, x_local_stop: where the part that is passed lies in the whole input, by dimension.
        x_global_shape: the shape of the whole input.
        y_local_start, y_local_stop: where the part that is returned lies in the whole result.
        y_global_shape: the shape of the whole result.
        scale_factor: by which torch.nn computes positions; by default they follow from the sizes.
        mode: 'nearest', 'linear' (for any number of dimensions of space, as 'bilinear' and 'trilinear' for two and
            three) or 'bicubic'.
        align_corners: as in ``torch.nn.functional.interpolate``.

    Shape:
        ``(N, C, *space)``, of the part; all arguments may leave out batch and channels. Where there is no part of the
        input or of the result, as on ranks outside of a partition, the result is ``(N, 0)``, or ``(0,)`` without batch.

    Where the result depends on elements outside of the part that is passed, the nearest elements of the part stand in
    for them: a program that wants these values has to pass the part with its halos.
    """

    def __init__(
        self,
        x_local_start: Sequence[int],
        x_local_stop: Sequence[int],
        x_global_shape: Sequence[int],
        y_local_start: Sequence[int],
        y_local_stop: Sequence[int],
        y_global_shape: Sequence[int],
        scale_factor: float | Sequence[float] | None = None,
        mode: str = "nearest",
        align_corners: bool | None = False,
    ) -> None:
        super().__init__()
        self._kernel, self._mode = kernel_of(mode), mode
        places = (x_local_start, x_global_shape, y_local_start, y_local_stop, y_global_shape)
        self._along = [tuple(int(n) for n in numbers) for numbers in zip(*places, strict=True)]
        self._factor, self._corners = scale_factor, bool(align_corners)
        self._size = [int(stop) - int(start) for start, stop in zip(x_local_start, x_local_stop, strict=True)]

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """The part of the result."""
        dims = input.dim() - 2
        if input.numel() == 0 or any(first >= stop for *_, first, stop, _ in self._along):
            return nothing_for(input)
        if dims < 1 or list(input.shape[-dims:]) != self._size[-dims:]:
            space = self._size[-dims:] if dims > 0 else self._size
            raise ValueError(f"Interpolate: the input has shape {list(input.shape)}; in space it must be {space}")
        factors = self._factor if isinstance(self._factor, Sequence) else [self._factor] * dims
        taps: list[tuple[torch.Tensor, torch.Tensor]] = []
        fast = is_vectorized([m for *_, m in self._along[-dims:]])
        for along, factor in zip(self._along[-dims:], list(factors)[-dims:], strict=True):
            start, n, first, stop, m = along
            rule = _core.Interpolation(self._kernel, m, 1.0, self._corners, False)
            if factor is not None:
                rule = _core.Interpolation(self._kernel, None, float(factor), self._corners, True)
            inputs, weights = rule.taps(n, (first, stop), input.dtype == torch.double, fast)
            count = len(inputs) // max(stop - first, 1)
            positions = torch.tensor(inputs, dtype=torch.long, device="cpu").view(count, -1) - start
            positions = positions.clamp(0, input.shape[len(taps) - dims] - 1)
            taps.append((positions, torch.tensor(weights, dtype=torch.double, device="cpu").view(count, -1)))
        weighted = self._kernel in ("linear", "cubic")
        return interpolated(wide(input) if weighted else input, taps, weighted).to(input.dtype)

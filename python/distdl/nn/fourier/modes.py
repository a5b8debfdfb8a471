"""The kept low frequencies of a dimension, which a worker has whole or in a block."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from distdl.nn.fourier.kinds import without_elements

_FORWARD = {None: 0.0, "backward": 0.0, "ortho": 0.5, "forward": 1.0}
"""The power of 1 / n that scales the forward transform; the inverse has 1 minus it."""

NORMS = tuple(_FORWARD)


def frequencies(kept: int, is_half: bool) -> tuple[int, int]:
    """(start, stop) of the kept frequencies: the first of half a spectrum, otherwise around 0."""
    return (0, kept) if is_half else (-(kept // 2), kept - kept // 2)


@dataclass(frozen=True)
class Modes:
    """The kept frequencies of a dimension of a tensor, and the transforms to and from them.

    Attributes:
        n: its extent in the whole tensor.
        kept: the number of kept frequencies.
        is_half: whether the tensor is real before the transform, so that half of the spectrum is enough.
        norm: as in torch.fft.
        block: (start, stop) of this worker's elements; None if it has all of them.
    """

    dim: int
    n: int
    kept: int
    is_half: bool
    norm: str | None
    block: tuple[int, int] | None

    def transform(self, x: torch.Tensor) -> torch.Tensor:
        """The kept frequencies of x; for a block, its terms of their sum over the workers."""
        if self.block is not None:
            return self._applied(x, self._matrix(x.dtype, -1, _FORWARD[self.norm]))
        if x.numel() == 0:
            return without_elements(x, self._shape(x, self.kept), x.dtype.to_complex())
        if self.is_half:
            return torch.fft.rfft(x, self.n, self.dim, self.norm).narrow(self.dim, 0, self.kept)
        start, stop = frequencies(self.kept, False)
        x = torch.fft.fft(x, self.n, self.dim, self.norm)
        return torch.cat([x.narrow(self.dim, self.n + start, -start), x.narrow(self.dim, 0, stop)], self.dim)

    def inverse(self, y: torch.Tensor) -> torch.Tensor:
        """The elements with these frequencies and no others; for a block, its elements."""
        if self.block is not None:
            matrix = self._matrix(y.dtype, 1, 1 - _FORWARD[self.norm])
            return self._real_part(y, matrix) if self.is_half else self._applied(y, matrix.T)
        if y.numel() == 0:
            return without_elements(y, self._shape(y, self.n), y.dtype.to_real() if self.is_half else y.dtype)
        if self.is_half:
            return torch.fft.irfft(y, self.n, self.dim, self.norm)
        start, stop = frequencies(self.kept, False)
        zeros = y.new_zeros(self._shape(y, self.n - self.kept))
        y = torch.cat([y.narrow(self.dim, -start, stop), zeros, y.narrow(self.dim, 0, -start)], self.dim)
        return torch.fft.ifft(y, self.n, self.dim, self.norm)

    def _shape(self, x: torch.Tensor, n: int) -> list[int]:
        return [n if d == self.dim else m for d, m in enumerate(x.shape)]

    def _matrix(self, dtype: torch.dtype, sign: int, power: float) -> torch.Tensor:
        """Row k, column j: exp(sign 2 pi i k j / n) n**-power, of the kept frequencies and the block's elements."""
        assert self.block is not None
        rows = torch.arange(*frequencies(self.kept, self.is_half), device="cpu")
        turns = torch.outer(rows, torch.arange(*self.block, device="cpu")) % self.n  # exact
        angle = turns.double() * (sign * 2 * math.pi / self.n)
        return torch.polar(torch.full_like(angle, float(self.n) ** -power), angle).to(dtype.to_complex())

    def _applied(self, x: torch.Tensor, matrix: torch.Tensor) -> torch.Tensor:
        x, matrix = x.movedim(self.dim, -1), matrix.to(x.device)
        y = x @ matrix.T if x.is_complex() else torch.complex(x @ matrix.real.T, x @ matrix.imag.T)
        return y.movedim(-1, self.dim)

    def _real_part(self, y: torch.Tensor, matrix: torch.Tensor) -> torch.Tensor:
        """The real product with the transposed matrix, plus the conjugate half of the spectrum."""
        y, matrix = y.movedim(self.dim, -1), matrix.to(y.device)
        k = torch.arange(self.kept, device=y.device).unsqueeze(-1)
        # Frequency 0, and the highest frequency of an even n, have no conjugate. No writes through views, which
        # selective checkpointing may have kept from the first call.
        twice = torch.where((k == 0) | (2 * k == self.n), 1.0, 2.0).to(matrix.real.dtype)
        x = y.real @ (twice * matrix.real) - y.imag @ (twice * matrix.imag)
        return x.movedim(-1, self.dim)

"""The transforms of torch.fft: their dimensions, and the transform of a block along some of them."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from distdl.nn.kernels.fourier_slices import in_slices
from distdl.nn.kernels.kept_sizes import keeping_sizes
from distdl.parameters.transport import zero_of
from distdl.torch_compat.compilers import assume_constant_result

Dims = int | Sequence[int] | None
TransformSizes = int | Sequence[int] | None

_TRANSFORMS = ("fft", "ifft", "rfft", "irfft", "hfft", "ihfft")
FUNCTIONS = tuple(f"{family}{forms}" for forms in ("", "2", "n") for family in _TRANSFORMS)
"""The names of the transforms."""

_FEW = 2
_REAL_INPUT, _REAL_RESULT = ("rfft", "ihfft"), ("irfft", "hfft")
_INVERSE = ("ifft", "irfft", "ihfft")


@dataclass(frozen=True)
class Transform:
    """A transform of a whole tensor of a known shape.

    Attributes:
        family: the name of the function in one dimension.
        dims: the transformed dimensions, counted from the front.
        reads: for each dimension, the most elements that the transform reads; zeros follow if there are fewer.
        sizes: for each dimension, the n of the transform in one dimension.
        norm: as in torch.fft.
        shape, dtype: of the whole result.
        complex_dtype: the dtype between transforms.
    """

    family: str
    dims: tuple[int, ...]
    reads: tuple[int, ...]
    sizes: tuple[int, ...]
    norm: str | None
    shape: tuple[int, ...]
    dtype: torch.dtype
    complex_dtype: torch.dtype

    @property
    def first(self) -> int | None:
        return self.dims[-1] if self.family in _REAL_INPUT else None

    @property
    def last(self) -> int | None:
        return self.dims[-1] if self.family in _REAL_RESULT else None

    def __call__(self, x: torch.Tensor, dims: Sequence[int], *, contiguous: bool = False) -> torch.Tensor:
        """Transform a block along some dimensions, which it has whole.

        On request, large results are contiguous, which is best for sending; see ``slices.py``.
        """
        if not dims:
            return x
        ends = self.last in dims
        shape = list(x.shape)
        for d in dims:
            shape[d] = self.shape[d] if d in (self.first, self.last) else self.sizes[self.dims.index(d)]
        dtype = self.dtype if ends else self.complex_dtype
        if 0 in shape:
            return without_elements(x, shape, dtype)
        real = self.family not in ("fft", "ifft") and self.dims[-1] in dims
        chosen = [d for d in self.dims if d in dims]  # the half-spectrum dimension stays last
        sizes = [self.sizes[self.dims.index(d)] for d in chosen]
        function = self.family if real else "ifft" if self.family in _INVERSE else "fft"
        call: Callable[..., torch.Tensor] = keeping_sizes(getattr(torch.fft, f"{function}n"))

        def transformed(x: torch.Tensor, dims: Sequence[int]) -> torch.Tensor:
            return call(x, sizes, dims, self.norm)

        return in_slices(transformed, x, chosen, shape, dtype, contiguous=contiguous)


def without_elements(x: torch.Tensor, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """An empty tensor that is connected to x. (torch's transforms refuse an empty batch.)"""
    zero = zero_of(x if x.is_floating_point() or x.is_complex() else x.to(dtype))
    zero = zero.real if zero.is_complex() and not dtype.is_complex else zero
    return zero.to(dtype).expand(tuple(shape)).contiguous()


@assume_constant_result
def result_dtype(function: str, dtype: torch.dtype) -> torch.dtype:
    """The dtype of a function's result for an input of this dtype."""
    floating = dtype if dtype.is_floating_point or dtype.is_complex else torch.get_default_dtype()
    return floating.to_real() if function.rstrip("2n") in _REAL_RESULT else floating.to_complex()


def resolve_transform(
    function: str, shape: Sequence[int], dtype: torch.dtype, size: TransformSizes, dim: Dims, norm: str | None
) -> Transform:
    """Resolve the arguments of a function of torch.fft for a whole tensor. Raises torch's errors for them."""
    size, dim = plain(size), plain(dim)
    _check_by_torch(function, len(shape), dtype, size, dim, norm)
    family = function.rstrip("2n")
    dims = _transformed_dims(len(shape), size, dim)
    numbers = [-1] * len(dims) if size is None else [size] if isinstance(size, int) else list(size)
    sizes = [shape[d] if n == -1 else operator.index(n) for d, n in zip(dims, numbers, strict=True)]
    reads, after = list(sizes), list(shape)
    if family in _REAL_RESULT:
        sizes[-1] = 2 * (shape[dims[-1]] - 1) if numbers[-1] == -1 else sizes[-1]
        reads[-1] = sizes[-1] // 2 + 1
    if min(sizes, default=1) < 1:
        raise RuntimeError(f"Invalid number of data points ({min(sizes)}) specified")
    for d, n in zip(dims, sizes, strict=True):
        after[d] = n
    if family in _REAL_INPUT:
        after[dims[-1]] = sizes[-1] // 2 + 1
    result = result_dtype(function, dtype)
    return Transform(
        family, dims, tuple(reads), tuple(sizes), norm, tuple(after), result, result.to_complex()
    )  # fmt: skip


def plain(value: TransformSizes) -> TransformSizes:
    """A NumPy integer or one-element integer tensor as an int; other values, also bool, unchanged."""
    if isinstance(value, bool):
        return value
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        return value


def _check_by_torch(
    function: str, count: int, dtype: torch.dtype, size: TransformSizes, dim: Dims, norm: str | None
) -> None:
    """Let torch check the arguments on a few elements: its first call on the meta device takes seconds."""
    if isinstance(size, int):
        size = min(size, _FEW)
    elif isinstance(size, list | tuple) and all(isinstance(n, int) for n in size):
        size = [min(n, _FEW) for n in size]
    if dtype in (torch.float16, torch.complex32) and torch.cuda.is_available():
        dtype = torch.float32 if dtype == torch.float16 else torch.complex64  # torch transforms half only on devices
    call: Callable[..., torch.Tensor] = getattr(torch.fft, function)
    call(torch.zeros([_FEW] * count, dtype=dtype, device="cpu"), size, dim, norm)


def _transformed_dims(count: int, size: TransformSizes, dim: Dims) -> tuple[int, ...]:
    """The transformed dimensions, counted from the front: all by default, or the last dimensions with sizes."""
    if dim is None:
        wanted = count if size is None else 1 if isinstance(size, int) else len(size)
        return tuple(range(count - wanted, count))
    named = [dim] if isinstance(dim, int) else dim
    return tuple(operator.index(d) % max(count, 1) for d in named)

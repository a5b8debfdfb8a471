"""Transforms of large blocks, slice by slice in the caches.

torch.fft allocates its result, and glibc returns memory of 32 MiB and more to the system at once: mapping it again in
each call takes about as long as the transform. The result of a slice stays in the caches until it is copied, and its
memory serves the next slice. NumPy asks for huge pages for the whole result.

Along a dimension that is not contiguous, a slice is transposed first. Otherwise the transform would read a few bytes of
each cache line, and with a power-of-two stride evict the line before it reads the next bytes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch

from distdl.torch_compat.modes import active_modes, is_compiling
from distdl.torch_compat.transforms import has_forward_derivatives, innermost_transform

_SLICE = 1 << 20  # bytes for each thread: less than the caches, a thousand times the cost of a call
_LARGE_BYTES = 32 << 20  # bytes: glibc never keeps them (DEFAULT_MMAP_THRESHOLD_MAX)
_LARGE_ACROSS = 8 << 20  # bytes, along a dimension that is not contiguous
_SINGLE = 32  # bits: NumPy lacks some smaller dtypes

Fft = Callable[[torch.Tensor, Sequence[int]], torch.Tensor]


def in_slices(
    call: Fft, x: torch.Tensor, dims: Sequence[int], shape: Sequence[int], dtype: torch.dtype, *, contiguous: bool
) -> torch.Tensor:
    """``call(x, dims)``, slice by slice where faster: x is large, on the CPU, and nothing is recorded.

    Args:
        call: transforms some dimensions of a slice along the others.
        shape, dtype: of the result.
        contiguous: whether a large result is contiguous. Otherwise its transformed dimensions are last in memory, as in
            torch's results, which is faster to write.
    """
    across = len(dims) == 1 and (x.stride(dims[0]) != 1 or (contiguous and dims[0] != x.dim() - 1))
    bytes_ = max(math.prod(shape) * dtype.itemsize, x.numel() * x.element_size())
    if (
        bytes_ < (_LARGE_ACROSS if across else _LARGE_BYTES)
        or not _is_unrecorded(x)
        or torch.finfo(dtype).bits < _SINGLE
    ):
        return call(x, dims)
    order = list(range(x.dim()))
    if not contiguous:
        order.sort(key=lambda d: (d in dims, 0 if d in dims else -x.stride(d)))
    result = _in_huge_pages([shape[d] for d in order], dtype).permute(np.argsort(order).tolist())
    _write(call, x, dims, result, _SLICE * torch.get_num_threads())
    return result


def concatenated(parts: Sequence[torch.Tensor], dim: int) -> torch.Tensor:
    """Concatenate the parts; a single part is returned as it is."""
    if len(parts) == 1:
        return parts[0]
    dtype, bytes_ = parts[0].dtype, sum(part.numel() * part.element_size() for part in parts)
    if bytes_ < _LARGE_BYTES or not all(map(_is_unrecorded, parts)) or torch.finfo(dtype).bits < _SINGLE:
        return torch.cat(list(parts), dim)
    shape = [sum(part.shape[d] for part in parts) if d == dim else n for d, n in enumerate(parts[0].shape)]
    return torch.cat(list(parts), dim, out=_in_huge_pages(shape, dtype))


def _in_huge_pages(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """A contiguous tensor in new memory from NumPy, which asks for huge pages: they are cheaper to map."""
    return torch.from_numpy(np.empty(shape, torch.empty(0, dtype=dtype, device="cpu").numpy().dtype))


def _is_unrecorded(x: torch.Tensor) -> bool:
    return (
        type(x) is torch.Tensor
        and x.is_cpu
        and not (x.requires_grad and torch.is_grad_enabled())
        and not is_compiling()
        and innermost_transform() is None
        and active_modes() == 0
        and not has_forward_derivatives()
    )


def _write(call: Fft, x: torch.Tensor, dims: Sequence[int], result: torch.Tensor, most: int) -> None:
    """Write the transform of x into the result, in slices of at most so many bytes if x can be cut."""
    free = [d for d in range(x.dim()) if d not in dims and x.shape[d] > 1]
    count = -(-result.numel() * result.element_size() // most)
    if count <= 1 or not free:
        return _write_slice(call, x, dims, result)
    along = max(free, key=x.stride)  # long runs remain
    step = -(-x.shape[along] // count)
    for parts in zip(x.split(step, along), result.split(step, along), strict=True):
        _write(call, parts[0], dims, parts[1], most)
    return None


def _write_slice(call: Fft, x: torch.Tensor, dims: Sequence[int], result: torch.Tensor) -> None:
    d = dims[0]
    if len(dims) > 1 or math.prod(x.shape[:d]) > 1 or (x.stride(d) == 1 and result.stride(d) == 1):
        result.copy_(call(x, dims))
        return
    matrix = x.reshape(x.shape[d], -1)
    # Two copies are faster than one: torch transposes whole matrices square by square.
    rows = matrix.T if matrix.T.is_contiguous() else matrix.contiguous().T.contiguous()
    y = call(rows, (1,))
    if result.stride(d) == 1:
        result.copy_(y.reshape(*x.shape[:d], *x.shape[d + 1 :], -1).movedim(-1, d))
    else:
        result.copy_(y.T.contiguous().reshape(result.shape))

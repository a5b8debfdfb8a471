"""Buffers that programs pass around. Operators manage their memory by themselves: what is here allocates on demand."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import DTypeLike, NDArray

Array = NDArray[np.generic]


class MPIExpandableBuffer:
    """A buffer of elements of one dtype, which grows when it is asked to.

    Args:
        dtype: of its elements.
        initial_capacity: how many elements it has in the beginning.
    """

    def __init__(self, dtype: DTypeLike, initial_capacity: int = 0) -> None:
        self.dtype = np.dtype(dtype)
        self.capacity = 0
        self._memory: Array = np.empty(0, dtype=self.dtype)
        self.expand(initial_capacity)

    def expand(self, new_capacity: int) -> None:
        """Have room for at least so many elements. Views of less room keep their memory."""
        self.capacity = max(self.capacity, int(new_capacity))

    def allocate_view(self, view_shape: Sequence[int]) -> Array:
        """An array of this shape at the beginning of the buffer, which grows if necessary."""
        shape = [int(n) for n in view_shape]
        size = int(np.prod(shape))
        self.expand(size)
        if self._memory.size < size:
            self._memory = np.empty(self.capacity, dtype=self.dtype)
        return self._memory[:size].reshape(shape)

    def get_view(self, view_shape: Sequence[int]) -> Array:
        """Return the same as :meth:`allocate_view`."""
        return self.allocate_view(view_shape)


class MPIBufferManager:
    """Hands out buffers. Layers of this library take a manager and leave it alone."""

    def __init__(self) -> None:
        self._buffers: dict[np.dtype[np.generic], list[MPIExpandableBuffer]] = {}

    def request_buffers(self, count: int, dtype: DTypeLike = "float32") -> list[MPIExpandableBuffer]:
        """So many buffers of a dtype, the same ones in each request."""
        known = self._buffers.setdefault(np.dtype(dtype), [])
        known.extend(MPIExpandableBuffer(dtype) for _ in range(count - len(known)))
        return known[:count]

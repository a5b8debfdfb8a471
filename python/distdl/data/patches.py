"""Datasets of patches that are cut out of one large array."""

from __future__ import annotations

import math
import operator
import os
from collections.abc import Callable, Sequence
from operator import index
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import torch

from distdl.data.batches import current_epoch
from distdl.data.blocks import Sliceable, read_box
from distdl.data.regions import Region, RegionLike, dims_of
from distdl.partitions.construction import constructing, constructor

if TYPE_CHECKING:
    from distdl.partitions.partition import Partition

Source: TypeAlias = Sliceable | Callable[[], Sliceable]


class Patches(torch.utils.data.Dataset[torch.Tensor]):
    """Patches of an array, at random places or on a regular grid. Each rank reads its block of a patch.

    Args:
        array: an array, as for :func:`distdl.data.read_block`; or a function without arguments that opens it, which
            each process calls by itself, as HDF5 needs with worker processes: ``lambda: h5py.File(path)["x"]``.
        P: the partition of a batch, as for :func:`distdl.data.loader`: its first dimension splits the samples, its
            other dimensions split a patch. Of an array of images [n, channels, rows, columns] a patch has four
            dimensions, and a batch has five: [batch, 1, channels, rows, columns].
        shape: the shape of a patch, with as many dimensions as the array.
        samples: the number of patches in an epoch, at random places, which differ in each epoch. None for all patches
            of a regular grid.
        stride: the steps of the regular grid, for all dimensions or for each; by default the shape. The last patch
            along a dimension ends where the region ends, so that patches cover all of it.
        flip: dimensions along which a patch is reversed with probability 1/2.
        seed: the seed of places and reversals, at least 0. They are functions of the seed, the epoch and the sample's
            number: the same on all ranks, for every partition, in worker processes and after a restart. If the last
            dimensions of two arrays have equal extents, patches have equal places and reversals in these dimensions.
            So inputs fit their targets: ``torch.utils.data.StackDataset(x=Patches(...), y=Patches(...))``.
        region: the part of the array from which patches are cut, as for :func:`distdl.data.read_block`.
        fill: the value of masked elements, as for :func:`distdl.data.read_block`.

    Raises:
        ValueError: on all ranks, if the ranks' arguments or the shapes of their arrays differ, a patch does not fit
            into the region, or an argument is out of range.
        TypeError: on all ranks, if an argument is of another type.

    Constructing is collective over the communicator that P comes from; reading a patch is not.
    """

    @constructor
    def __init__(
        self,
        array: Source,
        P: Partition,
        shape: Sequence[int],
        *,
        samples: int | None = None,
        stride: int | Sequence[int] | None = None,
        flip: int | Sequence[int] = (),
        seed: int = 0,
        region: RegionLike | None = None,
        fill: complex | None = None,
    ) -> None:
        compared: dict[str, object] = {"shape": shape, "samples": samples, "stride": stride, "flip": flip}
        compared |= {"seed": seed, "region": region, "fill": fill}
        self._array, self._fill = array, fill
        self._opened: tuple[int, Sliceable] | None = None  # the process that opened the array, and the array
        with constructing("Patches", {"P": P}, compared) as (grid,):
            whole = tuple((array() if callable(array) else array).shape)
            compared["array of shape"] = whole
            self._region = Region.of("Patches", whole, region)
            self._flipped_at_random = dims_of("Patches", "flip", flip, len(whole))
            self._shape = tuple(map(index, shape))
            if len(self._shape) != len(whole) or not all(
                1 <= n <= extent for n, extent in zip(self._shape, self._region.shape, strict=True)
            ):
                raise ValueError(
                    f"Patches: patches of shape {list(self._shape)} in a region of shape {list(self._region.shape)}; "
                    "they need as many dimensions, and extents from 1 to those of the region"
                )
            stride = self._shape if stride is None else stride
            steps = stride if isinstance(stride, Sequence) else [stride] * len(whole)
            self._grid = [_starts(*sizes) for sizes in zip(self._region.shape, self._shape, steps, strict=True)]
            self._samples = None if samples is None else index(samples)
            self._seed = index(seed)
            if self._seed < 0 or (self._samples or 0) < 0:
                raise ValueError(f"Patches: seed={seed}, samples={samples}; they must be at least 0")
            self._block = grid.slices((1, *self._shape))[1:]

    def __len__(self) -> int:
        """The number of patches in an epoch."""
        return math.prod(map(len, self._grid)) if self._samples is None else self._samples

    def place(self, number: int) -> tuple[tuple[slice, ...], tuple[int, ...]]:
        """The region of the array that is patch ``number``, and the dimensions along which it is reversed.

        :func:`distdl.data.write_block` takes them as ``region`` and ``flip``. Random places belong to the epoch that
        :func:`distdl.data.current_epoch` returns. Raises IndexError if there is no such patch. Not collective.
        """
        if not 0 <= number < len(self):
            raise IndexError(f"Patches: there is no patch {number} among {len(self)}")
        seeds = np.random.SeedSequence([self._seed, current_epoch(), number])
        words = seeds.generate_state(2 * len(self._shape), np.uint64).tolist()
        # The first words are for the last dimension, where arrays that differ in their first dimensions have to agree.
        start_words, flip_words = words[::2][::-1], words[1::2][::-1]
        if self._samples is None:
            numbers = np.unravel_index(number, [len(starts) for starts in self._grid])
            offsets = [starts[int(i)] for starts, i in zip(self._grid, numbers, strict=True)]
        else:
            sizes = zip(start_words, self._region.shape, self._shape, strict=True)
            offsets = [word % (extent - n + 1) for word, extent, n in sizes]
        starts = map(operator.add, self._region.starts, offsets)
        box = tuple(slice(start, start + n) for start, n in zip(starts, self._shape, strict=True))
        return box, tuple(d for d in self._flipped_at_random if flip_words[d] % 2)

    def __getitem__(self, number: int) -> torch.Tensor:
        """This rank's block of a patch; zero volume on ranks outside of P."""
        box, reversed_dims = self.place(number)
        patch = Region.of("Patches", self._region.array_shape, box, reversed_dims)
        return read_box(self._open(), patch.slices(self._block), reversed_dims, self._fill)

    def _open(self) -> Sliceable:
        if not callable(self._array):
            return self._array
        if self._opened is None or self._opened[0] != os.getpid():  # files must not be shared by processes
            self._opened = os.getpid(), self._array()
        return self._opened[1]

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_opened": None}


def _starts(extent: int, n: int, step: int) -> list[int]:
    """The first elements of the patches of a regular grid along a dimension."""
    if index(step) < 1:
        raise ValueError(f"Patches: stride {step}; steps must be at least 1")
    last = extent - n
    return [*range(0, last, step), last]

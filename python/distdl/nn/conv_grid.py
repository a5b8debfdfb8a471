"""Which worker computes what in a convolution over blocks."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import numpy as np

from distdl._load import _core
from distdl.partition import Partition


@dataclass(frozen=True)
class ConvGrid:
    """The workers of a convolution as a grid [batch, p_out, p_in, *space]; without batch if the input has none.

    Worker (b, i, j, *s) applies block (i, j) of the weight to block (b, j, *s) of the input; the sum over j is block
    (b, i, *s) of the output. With groups, p_in is 1, and it applies block i of the weight to block (b, i, *s).
    """

    P_x: Partition
    P_y: Partition
    workers: Partition
    dims: int  # spatial dimensions
    grouped: bool

    @classmethod
    def of(
        cls, name: str, dims: int, groups: int, P_x: Partition, P_y: Partition | None, P_w: Partition | None
    ) -> ConvGrid:
        """The grid of these partitions; P_x alone splits no channels.

        Raises:
            ValueError: if they do not fit each other or the number of dimensions.
        """
        x = P_x._shape
        if P_x._root is None:  # this rank knows nothing of them
            return cls(P_x, P_x, P_x, dims, groups > 1)
        if len(x) not in (dims + 1, dims + 2):
            raise ValueError(
                f"{name}: P_x has shape {list(x)}; it needs {dims} spatial dimensions, preceded by the channels, or by "
                "batch and channels"
            )
        batch, space = x[: -dims - 1], x[-dims:]
        if P_y is None or P_w is None:
            if x[-dims - 1] != 1:
                raise ValueError(
                    f"{name}: P_x has shape {list(x)}; its channel dimension must be 1, only space and batch may be "
                    "partitioned where P_y and P_w are not given"
                )
            return cls(P_x, P_x, P_x._related(P_x._ranks, (*batch, 1, 1, *space)), dims, groups > 1)
        w = P_w._shape
        if len(w) == 2:
            w = (*w, *(1,) * dims)
        if len(w) == 2 + dims and batch:
            w = (1, *w)
        p_out, p_in = w[len(batch) : len(batch) + 2] if len(w) == len(batch) + 2 + dims else (0, 0)
        fits = w == (*batch, p_out, p_in, *space) and P_y._shape == (*batch, p_out, *space)
        if not fits or x[len(batch)] != (p_in if groups == 1 else p_out) or (groups > 1 and p_in != 1):
            rule = "[batch, p_in, *space], [batch, p_out, *space] and [batch, p_out, p_in, *space]"
            if groups > 1:
                rule = "[batch, p, *space], [batch, p, *space] and [batch, p, 1, *space] with groups"
            raise ValueError(
                f"{name}: P_x has shape {list(x)}, P_y {list(P_y._shape)} and P_w {list(P_w._shape)}; with {dims} "
                f"spatial dimensions and groups={groups} they must be {rule}, all with batch or all without; P_w may "
                "leave out batch where it is 1, and space with it"
            )
        return cls(P_x, P_y, P_w._related(P_w._ranks, w), dims, groups > 1)

    @property
    def known(self) -> bool:
        """Whether this rank knows the partitions."""
        return self.workers._root is not None

    @property
    def batched(self) -> int:
        """The number of batch dimensions: 0 or 1."""
        return len(self.P_x._shape) - self.dims - 1

    @property
    def p_out(self) -> int:
        """The number of blocks of output channels."""
        return self.workers._shape[self.batched] if self.known else 1

    @property
    def p_in(self) -> int:
        """The number of blocks of input channels that are summed over."""
        return self.workers._shape[self.batched + 1] if self.known else 1

    @property
    def space(self) -> tuple[int, ...]:
        """The number of blocks along each spatial dimension."""
        return self.workers._shape[-self.dims :]

    @functools.cached_property
    def place(self) -> tuple[int, int, list[int]]:
        """(i, j, s) of this worker."""
        _, i, j, *s = [0, *map(int, self.workers.cartesian_index(self.workers.rank))][-self.dims - 3 :]
        return i, j, s

    # The tensors as the grid sees them: with one dimension more.

    @property
    def copied(self) -> int:
        """The dimension in which all workers want all of the input: that of p_out, or of p_in with groups."""
        return self.batched + (1 if self.grouped else 0)

    @property
    def input(self) -> Partition:
        """P_x with the copied dimension, of one worker."""
        shape = self.P_x._shape
        return self.P_x._related(self.P_x._ranks, (*shape[: self.copied], 1, *shape[self.copied :]))

    @property
    def output(self) -> Partition:
        """P_y with the dimension that is summed over, of one worker."""
        shape = self.P_y._shape
        return self.P_y._related(self.P_y._ranks, (*shape[: self.batched + 1], 1, *shape[self.batched + 1 :]))

    # The owners of weight and bias: the workers with b = 0 and s = 0.

    @property
    def owners(self) -> Partition:
        """All of them, as a grid that broadcasts to the workers."""
        shape = self.workers._shape
        owners = [extent if d in (self.batched, self.batched + 1) else 1 for d, extent in enumerate(shape)]
        return self.workers._related([int(rank) for rank in self._owning().flat], owners)

    def weight(self, transposed: bool) -> Partition:
        """Those of the weight: [p_out, p_in, 1, ...], or as a transposed convolution without groups has it, swapped."""
        ranks = self._owning()
        ranks = ranks.T if transposed and not self.grouped else ranks
        return self.workers._related([int(rank) for rank in ranks.flat], (*ranks.shape, *(1,) * self.dims))

    def bias(self) -> Partition:
        """Those of the bias: of column 0, so that it is added once."""
        return self.workers._line([int(rank) for rank in self._owning()[:, 0]])

    def _owning(self) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
        """Their ranks, by (i, j)."""
        if not self.known:
            return np.zeros((1, 1), dtype=np.int64)
        batch = math.prod(self.workers._shape[: self.batched])
        ranks = np.array(self.workers._ranks, dtype=np.int64)
        return ranks.reshape(batch, self.p_out, self.p_in, math.prod(self.space))[0, :, :, 0]


def check_groups(name: str, grid: ConvGrid, in_channels: int, out_channels: int, groups: int) -> None:
    """Refuse blocks of channels that do not hold whole groups.

    Raises:
        ValueError: likewise.
    """
    if groups == 1 or not grid.known:
        return
    for i in range(grid.p_out):
        blocks = [_core.balanced_block(channels, grid.p_out, i) for channels in (in_channels, out_channels)]
        per_group = (in_channels // groups, out_channels // groups)
        held = [[divmod(bound, per) for bound in block] for block, per in zip(blocks, per_group, strict=True)]
        if held[0] != held[1] or any(rest for _, rest in held[0]):
            raise ValueError(
                f"{name}: in_channels={in_channels}, out_channels={out_channels} and groups={groups} over {grid.p_out} "
                f"workers; worker {i} would have input channels {blocks[0]} and output channels {blocks[1]}, which "
                "must be whole groups, and the same"
            )

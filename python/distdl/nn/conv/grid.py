"""The workers of a convolution over blocks, and the blocks of each worker."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from distdl import _core
from distdl.nn.windows.blocks import SPATIAL
from distdl.partitions.grid import Grid


@dataclass(frozen=True)
class ConvGrid:
    """The workers of a convolution as a grid [batch, p_out, p_in, *space], or [p_out, p_in, *space] without batch.

    Worker (b, i, j, *s) applies block (i, j) of the weight to block (b, j, *s) of the input; the sum over j is block
    (b, i, *s) of the output. With groups, p_in is 1, and worker (b, i, 0, *s) applies block i of the weight to block
    (b, i, *s) of the input.
    """

    P_x: Grid
    P_y: Grid
    workers: Grid
    dims: int  # spatial dimensions
    grouped: bool

    @classmethod
    def of(cls, name: str, dims: int, groups: int, P_x: Grid, P_y: Grid | None, P_w: Grid | None) -> ConvGrid:
        """The grid of these partitions; P_x alone splits no channels.

        Raises:
            ValueError: if the partitions do not match each other or the number of dimensions.
        """
        x = P_x.shape
        if not P_x.known:  # this rank is outside of the partitions
            return cls(P_x, P_x, P_x, dims, groups > 1)
        if len(x) not in (dims + 1, dims + 2):
            raise ValueError(f"{name}: P_x has shape {list(x)}; {SPATIAL.format(dims)}")
        batch, space = x[: -dims - 1], x[-dims:]
        if P_y is None or P_w is None:
            if x[-dims - 1] != 1:
                raise ValueError(
                    f"{name}: P_x has shape {list(x)}; its channel dimension must be 1, only space and batch may be "
                    "partitioned where P_y and P_w are not given"
                )
            return cls(P_x, P_x, P_x.reshaped((*batch, 1, 1, *space)), dims, groups > 1)
        w = P_w.shape
        if len(w) == 2:
            w = (*w, *(1,) * dims)
        if len(w) == 2 + dims and batch:
            w = (1, *w)
        p_out, p_in = w[len(batch) : len(batch) + 2] if len(w) == len(batch) + 2 + dims else (0, 0)
        fits = w == (*batch, p_out, p_in, *space) and P_y.shape == (*batch, p_out, *space)
        if not fits or x[len(batch)] != (p_in if groups == 1 else p_out) or (groups > 1 and p_in != 1):
            rule = "[batch, p_in, *space], [batch, p_out, *space] and [batch, p_out, p_in, *space]"
            if groups > 1:
                rule = "[batch, p, *space], [batch, p, *space] and [batch, p, 1, *space] with groups"
            raise ValueError(
                f"{name}: P_x has shape {list(x)}, P_y {list(P_y.shape)} and P_w {list(P_w.shape)}; with {dims} "
                f"spatial dimensions and groups={groups} they must be {rule}, all with batch or all without; P_w may "
                "leave out batch where it is 1, and space with it"
            )
        return cls(P_x, P_y, P_w.reshaped(w), dims, groups > 1)

    @classmethod
    def of_form(cls, name: str, dims: int, groups: int, P_x: Grid, gathers: bool) -> ConvGrid:
        """The grid of a layer with input and output in blocks of channels on P_x.

        Its workers read all input channels and compute their block of output channels, or read their block and compute
        terms of all output channels. With groups, a block of the output depends on a single block.

        Raises:
            ValueError: if P_x does not match the number of dimensions.
        """
        if not P_x.known:
            return cls(P_x, P_x, P_x, dims, groups > 1)
        x = P_x.shape
        if len(x) not in (dims + 1, dims + 2):
            raise ValueError(f"{name}: P_x has shape {list(x)}; {SPATIAL.format(dims)}")
        batch, p, space = x[: -dims - 1], x[-dims - 1], x[-dims:]
        blocks = (p, 1) if gathers or groups > 1 else (1, p)
        return cls(P_x, P_x, P_x.reshaped((*batch, *blocks, *space)), dims, groups > 1)

    @property
    def known(self) -> bool:
        return self.workers.known

    @property
    def batched(self) -> int:
        return len(self.P_x.shape) - self.dims - 1

    @property
    def p_out(self) -> int:
        return self.workers.shape[self.batched] if self.known else 1

    @property
    def p_in(self) -> int:
        """The number of blocks of input channels, over which results are summed."""
        return self.workers.shape[self.batched + 1] if self.known else 1

    @property
    def space(self) -> tuple[int, ...]:
        return self.workers.shape[-self.dims :]

    @functools.cached_property
    def place(self) -> tuple[int, int, list[int]]:
        """(i, j, s) of this worker."""
        _, i, j, *s = [0, *self.workers.place][-self.dims - 3 :]
        return i, j, s

    # The partitions of input and output with a further dimension of extent 1, so that they match the grid

    @property
    def copied(self) -> int:
        """The dimension along which workers read the same input: p_out, or p_in with groups."""
        return self.batched + (1 if self.grouped else 0)

    @functools.cached_property
    def copies(self) -> bool:
        """Whether several workers read the same block of the input."""
        return self.known and self.workers.shape[self.copied] > 1

    @property
    def without_copies(self) -> Grid:
        """The workers without the copied dimension, whose extent must be 1."""
        shape = self.workers.shape
        return self.workers.reshaped((*shape[: self.copied], *shape[self.copied + 1 :]))

    @property
    def input(self) -> Grid:
        shape = self.P_x.shape
        return self.P_x.reshaped((*shape[: self.copied], 1, *shape[self.copied :]))

    @property
    def output(self) -> Grid:
        shape = self.P_y.shape
        return self.P_y.reshaped((*shape[: self.batched + 1], 1, *shape[self.batched + 1 :]))

    @property
    def moves_nothing(self) -> bool:
        """Whether each worker computes its own block of the output from its own block of the input and halos."""
        if not self.known:
            return True
        same = self.workers.ranks == self.P_x.ranks == self.P_y.ranks
        return same and self.p_in == 1 and not self.copies


def check_groups(name: str, grid: ConvGrid, in_channels: int, out_channels: int, groups: int) -> None:
    """Check that blocks of channels hold whole groups.

    Raises:
        ValueError: if a block ends inside of a group.
    """
    if groups == 1 or not grid.known:
        return
    for i in range(grid.p_out):
        blocks = [_core.balanced_block(channels, grid.p_out, i) for channels in (in_channels, out_channels)]
        per_group = (in_channels // groups, out_channels // groups)
        held = [[divmod(bound, per) for bound in block] for block, per in zip(blocks, per_group, strict=True) if per]
        if held[0] != held[-1] or any(remainder for _, remainder in held[0]):
            raise ValueError(
                f"{name}: in_channels={in_channels}, out_channels={out_channels} and groups={groups} over {grid.p_out} "
                f"workers; worker {i} would have input channels {blocks[0]} and output channels {blocks[1]}, which "
                "must be whole groups, and the same"
            )

"""The common part of convolution and transposed convolution: a weight in blocks meets an input in blocks."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import ClassVar

import torch

from distdl import operators
from distdl.collective.grid import Grid
from distdl.nn.conv.grid import ConvGrid, check_groups
from distdl.nn.conv.halo import HaloConvolution, Sliding, fit
from distdl.nn.layer import Layer
from distdl.nn.options import check_choice, integer, per_dimension
from distdl.nn.overwritten import check_input_unmodified
from distdl.nn.precision import HALF
from distdl.nn.tie import connect_to
from distdl.nn.windows.blocks import OUTPUT_BLOCKS, Interval, Resizing, as_of, blocks_of_outputs, intervals_of
from distdl.nn.windows.reader import Reader
from distdl.parameters.initial import like_linear
from distdl.parameters.layout import cut
from distdl.parameters.transport import zero_of
from distdl.partition import Partition


class ConvLayer(Layer):
    """A convolution of which each worker computes its block of the outputs, or a term of it.

    The workers receive what their outputs depend on in space, in their block of the input's channels. They apply their
    block of the weight, and where input channels are split the results are sum-reduced: see ConvGrid.
    """

    P_y: Partition | None
    P_w: Partition | None
    dims: ClassVar[int]  # spatial dimensions
    transposed: ClassVar[bool] = False
    functions: ClassVar[dict[int, Callable[..., torch.Tensor]]]  # of torch, by spatial dimensions
    in_channels: int
    out_channels: int
    groups: int
    kernel_size: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    padding_mode: str
    output_blocks: str

    # Constructing

    def check_options(self) -> None:
        name = type(self).__name__
        self._check_form()
        self._check_channels(name)
        self._grid = grid = self._workers(name)
        check_groups(name, grid, self.in_channels, self.out_channels, self.groups)
        self._check_grid()
        for which in ("kernel_size", "stride", "dilation"):
            setattr(self, which, per_dimension(name, getattr(self, which), self.dims, which))
        self._check_windows(name)
        check_choice(name, "output_blocks", self.output_blocks, OUTPUT_BLOCKS)
        if any(s < 1 for s in (*self.stride, *self.dilation, *self.kernel_size)):
            raise RuntimeError(
                f"{name}: kernel_size={self.kernel_size}, stride={self.stride}, dilation={self.dilation}; all must "
                "be at least 1"
            )
        self._declare_weights()

    def _declare_weights(self) -> None:
        channels = (self.in_channels, self.out_channels) if self.transposed else (self.out_channels, self.in_channels)
        shape = (channels[0], channels[1] // self.groups, *self.kernel_size)
        row = self._grid.batched
        swapped = self.transposed and not self._grid.grouped
        axes = (row + 1, row) if swapped else (row, row + 1)
        of_weight, of_bias = like_linear(shape)
        workers, of_space = self._grid.workers, (None,) * self.dims
        self.declare_parameter("weight", workers, shape, (*axes, *of_space), initialize=of_weight)
        if self.given["bias"]:
            of_outputs = (self.out_channels,)
            self.declare_parameter("bias", workers, of_outputs, (row,), first_of=(row + 1,), initialize=of_bias)
        else:
            self.register_parameter("bias", None)

    def _workers(self, name: str) -> ConvGrid:
        """The workers, and the blocks of input and output that they have."""
        others = (None if P is None else P.grid for P in (self.P_y, self.P_w))
        return ConvGrid.of(name, self.dims, self.groups, self.grid, *others)

    def _check_form(self) -> None:
        """Refuse more or fewer partitions than this layer takes."""
        if (self.P_y is None) != (self.P_w is None):
            missing = "P_y" if self.P_y is None else "P_w"
            raise ValueError(f"{type(self).__name__}: {missing} is not given; it takes P_x alone, or P_x, P_y and P_w")

    def _check_grid(self) -> None:
        """Refuse a grid that splits more than this layer does."""

    def _check_windows(self, name: str) -> None:
        """Check and normalize the options that say what is read."""
        raise NotImplementedError

    def _check_channels(self, name: str) -> None:
        for which in ("groups", "in_channels", "out_channels"):
            setattr(self, which, integer(name, getattr(self, which), which))
        if self.groups < 1:
            raise ValueError(f"{name}: groups={self.groups}; it must be at least 1")
        for which in ("in_channels", "out_channels"):
            channels, least = getattr(self, which), 0 if which == "in_channels" and not self.transposed else 1
            if channels < least:
                raise RuntimeError(f"{name}: {which}={channels}; it must be at least {least}")
            if channels % self.groups != 0:
                raise ValueError(f"{name}: {which}={channels} is not divisible by groups={self.groups}")

    def prepare(self) -> None:
        self._sum_reduce = self._summation()
        # Of this worker along each spatial dimension, after the set-up: what it computes, and what it reads for that.
        self._outputs: list[Interval] = []
        self._inputs: list[Interval] = []
        self._padding: list[int] = []  # what the local layer pads that beyond
        self._halo_convolution: HaloConvolution | None = None  # where it takes the place of what follows
        self._read: Reader | None = None  # where a worker reads more than its own block

    def _summation(self) -> operators.Operator | None:
        """The sum over input channels, where workers hold several blocks of them or the output moves."""
        grid = self._grid
        alone = grid.p_in == 1 and grid.workers.ranks == grid.P_y.ranks
        return None if alone else operators.sum_reduce(grid.workers, grid.output)

    def agreeing(self) -> list[Grid]:
        """The ranks of input, workers and output."""
        return [self._grid.P_x, self._grid.workers, self._grid.P_y]

    # Set-up

    def set_up(self) -> None:
        grid, name = self._grid, type(self).__name__
        sizes = self.blocks(self.grid)
        extents = [sum(along) for along in sizes]
        _, dtype = self.structure(self.grid)[0]
        self._check_input(name, extents, dtype)
        slidings = self._slidings(sizes)
        own = [intervals_of(along) for along in sizes]
        split = grid.p_out if grid.grouped else grid.p_in
        leading = [*own[: grid.batched], cut(self.in_channels, split)]
        smallest = min(sizes[0]) if grid.batched else 1
        self._halo_convolution, self._read = None, None
        if self._adds(dtype) and fit(slidings, smallest * self.in_channels):
            self._place(sizes, slidings, [list(one.reads) for one in slidings])
            self._halo_convolution = HaloConvolution(name, self.grid, leading, slidings)
            return
        # Where nothing is split the local layer may as well pad.
        pads = [one.padding(0) if self._pads_zeros() and len(one.blocks) == 1 else None for one in slidings]
        reads = [self._read_by(one) if pad is None else one.blocks for one, pad in zip(slidings, pads, strict=True)]
        self._place(sizes, slidings, reads, [pad or 0 for pad in pads])
        if not (grid.moves_nothing and [*leading, *reads] == own):
            wanted, P_x, workers = [*leading, *reads], grid.P_x, grid.without_copies
            if grid.copies:
                wanted.insert(grid.copied, [(0, 1)] * grid.workers.shape[grid.copied])
                extents.insert(grid.copied, 1)
                P_x, workers = grid.input, grid.workers
            mode = "constant" if self.padding_mode == "zeros" else self.padding_mode
            self._read = Reader(name, P_x, workers, extents, wanted, mode)

    def _read_by(self, sliding: Sliding) -> list[Interval]:
        """The intervals read along a dimension: whole blocks where at most their last elements meet no window.

        The local layer leaves these out, and the blocks need not be copied.
        """
        is_whole = not self.transposed and all(sliding.padding(i) == 0 for i in range(len(sliding.blocks)))
        return sliding.blocks if is_whole else sliding.reads

    def _slidings(self, sizes: Sequence[Sequence[int]]) -> list[Sliding]:
        """How the kernel slides along each dimension of space."""
        along = sizes[-self.dims :]
        space = [sum(one) for one in along]
        slidings = []
        for d, (n, window) in enumerate(zip(space, self._windows(space), strict=True)):
            outputs = blocks_of_outputs(window, along[d], self.output_blocks)
            options = (self.kernel_size[d], self.stride[d], self.dilation[d])
            reads = [window.reads(n, block) for block in outputs]
            slidings.append(Sliding(*options, intervals_of(along[d]), outputs, reads))
        return slidings

    def _place(
        self,
        sizes: Sequence[Sequence[int]],
        slidings: Sequence[Sliding],
        reads: Sequence[Sequence[Interval]],
        padding: Sequence[int] = (),
    ) -> None:
        """Keep what of this concerns this worker."""
        if self._grid.workers.active:
            place = self._grid.place[2]
            self._outputs = [one.outputs[i] for one, i in zip(slidings, place, strict=True)]
            self._inputs = [along[i] for along, i in zip(reads, place, strict=True)]
            self._padding = list(padding)
            i, j, _ = self._grid.place
            # Of an input without channels torch makes a result without channels.
            out_channels, b = self.out_channels if self.in_channels else 0, self._grid.batched
            block = cut(out_channels, self._grid.p_out)[i]
            batch = [sizes[0][self._grid.workers.place[0]]] if b else []
            self._result_shape = [*batch, *(stop - start for start, stop in (block, *self._outputs))]
            channels = math.prod(self.layouts[self._parameter_names[0]].used_shape[:2])
            self._computes = 0 not in self._result_shape and channels > 0
            self._adds_bias = j == 0  # column 0 does

    def _pads_zeros(self) -> bool:
        return self.padding_mode == "zeros" and not self.transposed

    def _adds(self, dtype: torch.dtype) -> bool:
        """Whether what a worker's own block gives and what its halo gives may be added: not where the sum is rounded to
        half precision, which torch.nn does once."""
        in_place = self._grid.moves_nothing and self._grid.p_out == 1
        return in_place and self._pads_zeros() and self._one_element(self._element(dtype)).dtype not in HALF

    def _check_input(self, name: str, extents: list[int], dtype: torch.dtype) -> None:
        """Raise what torch.nn refuses; all ranks know the same."""
        channels = extents[-self.dims - 1]
        if channels != self.in_channels:
            raise RuntimeError(
                f"{name}: the input of shape {extents} has {channels} channels; expected in_channels={self.in_channels}"
            )
        if channels == 0 and self.padding_mode in ("reflect", "replicate"):
            raise RuntimeError(f"{name}: in_channels=0, and padding_mode={self.padding_mode!r} needs channels to pad")
        if 0 in extents[-self.dims :]:
            raise RuntimeError(f"{name}: the input has shape {extents}; only the batch may be of size 0")
        odd = [one for one in (dtype, *(p.dtype for p in self.parameters())) if one != self.weight.dtype]
        if odd and self.autocast is None:
            what = "input" if dtype == odd[0] else "bias"
            raise RuntimeError(f"{name}: the {what} is {odd[0]} but the weight {self.weight.dtype}")
        with as_of(name):
            self._one_element(self._element(dtype))

    def _element(self, dtype: torch.dtype) -> torch.Tensor:
        return torch.empty(0, dtype=dtype, device=self.weight.device)

    def _one_element(self, like: torch.Tensor) -> torch.Tensor:
        """The layer of one element: it has the dtype of the result, and raises where torch has none for this dtype."""
        ones = (1,) * (self.dims + 2)
        with torch.no_grad():
            return self.functions[self.dims](like.new_zeros(ones), like.new_zeros(ones, dtype=self.weight.dtype))

    def _windows(self, extents: list[int]) -> Sequence[Resizing]:
        """The windows along each spatial dimension, given its extents."""
        raise NotImplementedError

    # Call

    def convolve_blocks(self, input: torch.Tensor) -> torch.Tensor:
        """Apply the layer to this rank's block of the input."""
        return check_input_unmodified(type(self).__name__, input, self._convolved(input))

    def _convolved(self, input: torch.Tensor) -> torch.Tensor:
        grid = self._grid
        if self._halo_convolution is not None:
            travelling = self.start_parameters()
            return self._halo_convolution(input, lambda: (*travelling(), None)[:2], self.convolve)
        read, agreement = input, self._distdl_agreement
        # Between hosts it pays to have the parameters on the way beside what is read.
        arrive = self.start_parameters() if agreement is not None and agreement.spans_hosts else self.parameters_in_use
        if self._read is not None:
            read = self._read(input.unsqueeze(grid.copied) if grid.copies and grid.P_x.active else input)
            read = read.squeeze(grid.copied) if grid.copies and grid.workers.active else read
        on_block = grid.workers.active
        parameters = arrive()
        result = self._on_block(read, *parameters) if on_block else connect_to(read, *parameters)
        return result if self._sum_reduce is None else self._sum_reduce(result)

    def _on_block(self, read: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """This worker's term of the output; where nothing is to be computed, of a graph that is as on other workers."""
        if self._computes:
            if self._adds_bias or bias is None:
                return self.convolve(read, weight, bias, self._padding)
            return self.convolve(read, weight, None, self._padding) + zero_of(bias)
        nothing = self._one_element(read).new_zeros(self._result_shape) + zero_of(read) * zero_of(weight)
        return nothing if bias is None else nothing + zero_of(bias)

    def convolve(
        self,
        read: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        padding: Sequence[int],
        along: Sequence[int] | None = None,
    ) -> torch.Tensor:
        """The local layer, with this padding; along some of the dimensions of space, where they are given."""
        raise NotImplementedError

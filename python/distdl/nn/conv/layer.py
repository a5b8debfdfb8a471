"""The common part of convolution and transposed convolution, with weight and input in blocks."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import ClassVar

import torch

from distdl import _core, operators
from distdl.modules.graph import connect_to
from distdl.nn.base.option_types import Count, Integer, PositiveSizes, common_options, option
from distdl.nn.base.precision import HALF
from distdl.nn.conv.grid import ConvGrid, check_groups
from distdl.nn.conv.halo import HaloConvolution, Sliding, fit
from distdl.nn.kernels.channels_last import ordered_like
from distdl.nn.windows.blocks import Resizing, blocks_of_outputs, naming_layer
from distdl.nn.windows.layer import ResizingLayer
from distdl.nn.windows.reader import BoxReader
from distdl.operators.dispatch import Applied
from distdl.parameters.initial import like_linear
from distdl.parameters.transport import zero_of
from distdl.partitions.boxes import Interval, block_intervals, cut
from distdl.partitions.grid import Grid
from distdl.partitions.partition import Partition


@common_options
class _ConvOptions(ResizingLayer):
    """The options that convolutions and transposed convolutions have in the same places."""

    in_channels: Integer
    out_channels: Integer
    kernel_size: PositiveSizes
    stride: PositiveSizes = option(default=1)


class ConvLayer(_ConvOptions):
    """A convolution whose workers each compute a block of the outputs, or a term of it.

    The workers receive the inputs of their outputs in space, in their block of input channels. They apply their block
    of the weight; if input channels are split, the results are sum-reduced: see ConvGrid.
    """

    P_y: Partition | None
    P_w: Partition | None
    dims: ClassVar[int]  # spatial dimensions
    transposed: ClassVar[bool] = False
    functions: ClassVar[dict[int, Callable[..., torch.Tensor]]]  # of torch, by spatial dimensions
    groups: Count
    dilation: PositiveSizes
    padding_mode: str

    # Constructing

    def check_options(self) -> None:
        name = type(self).__name__
        self._check_form()
        self._check_channels(name)
        self._grid = grid = self._workers(name)
        check_groups(name, grid, self.in_channels, self.out_channels, self.groups)
        self._check_grid()
        self._check_padding(name)
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
        outputs, first, exists = (self.out_channels,), (row + 1,), self.passed["bias"]
        self.declare_parameter("bias", workers, outputs, (row,), first_of=first, initialize=of_bias, exists=exists)

    def _workers(self, name: str) -> ConvGrid:
        others = (None if P is None else P.grid for P in (self.P_y, self.P_w))
        return ConvGrid.of(name, self.dims, self.groups, self.grid, *others)

    def _check_form(self) -> None:
        """Raise unless the partitions are all that this layer takes."""
        if (self.P_y is None) != (self.P_w is None):
            missing = "P_y" if self.P_y is None else "P_w"
            raise ValueError(f"{type(self).__name__}: {missing} is not given; it takes P_x alone, or P_x, P_y and P_w")

    def _check_grid(self) -> None:
        """Raise if a grid splits more than this layer supports."""

    def _check_padding(self, name: str) -> None:
        """Raise if the padding does not fit other options."""

    def _check_channels(self, name: str) -> None:
        for which in ("in_channels", "out_channels"):
            channels, least = getattr(self, which), 0 if which == "in_channels" and not self.transposed else 1
            if channels < least:
                raise RuntimeError(f"{name}: {which}={channels}; it must be at least {least}")
            if channels % self.groups != 0:
                raise ValueError(f"{name}: {which}={channels} is not divisible by groups={self.groups}")

    def prepare(self) -> None:
        self._sum_reduce = self._summation()
        # Along each spatial dimension, after the set-up: outputs and inputs of this worker.
        self._outputs: list[Interval] = []
        self._inputs: list[Interval] = []
        self._padding: list[int] = []  # the padding by the local layer
        self._halo_convolution: HaloConvolution | None = None  # if it replaces the reader
        self._moves_at_once = False  # parameters and inputs
        self._read: BoxReader | operators.Operator | None = None  # if a worker reads more than its own block

    def _summation(self) -> operators.Operator | None:
        """The sum over input channels, if they are split, or the output moves."""
        grid = self._grid
        alone = grid.p_in == 1 and grid.workers.ranks == grid.P_y.ranks
        return None if alone else operators.sum_reduce(grid.workers, grid.output)

    def calling_grids(self) -> list[Grid]:
        return [self._grid.P_x, self._grid.workers, self._grid.P_y]

    # Set-up

    def set_up(self) -> None:
        grid, name = self._grid, type(self).__name__
        sizes = self.blocks(self.grid)
        extents = [sum(along) for along in sizes]
        _, dtype = self.structure(self.grid)[0]
        self._check_input(name, extents, dtype)
        slidings = self._slidings(sizes)
        blocks = [block_intervals(along) for along in sizes]
        split = grid.p_out if grid.grouped else grid.p_in
        leading = [*blocks[: grid.batched], cut(self.in_channels, split)]
        smallest = min(sizes[0]) if grid.batched else 1
        self._halo_convolution, self._read = None, None
        self._moves_at_once = self.agreement is not None and self.agreement.spans_hosts  # then it pays
        weight = self.out_channels, self.in_channels // self.groups, *self.kernel_size
        if self._may_add_halos(dtype) and fit(slidings, smallest, weight, self.groups):
            self._place(sizes, slidings, [list(sliding.reads) for sliding in slidings])
            self._halo_convolution = HaloConvolution(name, self.grid, leading, slidings)
            return
        # The local layer pads unsplit dimensions.
        pads = [sliding.padding(0) if self._pads_zeros() and len(sliding.blocks) == 1 else None for sliding in slidings]
        reads = [self._read_by(x) if pad is None else x.blocks for x, pad in zip(slidings, pads, strict=True)]
        self._place(sizes, slidings, reads, [pad or 0 for pad in pads])
        if not (grid.moves_nothing and [*leading, *reads] == blocks):
            wanted, P_x, workers = [*leading, *reads], grid.P_x, grid.without_copies
            if grid.copies:
                wanted.insert(grid.copied, [(0, 1)] * grid.workers.shape[grid.copied])
                extents.insert(grid.copied, 1)
                P_x, workers = grid.input, grid.workers
            mode = "constant" if self.padding_mode == "zeros" else self.padding_mode
            reader = BoxReader(name, P_x, workers, extents, wanted, mode)
            self._read = reader if reader.repeats else reader.exchange

    def _read_by(self, sliding: Sliding) -> list[Interval]:
        """The intervals read along a dimension: whole blocks if at most their last elements meet no window.

        The local layer ignores these elements, and the blocks need no copy.
        """
        is_whole = not self.transposed and all(sliding.padding(i) == 0 for i in range(len(sliding.blocks)))
        return sliding.blocks if is_whole else sliding.reads

    def _slidings(self, sizes: Sequence[Sequence[int]]) -> list[Sliding]:
        along = sizes[-self.dims :]
        space = [sum(blocks) for blocks in along]
        slidings = []
        for d, (n, window) in enumerate(zip(space, self._windows(space), strict=True)):
            outputs = blocks_of_outputs(window, along[d], self.output_blocks)
            options = (self.kernel_size[d], self.stride[d], self.dilation[d])
            reads = [window.reads(n, block) for block in outputs]
            slidings.append(Sliding(*options, block_intervals(along[d]), outputs, reads))
        return slidings

    def _place(
        self,
        sizes: Sequence[Sequence[int]],
        slidings: Sequence[Sliding],
        reads: Sequence[Sequence[Interval]],
        padding: Sequence[int] = (),
    ) -> None:
        if self._grid.workers.active:
            place = self._grid.place[2]
            self._outputs = [sliding.outputs[i] for sliding, i in zip(slidings, place, strict=True)]
            self._inputs = [along[i] for along, i in zip(reads, place, strict=True)]
            self._padding = list(padding)
            i, j, _ = self._grid.place
            # torch returns no channels for an input without channels.
            out_channels, b = self.out_channels if self.in_channels else 0, self._grid.batched
            block = cut(out_channels, self._grid.p_out)[i]
            batch = [sizes[0][self._grid.workers.place[0]]] if b else []
            self._result_shape = [*batch, *(stop - start for start, stop in (block, *self._outputs))]
            channels = math.prod(self.layouts[self._parameter_names[0]].used_shape[:2])
            self._computes = 0 not in self._result_shape and channels > 0
            self._adds_bias = j == 0  # only in column 0

    def _pads_zeros(self) -> bool:
        return self.padding_mode == "zeros" and not self.transposed

    def _may_add_halos(self, dtype: torch.dtype) -> bool:
        """Whether interior and halo contributions may be summed: not in half precision, which torch.nn rounds once."""
        in_place = self._grid.moves_nothing and self._grid.p_out == 1
        return in_place and self._pads_zeros() and self._one_element(self._element(dtype)).dtype not in HALF

    def _check_input(self, name: str, extents: list[int], dtype: torch.dtype) -> None:
        """Raise the errors of torch.nn; all ranks know the same."""
        channels = extents[-self.dims - 1]
        if channels != self.in_channels:
            raise RuntimeError(
                f"{name}: the input of shape {extents} has {channels} channels; expected in_channels={self.in_channels}"
            )
        if channels == 0 and self.padding_mode in ("reflect", "replicate"):
            raise RuntimeError(f"{name}: in_channels=0, and padding_mode={self.padding_mode!r} needs channels to pad")
        if 0 in extents[-self.dims :]:
            raise RuntimeError(f"{name}: the input has shape {extents}; only the batch may be of size 0")
        odd = [kind for kind in (dtype, *(p.dtype for p in self.parameters())) if kind != self.weight.dtype]
        if odd and self.autocast is None:
            tensor = "input" if dtype == odd[0] else "bias"
            raise RuntimeError(f"{name}: the {tensor} is {odd[0]} but the weight {self.weight.dtype}")
        with naming_layer(name):
            self._one_element(self._element(dtype))

    def _element(self, dtype: torch.dtype) -> torch.Tensor:
        return torch.empty(0, dtype=dtype, device=self.weight.device)

    def _one_element(self, like: torch.Tensor) -> torch.Tensor:
        """The local layer of one element: it has the dtype of the result, and raises if torch refuses the dtype."""
        shape = (1,) * (self.dims + 2)
        with torch.no_grad():
            return self.functions[self.dims](like.new_zeros(shape), like.new_zeros(shape, dtype=self.weight.dtype))

    def _windows(self, extents: list[int]) -> Sequence[Resizing]:
        raise NotImplementedError

    # The call

    def convolve_blocks(self, input: torch.Tensor) -> torch.Tensor:
        result = self._convolved(input)
        _core.check_input_unmodified(type(self).__name__, input, result)
        return result

    def beside_vote(self, args: tuple[object, ...], parameters: Sequence[torch.Tensor]) -> list[Applied]:
        if "parametrizations" in self._modules:  # which compute weights in each use, perhaps with random numbers
            return []
        transported, read = self._transport.beside_vote(parameters), self._read
        if read is None or self._grid.copies:
            return transported
        return [((read.exchange if isinstance(read, BoxReader) else read).core, args[0]), *transported]

    def _convolved(self, input: torch.Tensor) -> torch.Tensor:
        grid = self._grid
        if self._halo_convolution is not None:
            travelling = self.start_parameters()
            return self._halo_convolution(input, lambda: (*travelling(), None)[:2], self.convolve)
        read, arrive = input, self.start_parameters() if self._moves_at_once else self.parameters_in_use
        if self._read is not None:
            read = self._read(input.unsqueeze(grid.copied) if grid.copies and grid.P_x.active else input)
            read = read.squeeze(grid.copied) if grid.copies and grid.workers.active else read
        on_block = grid.workers.active
        parameters = arrive()
        result = self._on_block(read, *parameters) if on_block else connect_to(read, *parameters)
        return result if self._sum_reduce is None else ordered_like(result, self._sum_reduce(result))

    def _on_block(self, read: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """This worker's term of the output; a term without elements has the same graph as on other workers."""
        if self._computes:
            if self._adds_bias or bias is None:
                return self.convolve(read, weight, bias, self._padding)
            return self.convolve(read, weight, None, self._padding) + zero_of(bias)
        empty = self._one_element(read).new_zeros(self._result_shape) + zero_of(read) * zero_of(weight)
        return empty if bias is None else empty + zero_of(bias)

    def convolve(
        self,
        read: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        padding: Sequence[int],
        along: Sequence[int] | None = None,
    ) -> torch.Tensor:
        raise NotImplementedError

"""What convolution and transposed convolution have in common: how a weight in blocks meets an input in blocks."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch
from mpi4py import MPI

from distdl import primitives
from distdl._load import _core
from distdl.construction import constructing
from distdl.nn.boundary import Interval, Reader, as_of, intervals_of
from distdl.nn.conv_grid import ConvGrid, check_groups
from distdl.nn.conv_halo import HaloConvolution, Sliding, fit
from distdl.nn.module import Module
from distdl.nn.window import blocks_of_outputs, check_output_blocks, integer, per_dimension
from distdl.parameters import Layout, ParameterBroadcast, kind_of, reset_like_linear, uniform_, zero_of
from distdl.partition import Partition


def split_partitions(arguments: tuple[Any, ...], options: dict[str, Any]) -> tuple[Any, Any, tuple[Any, ...]]:
    """P_y, P_w and the other arguments, where P_y and P_w may stand before these, be named, or not be there."""
    if arguments and isinstance(arguments[0], Partition | MPI.Comm):
        P_y, *others = arguments
        P_w = options.pop("P_w") if "P_w" in options else others.pop(0) if others else None
        return P_y, P_w, tuple(others)
    return options.pop("P_y", None), options.pop("P_w", None), arguments


class ConvLayer(Module):
    """A convolution of which each worker computes its block of the outputs, or a term of it.

    The workers receive what their outputs depend on in space, in their block of the input's channels. They apply their
    block of the weight, and where input channels are split the results are sum-reduced: see ConvGrid.
    """

    dims: int  # spatial dimensions
    P_y: Partition | None
    P_w: Partition | None
    transposed = False
    _channel_partitions = "last"  # where P_y and P_w stand among the arguments
    _set_up: Callable[..., None]
    __signature__: inspect.Signature
    padding_mode = "zeros"
    _functions: dict[int, Callable[..., torch.Tensor]]  # by dims
    stride: tuple[int, ...]
    dilation: tuple[int, ...]

    def _construct(
        self, P_x: Any, P_y: Any, P_w: Any, in_channels: int, out_channels: int, kernel_size: Any, groups: int,
        bias: bool, device: torch.device | str | None, dtype: torch.dtype | None, output_blocks: str,
        options: dict[str, Any],
    ) -> None:  # fmt: skip
        name = type(self).__name__
        self.output_blocks = output_blocks
        self.in_channels, self.out_channels, self.groups = in_channels, out_channels, groups
        given = {"P_x": P_x} if P_y is None and P_w is None else {"P_x": P_x, "P_y": P_y, "P_w": P_w}
        compared = {
            "in_channels": in_channels, "out_channels": out_channels, "kernel_size": kernel_size, "groups": groups,
            "bias": bias, "device": kind_of(device), "dtype": dtype, "output_blocks": output_blocks, **options,
        }  # fmt: skip
        with constructing(name, given, compared) as partitions:
            self.P_x = partitions[0]
            self.P_y, self.P_w = partitions[1:] or (None, None)
            self._check_form()
            self._check_channels()
            self._grid = ConvGrid.of(name, self.dims, groups, self.P_x, self.P_y, self.P_w)
            in_channels, out_channels, groups = self.in_channels, self.out_channels, self.groups
            check_groups(name, self._grid, in_channels, out_channels, groups)
            self._check_grid()
            self.kernel_size = per_dimension(name, kernel_size, self.dims, "kernel_size")
            self._check_options(**options)
            check_output_blocks(name, output_blocks)
            if any(s < 1 for s in (*self.stride, *self.dilation, *self.kernel_size)):
                raise RuntimeError(
                    f"{name}: kernel_size={self.kernel_size}, stride={self.stride}, dilation={self.dilation}; all must "
                    "be at least 1"
                )
            grid = self._grid
            channels = (in_channels, out_channels) if self.transposed else (out_channels, in_channels)
            shape = (channels[0], channels[1] // groups, *self.kernel_size)
            self._distdl_register_parameter("weight", Layout(grid.weight(self.transposed), shape), dtype, device)
            if bias:
                self._distdl_register_parameter("bias", Layout(grid.bias(), (out_channels,)), dtype, device)
            else:
                self.register_parameter("bias", None)
        self._parameters_to_all = ParameterBroadcast(name, grid.workers, grid.owners)
        self.reset_parameters()

        # Where channels are neither split nor moved, each worker's result is its block of the output.
        alone = grid.p_in == 1 and grid.workers._ranks == grid.P_y._ranks
        self._y_sum_reduce = None if alone else primitives.sum_reduce(grid.workers, grid.output)
        self._in_place = alone and grid.p_out == 1 and grid.workers._ranks == grid.P_x._ranks
        self._distdl_agree_among(grid.P_x, grid.workers, grid.P_y)
        # Of this worker along each spatial dimension, after the set-up: what it computes, and what it reads for that.
        self._outputs: list[Interval] = []
        self._inputs: list[Interval] = []
        self._padding: list[int] = []  # what the local layer pads that beyond
        self._halo_convolution: HaloConvolution | None = None  # where it takes the place of what follows
        self._read: Callable[[torch.Tensor], torch.Tensor] = primitives.Absent()

    def __init_subclass__(cls) -> None:
        """Show the arguments as they are documented; the constructor takes the partitions in several ways."""
        super().__init_subclass__()
        given = inspect.signature(cls.__init__.__get__(object()))
        if "arguments" not in given.parameters:  # a class of the user's, with a constructor of its own
            cls.__signature__ = given
            return
        _, P_x, P_y, P_w, *others = inspect.signature(cls._set_up).parameters.values()
        last = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY, default=None) for one in (P_y, P_w)]
        forms = {"first": [P_x, P_y, P_w, *others], "last": [P_x, *others, *last], "none": [P_x, *others]}
        cls.__signature__ = inspect.Signature(forms[cls._channel_partitions])

    def _check_form(self) -> None:
        """Refuse more or fewer partitions than this layer takes."""

    def _check_grid(self) -> None:
        """Refuse a grid that splits more than this layer does."""

    def _check_options(self, **options: Any) -> None:
        """Take the options that are the layer's own."""
        raise NotImplementedError

    def _check_channels(self) -> None:
        name = type(self).__name__
        for which in ("groups", "in_channels", "out_channels"):
            setattr(self, which, integer(name, getattr(self, which), which))
        if self.groups < 1:
            raise ValueError(f"{name}: groups={self.groups}; it must be at least 1")
        for which in ("in_channels", "out_channels"):
            channels = getattr(self, which)
            if channels < 1:
                raise RuntimeError(f"{name}: {which}={channels}; it must be at least 1")
            if channels % self.groups != 0:
                raise ValueError(f"{name}: {which}={channels} is not divisible by groups={self.groups}")

    def reset_parameters(self) -> None:
        """Draw the parameters as torch.nn's convolutions do; every rank has to call it, with the same seed."""
        bound = reset_like_linear(self.weight, self._distdl_layouts["weight"])
        if self.bias is not None:
            uniform_(self.bias, self._distdl_layouts["bias"], bound)

    # Set-up

    def _distdl_input_changed(self, input: tuple[Any, ...]) -> bool:
        """Agree on what torch.nn takes from the layer and from the call too, so that it raises on all ranks or none."""
        return self._distdl_agree_on(input[0], str(input[1:]))

    def _distdl_module_setup(self, input: tuple[Any, ...]) -> None:
        agreement, grid, name = self._distdl_agreement, self._grid, type(self).__name__
        if agreement is None or not agreement.active:
            return
        sizes = agreement.blocks(0, "P_x", *self.P_x._workers())
        extents = [sum(along) for along in sizes]
        _, dtype = self._distdl_global_structure(self.P_x)[0]
        self._check_input(name, extents, dtype)
        batched, space = grid.batched, extents[-self.dims :]
        reads = [intervals_of(along) for along in sizes[:batched]]
        split = grid.p_out if grid.grouped else grid.p_in
        reads.append([_core.balanced_block(self.in_channels, split, i) for i in range(split)])
        copies = grid.workers._shape[grid.copied]
        leading = [*reads]
        reads.insert(grid.copied, [(0, 1)] * copies)
        self._outputs, self._inputs, self._padding = [], [], []
        slidings: list[Sliding] = []
        for d, (n, window) in enumerate(zip(space, self._slide(space, *input[1:]), strict=True)):
            outputs = blocks_of_outputs(window, sizes[d - self.dims], self.output_blocks)
            blocks = intervals_of(sizes[d - self.dims])
            options = (self.kernel_size[d], self.stride[d], self.dilation[d])
            slidings.append(Sliding(*options, blocks, outputs, [window.reads(n, block) for block in outputs]))
            # Where nothing is split the local layer may as well pad.
            padding = slidings[-1].padding(0) if self._pads_zeros() and len(blocks) == 1 else None
            reads.append(list(slidings[-1].reads) if padding is None else blocks)
            if grid.workers.active:
                self._outputs.append(outputs[grid.place[2][d]])
                self._inputs.append(reads[-1][grid.place[2][d]])
                self._padding.append(padding or 0)
        smallest = min(sizes[0]) if batched else 1
        if self._adds(dtype) and fit(slidings, smallest * self.in_channels):
            self._halo_convolution = HaloConvolution(name, self.P_x, leading, slidings)
            return
        self._halo_convolution = None
        mode = "constant" if self.padding_mode == "zeros" else self.padding_mode
        extents.insert(grid.copied, 1)
        self._read = Reader(name, grid.input, grid.workers, extents, reads, mode)

    def _pads_zeros(self) -> bool:
        return self.padding_mode == "zeros" and not self.transposed

    def _adds(self, dtype: torch.dtype) -> bool:
        """Whether what a worker's own block gives and what its halo gives may be added: not where the sum is rounded to
        half precision, which torch.nn does once."""
        result = self._one_element(torch.empty(0, dtype=dtype)).dtype
        return self._in_place and self._pads_zeros() and result not in (torch.half, torch.bfloat16)

    def _check_input(self, name: str, extents: list[int], dtype: torch.dtype) -> None:
        """What torch.nn refuses; all ranks know the same."""
        channels = extents[-self.dims - 1]
        if channels != self.in_channels:
            raise RuntimeError(
                f"{name}: the input of shape {extents} has {channels} channels; expected in_channels={self.in_channels}"
            )
        if 0 in extents[-self.dims :]:
            raise RuntimeError(f"{name}: the input has shape {extents}; only the batch may be of size 0")
        odd = [one for one in (dtype, *(p.dtype for p in self.parameters())) if one != self.weight.dtype]
        if odd and not torch.is_autocast_enabled("cpu"):
            what = "input" if dtype == odd[0] else "bias"
            raise RuntimeError(f"{name}: the {what} is {odd[0]} but the weight {self.weight.dtype}")
        with as_of(name):
            self._one_element(torch.empty(0, dtype=dtype))

    def _one_element(self, like: torch.Tensor) -> torch.Tensor:
        """The layer of one element: it has the dtype of the result, and raises where torch has none for this dtype."""
        ones = (1,) * (self.dims + 2)
        with torch.no_grad():
            return self._functions[self.dims](like.new_zeros(ones), like.new_zeros(ones, dtype=self.weight.dtype))

    def _slide(self, extents: list[int], *arguments: Any) -> Sequence[_core.Window | _core.TransposedWindow]:
        """The windows along each spatial dimension, given its extents and what else forward was called with."""
        raise NotImplementedError

    # Call

    def _convolve(self, input: torch.Tensor) -> torch.Tensor:
        """Apply the layer. Collective over the ranks of its partitions."""
        grid = self._grid
        if self._halo_convolution is not None:
            started = self._parameters_to_all.start(*self._owned())
            return self._halo_convolution(input, lambda: self._parameters_of(started()), self._compute)
        if grid.P_x.active:
            input = input.unsqueeze(grid.copied)
        read = self._read(input)
        if grid.workers.active:
            parameters = self._parameters_of(self._parameters_to_all(*self._owned()))
            result = self._on_block(read.squeeze(grid.copied), *parameters)
        else:
            result = read + zero_of(read) * zero_of(self.weight)
            if self.bias is not None:
                result = result + zero_of(self.bias)
        return result if self._y_sum_reduce is None else self._y_sum_reduce(result)

    def _owned(self) -> list[tuple[torch.Tensor, tuple[int, ...]]]:
        """What this worker owns of its blocks of weight and bias, and their shapes; the bias in column 0 only."""
        i, j, _ = self._grid.place
        at = (j, i) if self.transposed and not self._grid.grouped else (i, j)
        block = self._distdl_layouts["weight"].block((*at, *(0,) * self.dims))
        owned = [(self.weight, tuple(stop - start for start, stop in block))]
        if self.bias is not None:
            start, stop = self._distdl_layouts["bias"].block((i,))[0]
            owned.append((self.bias, (stop - start if j == 0 else 0,)))
        return owned

    def _parameters_of(self, blocks: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Weight and bias of what arrived; the bias in column 0 only, so that it is added once."""
        weight, *biases = blocks
        return weight, biases[0] if biases and self._grid.place[1] == 0 else None

    def _on_block(self, read: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """This worker's term of the output; where nothing is to be computed, of a graph that is as on other workers."""
        i, _, _ = self._grid.place
        start, stop = _core.balanced_block(self.out_channels, self._grid.p_out, i)
        shape = (*read.shape[: self._grid.batched], stop - start, *(stop - start for start, stop in self._outputs))
        if 0 not in shape and weight.numel() > 0:
            return self._compute(read, weight, bias, self._padding)
        nothing = self._one_element(read).new_zeros(shape) + zero_of(read) * zero_of(weight)
        return nothing if bias is None else nothing + zero_of(bias)

    def _compute(
        self, read: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, padding: Sequence[int]
    ) -> torch.Tensor:
        """The local layer, with this padding."""
        raise NotImplementedError

    def _blocks_and_partitions(self) -> str:
        given = {"P_x": self.P_x, "P_y": self.P_y, "P_w": self.P_w}
        partitions = (f"{name}={partition}" for name, partition in given.items() if partition is not None)
        return ", ".join((f"output_blocks={self.output_blocks!r}", *partitions))

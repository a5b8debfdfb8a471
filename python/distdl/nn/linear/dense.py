"""The linear layer over a partitioned weight."""

from __future__ import annotations

import math
from dataclasses import KW_ONLY

import torch

from distdl import operators
from distdl.nn.base.layer import Layer
from distdl.nn.base.option_types import (
    Device,
    Dtype,
    FurtherPartition,
    HasBias,
    Natural,
    PartitionsFirst,
    option,
    with_partitions_first,
)
from distdl.nn.linear.features import check_dtypes, declare_linear, term
from distdl.partitions.boxes import cut
from distdl.partitions.grid import Grid

__all__ = ["DistributedLinear"]


@with_partitions_first
class DistributedLinear(PartitionsFirst, Layer):
    r"""Applies :math:`y = x W^T + b` where x, y and W are partitioned: ``torch.nn.Linear`` in blocks.

    x is broadcast from P_x to the columns of P_W. Each worker applies its block of W, workers of column 0 add their
    block of b, and the results are sum-reduced along the rows of P_W into P_y.

    Args:
        P_x: the partition of the input: ``[*leading, p_in]``.
        in_features, out_features, bias, device, dtype: as in ``torch.nn.Linear``.
        P_y: the partition of the output: ``[*leading, p_out]``.
        P_W: the workers that compute: ``[*leading, p_out, p_in]``, or ``[p_out, p_in]`` if leading dimensions are not
            split.

    P_y and P_W may directly follow P_x. Without them features are not split, and P_x is ``[*leading, 1]``.

    Shape:
        Features in balanced blocks, ``(*, in_features)`` over P_x and ``(*, out_features)`` over P_y. Leading
        dimensions, if split, are in any blocks, as many as in P_x.

    Attributes:
        weight: this worker's balanced block of the weight (out_features, in_features). If leading dimensions are split,
            several workers use the same block: see :func:`distdl.parameter_layout`. No rows outside of P_W.
        bias: this worker's block of the bias on column 0 of P_W, no rows elsewhere; None without bias.

    Raises:
        ValueError: on all ranks, if the partitions do not match, or the input is not in such blocks.
        RuntimeError: on all ranks, if dtypes of input and parameters differ without autocast.

    Source: R. J. Hewett, T. J. Grady, "A Linear Algebraic Approach to Model Parallelism in Deep Learning" (2020); the
    same seed gives the parameters of https://docs.pytorch.org/docs/stable/generated/torch.nn.Linear.html.
    """

    in_features: Natural
    out_features: Natural
    bias: HasBias = option(default=True)
    device: Device = None
    dtype: Dtype = None
    _: KW_ONLY
    P_y: FurtherPartition = option(default=None)
    P_W: FurtherPartition = option(default=None)

    def check_options(self) -> None:
        self._leading, self._input, self._workers, self._output = self._grids()
        shape = (self.out_features, self.in_features)
        row, column = len(self._leading), len(self._leading) + 1
        declare_linear(self, self._workers, shape, (row, column), first_of=(column,))

    def _grids(self) -> tuple[tuple[int, ...], Grid, Grid, Grid]:
        """The leading dimensions, and all partitions extended to leading dimensions, row and column."""
        x = self.grid
        if (self.P_y is None) != (self.P_W is None):
            missing = "P_y" if self.P_y is None else "P_W"
            raise ValueError(f"DistributedLinear: {missing} is not given; it takes P_x alone, or P_x, P_y and P_W")
        if not x.known:
            return (), x, x, x
        y = x if self.P_y is None else self.P_y.grid
        if self.P_W is None and x.shape and x.shape[-1] != 1:
            raise ValueError(
                f"DistributedLinear: P_x has shape {list(x.shape)}, which splits the features; this takes P_y and P_W, "
                "which were left out. DistributedLinearAllGather and DistributedLinearReduceScatter take P_x alone"
            )
        w = x.reshaped((*x.shape[:-1], 1, *x.shape[-1:])) if self.P_W is None else self.P_W.grid
        leading = x.shape[:-1]
        if len(w.shape) == 2 and math.prod((*leading, *y.shape[:-1])) == 1:
            leading = ()  # dimensions of one worker; P_x and P_y may have different numbers of them
        fits = bool(x.shape and y.shape) and w.shape == (*leading, y.shape[-1], x.shape[-1])
        if not fits or (leading and y.shape[:-1] != leading):
            raise ValueError(
                f"DistributedLinear: P_x has shape {list(x.shape)}, P_y {list(y.shape)} and P_W {list(w.shape)}; they "
                "must be [*leading, p_in], [*leading, p_out] and [*leading, p_out, p_in]. P_W may leave out leading "
                "dimensions of one worker"
            )
        return leading, x.reshaped((*leading, 1, x.shape[-1])), w, y.reshaped((*leading, y.shape[-1], 1))

    def prepare(self) -> None:
        p_out, p_in = self._workers.shape[-2:] if self._workers.known else (1, 1)
        same_input = p_out == 1 and self._input.ranks == self._workers.ranks
        same_output = p_in == 1 and self._output.ranks == self._workers.ranks
        self._broadcast = None if same_input else operators.broadcast(self._input, self._workers)
        self._sum_reduce = None if same_output else operators.sum_reduce(self._workers, self._output)

    def set_up(self) -> None:
        if math.prod(self._leading) > 1:
            self.blocks(self.grid)  # raises if leading dimensions do not match
        xs = self.structure(self.grid)
        features = cut(self.in_features, self.grid.shape[-1])
        for worker, (shape, dtype) in enumerate(xs):
            j = self.grid.index(worker)[-1]
            size = features[j][1] - features[j][0]
            if not shape or shape[-1] != size:
                raise ValueError(
                    f"DistributedLinear: worker {worker} of P_x has an input of shape {shape}; its last dimension must "
                    f"be {size}, the balanced block of in_features={self.in_features} over {len(features)} workers"
                )
            if shape[:-1] != xs[0][0][:-1] and math.prod(self._leading) == 1:
                raise ValueError(
                    f"DistributedLinear: worker {worker} of P_x has an input of shape {shape}, worker 0 one of shape "
                    f"{xs[0][0]}; all dimensions but the last must be the same"
                )
            check_dtypes(self, self.weight, self.bias, input=dtype)

    def compute(self, input: torch.Tensor) -> torch.Tensor:
        x = input if self._broadcast is None else self._broadcast(input)
        if self._workers.active:
            y = term(x, *self.parameters_in_use(), place=self._workers.place[-1])
        else:
            y = self.without_part(x)
        return y if self._sum_reduce is None else self._sum_reduce(y)

"""The linear layer over a partitioned weight."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from distdl import primitives
from distdl._load import _core
from distdl.construction import constructing, constructor
from distdl.nn.module import Module
from distdl.nn.window import integer
from distdl.parameters import Layout, kind_of, reset_like_linear, uniform_, zero_of
from distdl.partition import Partition


class DistributedLinear(Module):
    r"""Applies :math:`y = x W^T + b` where x, y and W are partitioned: ``torch.nn.Linear``, put together.

    x is broadcast from P_x down the columns of P_W, each worker applies its block of W (workers of column 0 add their
    block of b), and the results are sum-reduced along the rows of P_W into P_y.

    Args:
        P_x: the partition of the input: [1, ..., 1, p_in].
        P_y: the partition of the output: [1, ..., 1, p_out].
        P_W: the partition of the weight: [p_out, p_in].
        in_features, out_features, bias, device, dtype: as in ``torch.nn.Linear``.

    Shape:
        Any number of leading dimensions; the features in balanced blocks, (..., in_features) over P_x and
        (..., out_features) over P_y. Zero volume on all other ranks.

    Attributes:
        weight: this worker's balanced block of the weight (out_features, in_features); zero volume outside of P_W.
        bias: this worker's block of the bias on column 0 of P_W, zero volume elsewhere; None without bias.

    Raises:
        ValueError: on all ranks, if the partitions do not fit each other, or the input is not in balanced blocks of
            in_features.
        RuntimeError: on all ranks, if the dtypes of input, weight and bias differ, without autocast.

    Constructing is collective over the communicator that the partitions come from, calling over their ranks.

    Source: R. J. Hewett, T. J. Grady, "A Linear Algebraic Approach to Model Parallelism in Deep Learning" (2020); with
    the same seed the global parameters are those of https://docs.pytorch.org/docs/stable/generated/torch.nn.Linear.html.
    """

    @constructor
    def __init__(
        self,
        P_x: Any,
        P_y: Any,
        P_W: Any,
        in_features: int,
        out_features: int,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        options = {
            "in_features": in_features, "out_features": out_features, "bias": bias, "device": kind_of(device),
            "dtype": dtype,
        }  # fmt: skip
        given = {"P_x": P_x, "P_y": P_y, "P_W": P_W}
        with constructing("DistributedLinear", given, options) as (self.P_x, self.P_y, self.P_W):
            if self.P_W._root is not None:
                self._check_partitions()
            for which in ("in_features", "out_features"):
                if integer("DistributedLinear", getattr(self, which), which) < 0:
                    raise RuntimeError(f"DistributedLinear: {which}={getattr(self, which)}; it must not be negative")
            weight = Layout(self.P_W, (out_features, in_features))
            self._distdl_register_parameter("weight", weight, dtype, device)
            if bias:
                self._distdl_register_parameter("bias", Layout(self._column_0(), (out_features,)), dtype, device)
            else:
                self.register_parameter("bias", None)
        self.reset_parameters()

        # The leading ones of P_x and P_y say nothing about the workers.
        x_row = self.P_x._related(self.P_x._ranks, (1, self.P_x.size))
        y_row = self.P_y._related(self.P_y._ranks, (1, self.P_y.size))
        self._x_broadcast = primitives.broadcast(x_row, self.P_W)
        self._y_sum_reduce = primitives.sum_reduce(self.P_W, y_row, transpose_src=True)
        self._distdl_agree_among(self.P_x, self.P_y, self.P_W)
        self._dtypes: list[torch.dtype] = []
        self._input_dtypes: list[torch.dtype] = []  # on each worker of P_x
        self._autocast = False

    def _check_partitions(self) -> None:
        x, y, w = self.P_x._shape, self.P_y._shape, self.P_W._shape
        if not x or not y or len(w) != 2 or (self.P_y.size, self.P_x.size) != w or (y[-1], x[-1]) != w:
            raise ValueError(
                f"DistributedLinear: P_x has shape {list(x)}, P_y {list(y)} and P_W {list(w)}; they must be "
                "[1, ..., 1, p_in], [1, ..., 1, p_out] and [p_out, p_in]"
            )

    def _column_0(self) -> Partition:
        if self.P_W._root is None:
            return self.P_W
        columns = self.P_W._shape[1]
        return self.P_W._line(self.P_W._ranks[::columns])

    def reset_parameters(self) -> None:
        """Draw the parameters as ``torch.nn.Linear`` does; every rank has to call it, with the same seed."""
        bound = reset_like_linear(self.weight, self._distdl_layouts["weight"])
        if self.bias is not None:
            uniform_(self.bias, self._distdl_layouts["bias"], bound)

    def _distdl_input_changed(self, input: tuple[Any, ...]) -> bool:
        """Agree on the parameters' dtypes too: were they to differ, F.linear would raise on one rank, others wait."""
        self._dtypes = [parameter.dtype for parameter in (self.weight, self.bias) if parameter is not None]
        self._autocast = torch.is_autocast_enabled("cpu")
        return self._distdl_agree_on(input[0])

    def _distdl_module_setup(self, input: tuple[Any, ...]) -> None:
        xs = self._distdl_global_structure(self.P_x)
        for j, (shape, _) in enumerate(xs):
            start, stop = _core.balanced_block(self.in_features, self.P_x.size, j)
            if not shape or shape[-1] != stop - start:
                raise ValueError(
                    f"DistributedLinear: worker {j} of P_x has an input of shape {shape}; its last dimension must be "
                    f"{stop - start}, the balanced block of in_features={self.in_features} over {self.P_x.size} workers"
                )
            if shape[:-1] != xs[0][0][:-1]:
                raise ValueError(
                    f"DistributedLinear: worker {j} of P_x has an input of shape {shape}, worker 0 one of shape "
                    f"{xs[0][0]}; all dimensions but the last must be the same"
                )
        self._input_dtypes = [dtype for _, dtype in xs]

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Apply the layer. Collective over the ranks of its partitions."""
        odd = [dtype for dtype in (*self._input_dtypes, *self._dtypes) if dtype != self._dtypes[0]]
        if odd and not self._autocast:  # on all ranks alike
            what = "input" if odd[0] in self._input_dtypes else "bias"
            raise RuntimeError(f"DistributedLinear: the {what} is {odd[0]} but the weight {self._dtypes[0]}")
        x = self._x_broadcast(input)
        if self.P_W.active:
            bias = self.bias
            if bias is not None and self.P_W._ranks[self.P_W.rank] not in self._column_0()._ranks:
                bias = bias.sum().expand(self.weight.shape[0])  # zeros, which keep the parameter in the graph
            x = F.linear(x, self.weight, bias)
        else:
            x = x + zero_of(x) * zero_of(self.weight)
            if self.bias is not None:
                x = x + zero_of(self.bias)
        return self._y_sum_reduce(x)

    def extra_repr(self) -> str:
        """Sizes and partitions."""
        bias = self.bias is not None
        return f"{self.in_features}, {self.out_features}, bias={bias}, P_x={self.P_x}, P_y={self.P_y}, P_W={self.P_W}"

"""The bilinear layer over blocks of all dimensions but features."""

from __future__ import annotations

import math
from typing import Annotated, ClassVar

import torch
import torch.nn.functional as F

from distdl.nn.base.layer import Layer
from distdl.nn.base.option_types import Device, Dtype, HasBias, Natural, at_least, option, with_options
from distdl.nn.linear.features import check_dtypes
from distdl.parameters.initial import Uniform

__all__ = ["DistributedBilinear"]


@with_options
class DistributedBilinear(Layer):
    r"""Applies :math:`y = x_1^T A x_2 + b` to each pair of vectors: ``torch.nn.Bilinear`` in blocks.

    Args:
        P_x: the partition of both inputs and of the result: ``[*leading, 1]``.
        in1_features, in2_features, out_features, bias, device, dtype: as in ``torch.nn.Bilinear``.

    Shape:
        ``(*leading, in1_features)`` and ``(*leading, in2_features)``, as P_x, both in the same blocks of any sizes. The
        result ``(*leading, out_features)`` is in the same blocks.

    Attributes:
        weight, bias: as in ``torch.nn.Bilinear``, whole on worker 0: see :func:`distdl.parameter_layout`.

    Raises:
        ValueError: on all ranks, if P_x splits the features, ``in1_features`` is less than 1, or the inputs are not in
            blocks as described.
        RuntimeError: on all ranks, if dtypes of inputs and parameters differ without autocast.
    """

    in1_features: Annotated[Natural, at_least(1, ValueError)]
    in2_features: Natural
    out_features: Natural
    bias: HasBias = option(default=True)
    device: Device = None
    dtype: Dtype = None
    tensors: ClassVar[tuple[str, ...]] = ("input1", "input2")

    def check_options(self) -> None:
        self.check_shape(self.grid.shape[-1:] == (1,), "its last dimension, the features, must be 1")
        shape = (self.out_features, self.in1_features, self.in2_features)
        initialize = Uniform(1 / math.sqrt(self.in1_features))
        self.declare_parameter("weight", self.grid, shape, (None,) * 3, initialize=initialize)
        exists = self.passed["bias"]
        self.declare_parameter("bias", self.grid, shape[:1], (None,), initialize=initialize, exists=exists)

    def set_up(self) -> None:
        sizes = [self.blocks(self.grid, tensor=i) for i in range(2)]
        if sizes[0][:-1] != sizes[1][:-1]:
            raise ValueError(
                f"DistributedBilinear: input1 is in blocks of {sizes[0]} and input2 in blocks of {sizes[1]}; all but "
                "the last dimension must be the same"
            )
        for i, features in enumerate((self.in1_features, self.in2_features)):
            if sizes[i][-1] != [features]:
                raise ValueError(
                    f"DistributedBilinear: input{i + 1} has {sizes[i][-1][0]} features; in{i + 1}_features={features}"
                )
        dtypes = [self.structure(self.grid, tensor=i)[0][1] for i in range(2)]
        check_dtypes(self, self.weight, self.bias, input1=dtypes[0], input2=dtypes[1])

    def compute(self, input1: torch.Tensor, input2: torch.Tensor) -> torch.Tensor:
        if not self.grid.active:
            return self.without_part(input1 + input2.sum())
        weight, bias = (*self.parameters_in_use(), None)[:2]
        return F.bilinear(input1, input2, weight, bias)

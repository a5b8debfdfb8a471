"""Shared by the tests of convolutions: partitions of batch, channels and space, and who owns the parameters."""

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from hypothesis import strategies as st

import distdl.nn as dnn
from distdl import Partition
from support.blocks import blocks_of, for_each, grid, middle_of_window, spatial_sizes
from support.ranks import job
from support.tensors import fill_with_integers
from support.twins import assert_equals_twin


@dataclass
class Split:
    """P_x, P_y and P_w by their shapes and ranks. P_w is [*batch, p_out, p_in, *space], or a shorter form of it."""

    batch: list[int]
    p_out: int
    p_in: int
    space: list[int]
    ranks: list[list[int]]  # of P_x, P_y and P_w
    grouped: bool = False
    short: bool = False
    partitions: list[Partition] = field(default_factory=list)

    @property
    def shapes(self) -> list[list[int]]:
        """The shapes of P_x, P_y and P_w."""
        w = [*self.batch, self.p_out, self.p_in, *self.space]
        if self.short and self.batch in ([], [1]):
            w = w[len(self.batch) :] if set(self.space) != {1} else [self.p_out, self.p_in]
        x_blocks = self.p_out if self.grouped else self.p_in
        return [[*self.batch, x_blocks, *self.space], [*self.batch, self.p_out, *self.space], w]

    def of(self, P: Partition) -> list[Partition]:
        """P_x, P_y and P_w."""
        self.partitions = [
            grid(P, shape, ranks[: int(np.prod(shape))]) for shape, ranks in zip(self.shapes, self.ranks, strict=True)
        ]
        return self.partitions

    def owners(self, P: Partition, transposed: bool = False) -> list[Partition]:
        """Where the blocks of weight and bias are: on the first workers of batch and space, the bias on column 0."""
        shape = [*self.batch, self.p_out, self.p_in, *self.space]
        ranks = np.array(self.ranks[2][: int(np.prod(shape))]).reshape(shape)
        first = ranks[(*[0] * len(self.batch), slice(None), slice(None), *[0] * len(self.space))]
        swapped = first.T if transposed and not self.grouped else first
        weight = grid(P, [*swapped.shape, *[1] * len(self.space)], [int(rank) for rank in swapped.flat])
        return [weight, grid(P, [self.p_out], [int(rank) for rank in first[:, 0]])]


@st.composite
def splits(draw: Any, dims: int, batched: bool, groups: int = 1, space: bool = True) -> Split:
    """Any grid of at most as many workers as there are ranks, each of the three partitions on ranks of its own."""
    left = job.size

    def some(options: Any) -> int:
        nonlocal left
        chosen: int = draw(st.sampled_from([p for p in options if p <= left]))
        left //= chosen
        return chosen

    p_out = some([p for p in range(1, groups + 1) if groups % p == 0] if groups > 1 else range(1, job.size + 1))
    p_in = some([1] if groups > 1 else range(1, job.size + 1))
    batch = [some(range(1, job.size + 1))] if batched else []
    spatial = [some(range(1, job.size + 1) if space else [1]) for _ in range(dims)]
    ranks = [list(draw(st.permutations(range(job.size)))) for _ in range(3)]
    if draw(st.booleans()):  # each worker computes on what it has
        ranks = [ranks[0]] * 3
    return Split(batch, p_out, p_in, spatial, ranks, groups > 1, draw(st.booleans()))


@st.composite
def inputs(draw: Any, split: Split, channels: int) -> tuple[list[int], Any]:
    """A shape, and sizes of blocks of it on P_x."""
    batch = [draw(st.sampled_from([0, 1, 3])) for _ in split.batch]
    shape = [*batch, channels, *[draw(st.integers(1, 7)) for _ in split.space]]
    return shape, draw(blocks_of(shape, split.shapes[0]))


def place_of(transposed, dims, kernel_size, stride=1, padding=0, dilation=1, **_):
    """Where among the inputs an output stands, for spatial_sizes. A transposed one is with the window whose middle is
    nearest, the left of two."""
    if not transposed:
        return middle_of_window(dims, kernel_size, stride, padding, dilation)
    kernels, strides, paddings, dilations = (for_each(v, dims) for v in (kernel_size, stride, padding, dilation))

    def place(d, o, n, m):
        first_of_window = (dilations[d] * (kernels[d] - 1) + 1 - strides[d]) / 2 - paddings[d]  # of input 0
        return math.floor((o - first_of_window) / strides[d])

    return place


def assert_like_twin(kind, dims, P, split, x, *arguments, sizes=None, output_blocks="balanced", **options):
    """A layer Distributed{kind}{dims}d equals the sequential layer up to the second derivatives.

    Sums of small integers are exact, in any order. Along the batch the blocks stay as they are; the channels come out
    balanced, and so does space or aligned.
    """
    import torch

    transposed = kind.startswith("ConvTranspose")
    sequential = "ConvTranspose" if transposed else "Conv"
    twin = fill_with_integers(getattr(torch.nn, f"{sequential}{dims}d")(*arguments, dtype=x.dtype, **options))
    P_x, P_y, P_w = split.of(P)
    layer = getattr(dnn, f"Distributed{kind}{dims}d")(
        P_x, P_y, P_w, *arguments, dtype=x.dtype, output_blocks=output_blocks, **options
    )  # fmt: skip
    assert [name for name, _ in layer.named_parameters()] == [name for name, _ in twin.named_parameters()]
    named = dict(zip(("in_channels", "out_channels", "kernel_size"), arguments, strict=False)) | options
    space = spatial_sizes(
        output_blocks, place_of(transposed, dims, **named), dims, x.shape, twin(x).shape, split.shapes[0], sizes
    )
    y_sizes = [*(sizes or [None] * x.dim())[: len(split.batch)], None, *space]
    owners = split.owners(P, transposed)[: len(list(twin.parameters()))]
    assert_equals_twin(layer, twin, x, P_x, P_y, owners, sizes, y_sizes)

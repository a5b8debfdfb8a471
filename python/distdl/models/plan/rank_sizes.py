"""The bytes of tensors, messages and workspaces on a rank."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping

import torch

from distdl.models.capture.recording import Node, Value
from distdl.models.operations.placement import Blocks, Placement
from distdl.models.plan.exchanges import received_within
from distdl.models.plan.planning import Plan, PlanStep
from distdl.models.plan.received import received_elements
from distdl.models.plan.redistribution import Redistribution
from distdl.models.rules.windows import CONVOLUTIONS, TRANSPOSED
from distdl.nn.conv.halo import is_large
from distdl.nn.kernels.convolution import takes_slow_kernel
from distdl.partitions.boxes import box_shape, box_size

_CHANNEL_BLOCK = 16  # channels that kernels for CPUs keep side by side


class RankSizes:
    """The sizes of a plan on a rank, in bytes.

    Args:
        dtypes: of the values whose dtype autocast changes.
    """

    def __init__(self, plan: Plan, rank: int, dtypes: Mapping[Value, torch.dtype]) -> None:
        self._plan, self._rank, self._dtypes = plan, rank, dtypes

    def local_shape(self, value: Value) -> tuple[int, ...]:
        place = self._plan.placement(value)
        if value in self._plan.overlaps and isinstance(place, Blocks) and self._rank in place.place_of:
            return box_shape(place.box_among(self._plan.overlaps[value], self._rank))
        return place.local_shape(self._rank) if isinstance(place, Blocks) else value.shape

    def bytes_of(self, value: Value) -> int:
        return math.prod(self.local_shape(value)) * self.itemsize(value)

    def itemsize(self, value: Value) -> int:
        return self._dtypes.get(value, value.dtype).itemsize

    def share(self, step: PlanStep) -> float:
        workers = step.workers
        if not isinstance(workers, Blocks):
            return 1.0
        return math.prod(workers.local_shape(self._rank)) / max(1, math.prod(workers.shape))

    def received(self, step: PlanStep) -> list[tuple[Value, int]]:
        """The inputs that are redistributed, and the bytes of them that this rank receives; it sends about as many."""
        inputs = []
        for value, regions, source in zip(step.node.inputs, step.input_regions, step.sources, strict=True):
            received = {} if regions is None else received_elements(source, regions, value.shape)
            if count := received.get(self._rank, 0):
                inputs.append((value, count * self.itemsize(value)))
        return inputs

    def reads(self, step: PlanStep) -> dict[Value, tuple[Hashable, int]]:
        """For the inputs that this rank receives: an identity, and bytes, halos included."""
        reads: dict[Value, tuple[Hashable, int]] = {}
        node = step.node
        if isinstance(step.workers, Blocks) and self._rank not in step.workers.ranks:
            return reads
        for value, regions, source in zip(node.inputs, step.input_regions, step.sources, strict=True):
            if regions is not None and not Redistribution.is_within(source, regions, value.shape):
                box = regions.box(self._rank, value.shape)
                count = 0 if box is None else box_size(box)
                reads[value] = (value, regions), count * self.itemsize(value)
        within, exchanges = received_within(step)
        if exchanges:
            x = node.arguments[0]
            nbytes = reads[x][1] if x in reads else self.bytes_of(x)
            if within and not self._adds_halos(step.operation.of_layer or node, x):
                reads[x] = (node, x), nbytes + within * self.itemsize(x) // x.dtype.itemsize
            elif not within and self.itemsize(x) < 4:  # moments are taken in single precision
                reads[x] = (node, x), nbytes * 4 // self.itemsize(x)
        return reads

    def _adds_halos(self, node: Node, x: Value) -> bool:
        """Whether a convolution adds what comes from halos to the result, and needs no copy of the block."""
        if node.key not in CONVOLUTIONS.keys() - TRANSPOSED or self.itemsize(node.outputs[0]) < 4:
            return False
        weight, groups = node.module.weight.shape, node.module.groups
        positions = math.prod(self.local_shape(x)) // max(1, weight[1] * groups)
        return is_large(positions, weight, groups)

    def workspace(self, node: Node, backward: bool = False) -> float:
        """Bytes that a kernel needs besides inputs and results, or besides their gradients in its backward pass."""
        both = [*node.arguments, *node.outputs]
        if "fft" in node.key:  # backward passes of real transforms transform complex numbers of the same shape
            return max((2 if value.dtype.is_complex else 4) * self.bytes_of(value) for value in both)
        if node.key in ("pow", "square"):  # the backward pass computes the power below, and its multiple
            return 2 * self.bytes_of(node.outputs[0])
        if node.key not in CONVOLUTIONS:
            return 0
        ends = both[0], both[-1]
        sizes = [self._reordered(value, CONVOLUTIONS[node.key]) for value in ends]
        if backward and node.key == "Conv3d":
            shape, module = self.local_shape(both[0]), node.module
            if takes_slow_kernel(shape, module.weight.shape, module.groups):  # another kernel gets copies instead
                sizes += map(self.bytes_of, ends)
        return sum(sizes) if backward or self.itemsize(both[-1]) < 4 else max(sizes)

    def _reordered(self, value: Value, space: int) -> float:
        """Bytes in single precision, with channels in blocks as kernels for CPUs read and sum them."""
        channels = value.shape[len(value.shape) - space - 1]
        padded = -(-channels // _CHANNEL_BLOCK) * _CHANNEL_BLOCK if channels > 3 else channels
        return 4 * self.bytes_of(value) / self.itemsize(value) * padded / max(1, channels)


def elements_of(place: Placement, value: Value, rank: int) -> int:
    """The number of elements of a value on a rank."""
    return math.prod(place.local_shape(rank)) if isinstance(place, Blocks) else math.prod(value.shape)

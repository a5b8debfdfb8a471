"""Compute a box of a result, which may be larger than a worker's block, from boxes of the inputs."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F

from distdl.models.capture.recording import Node, Run
from distdl.models.operations.operation import BoxFunction, Operation, Workers
from distdl.models.operations.placement import IntervalsByDim
from distdl.nn.kernels.channels_last import selected
from distdl.nn.windows.reader import repeated
from distdl.partitions.boxes import Interval


def read_by(function: BoxFunction, d: int, n: int, outputs: Interval) -> Interval:
    """(start, stop) of the n elements of the first input on which these outputs depend along a dimension.

    It is within the input; without elements if the outputs depend on padding alone.
    """
    if d not in function.windows:
        return outputs
    reads = function.windows[d].reads(n, outputs)
    at = repeated(reads, n, function.mode)
    start, stop = reads if at is None else (int(at.min()), int(at.max()) + 1)
    return max(start, 0), min(stop, n)


def box_step(
    node: Node, operation: Operation, wanted: IntervalsByDim, had: Mapping[int, IntervalsByDim], workers: Workers | None
) -> Run:
    """The function of a worker from its inputs to the box of the result.

    Args:
        wanted: the boxes of the result that workers compute.
        had: the boxes that they have of the inputs that are in blocks, by the places of these inputs.
    """
    assert workers is not None
    assert operation.box is not None
    return BoxStep(node, operation.box, wanted, had, workers) if workers.rank in workers.blocks.ranks else node.target


class BoxStep:
    """Cuts out what is needed of the inputs, pads where a tensor ends, and calls the function: see :func:`box_step`."""

    def __init__(
        self,
        node: Node,
        function: BoxFunction,
        wanted: IntervalsByDim,
        had: Mapping[int, IntervalsByDim],
        workers: Workers,
    ) -> None:
        self._function = function
        self._buffer_names = [node.buffers[name] for name in function.buffers]
        self._buffers: Mapping[str, torch.Tensor] = {}
        self._cuts: list[tuple[int, int, int, int]] = []  # input, dimension, start, length
        self._repeats: list[tuple[int, torch.Tensor]] = []  # dimensions, and the elements that padding repeats
        self._padding: list[int] = []  # on both sides of the dimensions of windows
        further: list[int] = []  # on single sides
        outputs = workers.blocks.box_among(wanted, workers.rank)
        for i, boxes in had.items():
            shape = node.inputs[i].shape
            for d, (start, stop) in enumerate(workers.blocks.box_among(boxes, workers.rank)):
                reads = (0, shape[d]) if len(boxes[d]) == 1 else read_by(function, d, shape[d], outputs[d])
                if reads != (start, stop):
                    self._cuts.append((i, d, reads[0] - start, reads[1] - reads[0]))
        for d, window in sorted(function.windows.items()):
            n = node.inputs[0].shape[d]
            start, stop = window.reads(n, outputs[d])
            at = repeated((start, stop), n, function.mode)
            if at is not None:
                first = 0 if len(had[0][d]) == 1 else int(at.min())
                self._repeats.append((d - len(outputs), at - first))
            before, after = (max(0, -start), max(0, stop - n)) if at is None else (0, 0)
            self._padding.append(min(before, after))
            further = [before - self._padding[-1], after - self._padding[-1], *further]
        self._further = further if any(further) else []

    def use_buffers(self, buffers: Mapping[str, torch.Tensor]) -> None:
        """Use the model's buffers, looked up in each call."""
        self._buffers = buffers

    def __call__(self, *tensors: torch.Tensor) -> object:
        """The box of the result; parameters are whole."""
        inputs = list(tensors)
        for i, d, start, length in self._cuts:
            inputs[i] = inputs[i].narrow(d, start, length)
        inputs += [self._buffers[name] for name in self._buffer_names]
        if not self._function.windows:
            return self._function.run(*inputs)
        for d, at in self._repeats:
            inputs[0] = selected(inputs[0], d, at.to(inputs[0].device))
        if self._further:
            inputs[0] = F.pad(inputs[0], self._further)
        return self._function.run(self._padding, *inputs)

"""Blocks of inputs and outputs along a dimension, and a layer's name in messages of torch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

from distdl.partitions.boxes import Interval, block_intervals, cut
from distdl.torch_compat.fake import errors_as_with_values

OUTPUT_BLOCKS = ("balanced", "aligned")
SPATIAL = "it needs {} spatial dimensions, preceded by the channels, or by batch and channels"


class Resizing(Protocol):
    """The outputs along a dimension and the inputs that they read; implemented in C++."""

    def outputs(self, n: int) -> int:
        """The number of outputs for n inputs."""
        ...

    def reads(self, n: int, outputs: Interval) -> Interval:
        """(start, stop) of the inputs, of n, that these outputs depend on."""
        ...

    def aligned_blocks(self, sizes: Sequence[int]) -> list[int]:
        """The sizes of blocks of outputs that are cut where input blocks of these sizes are cut."""
        ...


def blocks_of_outputs(resizing: Resizing, sizes: Sequence[int], output_blocks: str) -> list[Interval]:
    """The blocks of the outputs, for an input in blocks of these sizes."""
    if output_blocks == "aligned":
        return block_intervals(resizing.aligned_blocks(sizes))
    return cut(resizing.outputs(sum(sizes)), len(sizes))


@contextmanager
def naming_layer(layer: str) -> Iterator[None]:
    """Put the name of a layer before the messages of torch's exceptions in the body."""
    try:
        with errors_as_with_values():
            yield
    except (IndexError, NotImplementedError, RuntimeError, ValueError) as error:
        raise type(error)(f"{layer}: {error}") from error

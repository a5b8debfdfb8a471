"""Blocks of inputs and outputs along a dimension, and messages of torch with the name of a layer."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol, TypeAlias

from distdl.parameters.layout import cut

Interval: TypeAlias = tuple[int, int]

OUTPUT_BLOCKS = ("balanced", "aligned")


class Resizing(Protocol):
    """The outputs along a dimension and the inputs that they read: implemented by classes of the C++ geometry."""

    def outputs(self, n: int) -> int:
        """How many outputs there are for n inputs."""
        ...

    def reads(self, n: int, outputs: Interval) -> Interval:
        """(start, stop) of those of n inputs that the outputs from start to stop depend on."""
        ...

    def aligned_blocks(self, sizes: Sequence[int]) -> list[int]:
        """The sizes of blocks of outputs that are cut where input blocks of these sizes are cut."""
        ...


def intervals_of(sizes: Sequence[int]) -> list[Interval]:
    """Blocks of these sizes, one after the other."""
    stops = itertools.accumulate(sizes)
    return [(stop - size, stop) for stop, size in zip(stops, sizes, strict=True)]


def blocks_of_outputs(resizing: Resizing, sizes: Sequence[int], output_blocks: str) -> list[Interval]:
    """The blocks of the outputs, for an input in blocks of these sizes."""
    if output_blocks == "aligned":
        return intervals_of(resizing.aligned_blocks(sizes))
    return cut(resizing.outputs(sum(sizes)), len(sizes))


@contextmanager
def as_of(layer: str) -> Iterator[None]:
    """Put the name of a layer before the messages of exceptions that torch raises in the body."""
    try:
        yield
    except (IndexError, NotImplementedError, RuntimeError, ValueError) as error:
        raise type(error)(f"{layer}: {error}") from error

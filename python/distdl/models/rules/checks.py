"""Checks of values, which return nothing."""

from __future__ import annotations

import torch

from distdl import _core
from distdl.models.capture.recording import Node
from distdl.models.operations.operation import Operation
from distdl.models.operations.table import local, rule_for, whole


@rule_for("_assert_async")
def checked_by_one(node: Node) -> Operation:
    """No dimension: one worker checks, and returns the condition in place of nothing."""
    call = node.as_function()

    def run(condition: torch.Tensor) -> torch.Tensor:
        call(condition)
        return condition.detach()

    return local(node, [whole(value) for value in node.inputs], run=run)


def check_indices(index: torch.Tensor, size: int, ignored: int | None = None) -> None:
    """Raise IndexError for indices that blocks of a split dimension would take for those of another block.

    On the CPU only, where torch's functions raise it, too.
    """
    if not index.is_cpu or not index.numel():
        return
    lowest, highest, counted = _core.counted_classes(index, ignored)
    if counted and (lowest < 0 or highest >= size):
        raise IndexError(f"indices from {lowest} to {highest} are out of range for {size} rows or classes")

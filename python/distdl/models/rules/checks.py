"""Checks of values, which return nothing."""

from __future__ import annotations

import torch

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

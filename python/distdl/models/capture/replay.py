"""Call a recorded function again, with tensors in place of its values."""

from __future__ import annotations

from collections.abc import Callable

import torch

from distdl.models.capture.recording import Node, Value
from distdl.torch_compat.trees import tree_flatten, tree_unflatten

Run = Callable[..., object]
"""A function of the tensors of a call; on each rank, of its regions of them."""


def as_function(node: Node, function: Run | None = None) -> Run:
    """The call as a function of the tensors in place of its values.

    Args:
        function: replaces the node's own.
    """
    target = function or node.target
    leaves, structure = tree_flatten((node.args, dict(node.kwargs)))
    slots = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Value)]
    count, names = len(node.args), [*node.kwargs]
    # Most calls are of these two kinds, which take less time.
    first = len(slots)
    if slots == list(range(first)) and [isinstance(leaf, Value) for leaf in node.args[:first]] == [True] * first:
        rest, options = node.args[first:], dict(node.kwargs)

        def on_first(*tensors: torch.Tensor) -> object:
            return target(*tensors[:first], *rest, **options)

        return on_first
    if not any(isinstance(argument, list | tuple | dict | slice) for argument in (*node.args, *node.kwargs.values())):
        template = [*node.args, *node.kwargs.values()]

        def on_positions(*tensors: torch.Tensor) -> object:
            filled = template.copy()
            for slot, tensor in zip(slots, tensors, strict=False):
                filled[slot] = tensor
            return target(*filled[:count], **dict(zip(names, filled[count:], strict=True)))

        return on_positions

    def on_structure(*tensors: torch.Tensor) -> object:
        filled = list(leaves)
        for slot, tensor in zip(slots, tensors, strict=False):
            filled[slot] = tensor
        own, named = tree_unflatten(filled, structure)
        return target(*own, **named)

    return on_structure

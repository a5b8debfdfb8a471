"""The functions of torch that a model calls: under which name, and which of them become several nodes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.overrides import resolve_name

from distdl.models.recording import Arguments, Function

TAKES_APART = {"chunk", "split", "split_with_sizes", "tensor_split", "unbind"}
"""What becomes a node for each part, so that each of them has its own blocks."""


def parts_of(
    key: str, args: Arguments, kwargs: Mapping[str, Any], parts: Sequence[torch.Tensor]
) -> Iterator[tuple[Function, Arguments]]:
    """What takes each part by itself; its arguments are behind the part."""
    x, *rest = args
    position = 0 if key == "unbind" else 1
    dim = (rest[position] if len(rest) > position else kwargs.get("dim", 0)) % x.dim()
    start = 0
    for i, one in enumerate(parts):
        if key == "unbind":
            yield torch.select, (one, x, dim, i)
        else:
            yield torch.narrow, (one, x, dim, start, one.shape[dim])
            start += one.shape[dim]


def key_of(function: Function) -> str:
    """The name under which rules know a function: that of ``torch.add`` for ``Tensor.add_``, ``+`` and ``+=`` too."""
    name = getattr(function, "__name__", "")
    if name == "__get__":
        return str(function.__self__.__name__)  # type: ignore[attr-defined]
    if name.startswith("__") and name.endswith("__"):
        plain = name.strip("_")
        if plain in ("rsub", "rdiv", "rtruediv", "rfloordiv", "rpow", "rmatmul", "rmod"):
            return plain
        for prefix in ("i", "r"):
            if plain.startswith(prefix) and plain[1:] in _OPERATORS:
                return plain[1:]
        return plain
    if name.endswith("_") and not name.startswith("_"):
        name = name.rstrip("_") if name != "requires_grad_" else name
    return name or str(resolve_name(function))


_OPERATORS = {"add", "sub", "mul", "truediv", "floordiv", "pow", "mod", "and", "or", "xor", "matmul", "div", "lshift",
              "rshift"}  # fmt: skip

"""Check that modules of torch give the same numbers on blocks as on the whole, by the rules for their classes."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from typing import cast

import torch

from distdl.nn.base.split_rules import REFUSED, WORKS, SplitRule, rule_of, torch_class


def problem_of(module: torch.nn.Module, shape: Sequence[int]) -> str:
    """The reason why a module gives other numbers on blocks than on the whole; "" if it does not.

    Args:
        shape: the number of workers along each dimension of the input.

    Layers of torch.nn are judged by the rules, also within Sequential. Modules of other classes count as safe; only the
    rules for any order of dimensions apply to the layers within.
    """
    return next(_problems(module, list(shape)), "")


def _problems(module: torch.nn.Module, shape: list[int]) -> Iterator[str]:
    kind = torch_class(module)
    for part in module.modules():
        chance = getattr(part, "dropout", 0.0) if part.training and math.prod(shape) > 1 else 0.0
        if isinstance(chance, int | float) and chance > 0 and torch_class(part) is not torch.nn.Module:
            yield (
                f"{type(part).__name__} with dropout={chance} draws random numbers in training, block by block; "
                "use dropout=0 and a DistributedDropout"
            )
    if type(module).forward is not kind.forward:
        kind = torch.nn.Module  # a user's class with its own forward()
    if kind is torch.nn.Sequential:
        for part in module.children():
            yield from _problems(part, shape)
            shape = shape_after(part, shape)
    elif kind.__name__ in REFUSED and getattr(torch.nn, kind.__name__) is kind:
        yield f"{kind.__name__}: {REFUSED[kind.__name__]}"
    elif (rule := rule_of(kind)) is not None:
        yield from _split_problems(module, rule, shape)
    else:
        for part in module.modules():
            inner = rule_of(torch_class(part))
            if inner is not None and inner.anywhere and len([*inner.whole(part, len(shape))]) == len(shape):
                yield from _split_problems(part, inner, shape)


def _split_problems(module: torch.nn.Module, rule: SplitRule, shape: Sequence[int]) -> Iterator[str]:
    n, name, kind = len(shape), type(module).__name__, torch_class(module)
    for d in rule.whole(module, n):
        if -n <= d < n and shape[d] > 1:
            ours = "" if kind.__name__ in WORKS else f"; use {layer_name(kind)}"
            yield (
                f"{name} does not work on blocks that split dimension {d % n}, since P_x has shape {list(shape)}: it "
                f"must not split {rule.condition}{ours}"
            )


def shape_after(module: torch.nn.Module, shape: Sequence[int]) -> list[int]:
    """The workers along each dimension of the result of a layer of torch.nn."""
    n = len(shape)
    if type(module) is torch.nn.Sequential:
        return functools.reduce(lambda workers, part: shape_after(part, workers), module, [*shape])
    if isinstance(module, torch.nn.Flatten) and n > 0:
        return [*shape[: module.start_dim % n + 1], *shape[module.end_dim % n + 1 :]]
    if isinstance(module, torch.nn.Unflatten) and n > 0:
        d = cast(int, module.dim) % n
        return [*shape[:d], *[1] * len(cast(Sequence[int], module.unflattened_size)), *shape[d + 1 :]]
    return [*shape]


def layer_name(kind: type[torch.nn.Module]) -> str:
    """The name of the layer of this package for a layer of torch.nn."""
    return f"Distributed{_OTHER_NAMES.get(kind.__name__, kind.__name__)}"


_OTHER_NAMES = {
    "SyncBatchNorm": "BatchNorm",
    **dict.fromkeys(("UpsamplingNearest2d", "UpsamplingBilinear2d"), "Upsample"),
    **{f"{kind}Pad{dims}d": "Pad" for kind in ("Constant", "Zero", "Reflection", "Replication", "Circular")
       for dims in (1, 2, 3)},
}  # fmt: skip
"""Names that differ from torch.nn."""

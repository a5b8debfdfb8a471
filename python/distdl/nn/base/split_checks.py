"""Check that modules of torch give the same numbers on blocks as on the whole, by the rules for their classes."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence

import torch

from distdl.nn.base.equivalents import LAYERS_BY_CLASS
from distdl.nn.base.split_rules import REFUSED, SplitRule, rule_of, torch_class


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
            ours = f"; use {LAYERS_BY_CLASS[kind].__name__}" if kind in LAYERS_BY_CLASS else ""
            yield (
                f"{name} does not work on blocks that split dimension {d % n}, since P_x has shape {list(shape)}: it "
                f"must not split {rule.condition}{ours}"
            )


def shape_after(module: torch.nn.Module, shape: Sequence[int]) -> list[int]:
    """The workers along each dimension of the result of a layer of torch.nn."""
    if type(module) is torch.nn.Sequential:
        return functools.reduce(lambda workers, part: shape_after(part, workers), module, [*shape])
    rule = rule_of(torch_class(module))
    return rule.splits_after(module, [*shape]) if rule is not None and len(shape) > 0 else [*shape]

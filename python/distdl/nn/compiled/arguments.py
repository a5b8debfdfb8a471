"""The arguments and the results of a layer's call, as tensors in a row and a text that says how they stand together."""

from __future__ import annotations

import ast
import functools
from collections.abc import Sequence
from typing import TypeAlias

import torch

Tensors: TypeAlias = Sequence[torch.Tensor]
Arguments: TypeAlias = tuple[list[object], dict[str, object]]

_TENSOR = "\0tensor"


def template_of(value: object, tensors: list[torch.Tensor]) -> object:
    """The arguments of a call with a mark for each tensor, which is its place in `tensors`: there once."""
    if isinstance(value, torch.Tensor):
        for place, one in enumerate(tensors):
            if one is value:  # as in self-attention, which projects one tensor by one product
                return f"{_TENSOR}{place}"
        tensors.append(value)
        return f"{_TENSOR}{len(tensors) - 1}"
    if isinstance(value, dict):
        return {name: template_of(one, tensors) for name, one in value.items()}
    if isinstance(value, list):
        return [template_of(one, tensors) for one in value]
    if isinstance(value, tuple):
        return tuple([template_of(one, tensors) for one in value])
    if isinstance(value, torch.SymInt):
        return int(value)
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise TypeError(f"a layer in a compiled program takes tensors, numbers and texts; not {type(value).__name__}")


def filled(template: object, tensors: Tensors) -> object:
    """The arguments of a call, from what :func:`template_of` gave."""
    if isinstance(template, str):
        return tensors[int(template.removeprefix(_TENSOR))] if template.startswith(_TENSOR) else template
    if isinstance(template, dict):
        return {name: filled(one, tensors) for name, one in template.items()}
    if isinstance(template, list | tuple):
        return type(template)([filled(one, tensors) for one in template])
    return template


@functools.cache
def parsed(call: str) -> tuple[object, str, str]:
    """The template of a call's arguments, its device, and the dtype of autocast or nothing."""
    parsed: tuple[object, str, str] = ast.literal_eval(call)
    return parsed


def form_of(result: object) -> str:
    """How results are put together: "t" for a tensor, "(tn" for a tuple of a tensor and None, "[t" for a list."""
    if isinstance(result, torch.Tensor):
        return "t"
    inner = ["t" if isinstance(one, torch.Tensor) else "n" for one in _members_of(result)]
    return ("[" if isinstance(result, list) else "(") + "".join(inner)


def _members_of(result: object) -> Sequence[object]:
    if isinstance(result, tuple | list) and all(one is None or isinstance(one, torch.Tensor) for one in result):
        return result
    raise TypeError("a layer in a compiled program has to return a tensor, or a tuple or list of tensors and None")


def tensors_of(result: object) -> list[torch.Tensor]:
    """The tensors among the results of a call."""
    if isinstance(result, torch.Tensor):
        return [result]
    return [one for one in _members_of(result) if isinstance(one, torch.Tensor)]

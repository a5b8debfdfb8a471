"""Arguments and results of layers as lists of tensors, with a text for their structure."""

from __future__ import annotations

import ast
import functools
from collections.abc import Sequence
from typing import TypeAlias

import torch

Tensors: TypeAlias = Sequence[torch.Tensor]
CallArguments: TypeAlias = tuple[list[object], dict[str, object]]

_TENSOR = "\0tensor"


def template_of(value: object, tensors: list[torch.Tensor]) -> object:
    """Replace each tensor by its index in `tensors`; equal tensors share an index."""
    if isinstance(value, torch.Tensor):
        for place, tensor in enumerate(tensors):
            if tensor is value:  # as in self-attention, which projects one tensor by one product
                return f"{_TENSOR}{place}"
        tensors.append(value)
        return f"{_TENSOR}{len(tensors) - 1}"
    if isinstance(value, dict):
        return {name: template_of(member, tensors) for name, member in value.items()}
    if isinstance(value, list):
        return [template_of(member, tensors) for member in value]
    if isinstance(value, tuple):
        return tuple([template_of(member, tensors) for member in value])
    if isinstance(value, torch.SymInt):
        return int(value)
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise TypeError(f"a layer in a compiled program takes tensors, numbers and texts; not {type(value).__name__}")


def fill_template(template: object, tensors: Tensors) -> object:
    """Put the tensors back in place of their indices."""
    if isinstance(template, str):
        return tensors[int(template.removeprefix(_TENSOR))] if template.startswith(_TENSOR) else template
    if isinstance(template, dict):
        return {name: fill_template(member, tensors) for name, member in template.items()}
    if isinstance(template, list | tuple):
        return type(template)([fill_template(member, tensors) for member in template])
    return template


@functools.cache
def parse_call(call: str) -> tuple[object, str, str]:
    """The template of a call's arguments, its device, and the dtype of autocast or an empty text."""
    parts: tuple[object, str, str] = ast.literal_eval(call)
    return parts


def result_form(result: object) -> str:
    """The structure of results: "t" for a tensor, "(tn" for a tuple of a tensor and None, "[t" for a list."""
    if isinstance(result, torch.Tensor):
        return "t"
    inner = ["t" if isinstance(member, torch.Tensor) else "n" for member in _members_of(result)]
    return ("[" if isinstance(result, list) else "(") + "".join(inner)


def _members_of(result: object) -> Sequence[object]:
    if isinstance(result, tuple | list) and all(x is None or isinstance(x, torch.Tensor) for x in result):
        return result
    raise TypeError("a layer in a compiled program has to return a tensor, or a tuple or list of tensors and None")


def result_tensors(result: object) -> list[torch.Tensor]:
    """The tensors among the results of a call."""
    if isinstance(result, torch.Tensor):
        return [result]
    return [member for member in _members_of(result) if isinstance(member, torch.Tensor)]

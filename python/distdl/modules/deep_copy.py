"""Deep copies of modules with other tensors."""

from __future__ import annotations

import copy
from collections.abc import Mapping

import torch

from distdl.torch_compat.trees import tree_leaves


def copied(module: torch.nn.Module, tensors: Mapping[int, object]) -> torch.nn.Module:
    """A deep copy of a module.

    Attributes that cannot be copied, such as locks, open files or namespaces of ``torch.ops``, are shared with the
    module, also in lists, tuples and dicts.

    Args:
        tensors: replacements by the ``id()`` of a tensor or object.
    """
    try:
        return copy.deepcopy(module, dict(tensors))
    except Exception:
        values = [value for part in module.modules() for value in tree_leaves(list(vars(part).values()))]
        shared = {id(x): x for x in values if id(x) not in tensors and not _can_be_copied(x, tensors)}
        return copy.deepcopy(module, {**tensors, **shared})


def _can_be_copied(value: object, tensors: Mapping[int, object]) -> bool:
    try:
        copy.deepcopy(value, dict(tensors))
    except Exception:
        return isinstance(value, torch.nn.Module | torch.Tensor)
    return True

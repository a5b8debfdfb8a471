"""Copies of modules with other tensors in place of theirs."""

from __future__ import annotations

import copy
from collections.abc import Mapping

import torch
from torch.utils._pytree import tree_flatten


def copied(module: torch.nn.Module, tensors: Mapping[int, object]) -> torch.nn.Module:
    """A deep copy of a module.

    Objects that cannot be copied, such as a lock, an open file or a namespace of ``torch.ops``, are those of the module
    itself, where they are attributes or in lists, tuples and dicts of attributes.

    Args:
        tensors: by the ``id()`` of a tensor or object, what stands in its place in the copy.
    """
    try:
        return copy.deepcopy(module, dict(tensors))
    except Exception:
        held = [one for part in module.modules() for one in tree_flatten(list(vars(part).values()))[0]]
        shared = {id(one): one for one in held if id(one) not in tensors and not _can_be_copied(one, tensors)}
        return copy.deepcopy(module, {**tensors, **shared})


def _can_be_copied(one: object, tensors: Mapping[int, object]) -> bool:
    try:
        copy.deepcopy(one, dict(tensors))
    except Exception:
        return isinstance(one, torch.nn.Module | torch.Tensor)
    return True

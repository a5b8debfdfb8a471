"""Nested lists, tuples, dicts and dataclasses as flat lists of leaves."""

from torch.utils._pytree import (
    TreeSpec,
    register_dataclass,
    tree_flatten,
    tree_leaves,
    tree_map,
    tree_map_only,
    tree_structure,
    tree_unflatten,
)

__all__ = [
    "TreeSpec",
    "register_dataclass",
    "tree_flatten",
    "tree_leaves",
    "tree_map",
    "tree_map_only",
    "tree_structure",
    "tree_unflatten",
]

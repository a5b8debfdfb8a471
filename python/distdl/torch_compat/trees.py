"""Nested lists, tuples, dicts, dataclasses and other objects as flat lists of leaves."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch.utils import _pytree
from torch.utils._pytree import (
    SUPPORTED_NODES,
    KeyEntry,
    MappingKey,
    SequenceKey,
    TreeSpec,
    register_dataclass,
    register_pytree_node,
    tree_flatten,
    tree_map,
    tree_structure,
    tree_unflatten,
)

from distdl.texts import has_own_attributes

__all__ = [
    "SequenceKey",
    "TreeSpec",
    "leaves_by_path",
    "register_dataclass",
    "register_holders",
    "tree_flatten",
    "tree_leaves",
    "tree_map",
    "tree_map_only",
    "tree_structure",
    "tree_unflatten",
]


def tree_leaves(tree: object) -> list[Any]:
    """The leaves of a structure. Torch's function takes seven times as long for those of calls."""
    parts: Iterable[object]
    if type(tree) is dict:
        parts = tree.values()
    elif type(tree) is tuple or type(tree) is list:
        parts = tree
    else:
        return _pytree.tree_leaves(tree) if _is_node(tree) else [tree]
    return [leaf for part in parts for leaf in tree_leaves(part)]


def tree_map_only(kind: type, function: Callable[..., object], tree: object) -> Any:
    """The same structure with results of a function in place of the leaves of a kind."""
    if type(tree) is tuple:
        return tuple([tree_map_only(kind, function, part) for part in tree])
    if type(tree) is list:
        return [tree_map_only(kind, function, part) for part in tree]
    if type(tree) is dict:
        return {key: tree_map_only(kind, function, part) for key, part in tree.items()}
    if _is_node(tree):
        return _pytree.tree_map_only(kind, function, tree)
    return function(tree) if isinstance(tree, kind) else tree


def leaves_by_path(tree: object, is_leaf: Callable[[object], bool] | None = None) -> dict[tuple[object, ...], object]:
    """The leaves of a structure, by the keys that lead to them.

    Torch's function raises for classes that a package registered without their keys.
    """
    if (is_leaf is not None and is_leaf(tree)) or not _is_node(tree):
        return {(): tree}
    node = SUPPORTED_NODES.get(type(tree))
    if node is not None and node.flatten_with_keys_fn is not None:
        keyed = node.flatten_with_keys_fn(tree)[0]
    else:
        parts = tree_flatten(tree, is_leaf=lambda part: part is not tree)[0]
        keyed = zip(_keys(tree, len(parts)), parts, strict=True)
    return {(key, *path): leaf for key, part in keyed for path, leaf in leaves_by_path(part, is_leaf).items()}


def _keys(tree: object, count: int) -> Sequence[KeyEntry]:
    """The keys of the parts of a mapping, which may leave out what is None, or the numbers of other parts."""
    if isinstance(tree, Mapping):
        for names in ([*tree], [name for name in tree if tree[name] is not None]):
            if len(names) == count:
                return [*map(MappingKey, names)]
    return [*map(SequenceKey, range(count))]


def _is_node(tree: object) -> bool:
    """Whether torch looks for leaves in an object, which may be a named tuple."""
    return isinstance(tree, tuple) or type(tree) in SUPPORTED_NODES


_Made = tuple[type, tuple[object, ...], tuple[str, ...]]  # a class, keys of its items, and names of its attributes


def register_holders(tree: object) -> None:
    """Make torch know the classes of objects that hold tensors in attributes, so that their tensors are leaves.

    Such a class is a dataclass, a subclass of list or dict, or any other class in Python, such as a cache of keys and
    values. Objects of it that are made of leaves have all attributes of the original, and share those that hold no
    tensors.
    """
    while kinds := {type(leaf) for leaf in tree_leaves(tree) if _is_holder(leaf) and _holds_tensors(leaf, set())}:
        for kind in kinds:
            if dataclasses.is_dataclass(kind) and not issubclass(kind, list | dict):
                register_dataclass(kind)
            else:
                register_pytree_node(kind, _parts, _made_of_parts, flatten_with_keys_fn=_parts_with_keys)


def _is_holder(leaf: object) -> bool:
    """Whether an object can have its parts replaced."""
    return has_own_attributes(leaf) or isinstance(leaf, list | dict)


def _holds_tensors(value: object, seen: set[int]) -> bool:
    """Whether a tensor is in the attributes of an object, in objects that these hold, and so on."""
    if id(value) in seen:
        return False
    seen.add(id(value))
    if isinstance(value, torch.Tensor):
        return True
    leaves = tree_leaves(value)
    if len(leaves) != 1 or leaves[0] is not value:
        return any(_holds_tensors(leaf, seen) for leaf in leaves)
    return _is_holder(value) and any(_holds_tensors(part, seen) for part in _parts(value)[0])


def _parts(holder: object) -> tuple[list[object], _Made]:
    """The items and attributes of an object, and what is needed to make an object of them."""
    keys: tuple[object, ...] = ()
    items: list[object] = []
    if isinstance(holder, dict):
        keys, items = tuple(holder), [*holder.values()]
    elif isinstance(holder, list):
        keys, items = tuple(range(len(holder))), [*holder]
    attributes = getattr(holder, "__dict__", {})
    return [*items, *attributes.values()], (type(holder), keys, tuple(attributes))


def _parts_with_keys(holder: object) -> tuple[list[tuple[KeyEntry, object]], _Made]:
    parts, made = _parts(holder)
    return [*zip(map(MappingKey, (*made[1], *made[2])), parts, strict=True)], made


def _made_of_parts(parts: Iterable[object], made: _Made) -> object:
    """An object of a class, with these items and attributes; its constructor is not called."""
    kind, keys, names = made
    parts = [*parts]
    holder: object = operator.methodcaller("__new__", kind)(kind)
    if isinstance(holder, dict):
        dict.update(holder, zip(keys, parts[: len(keys)], strict=True))
    elif isinstance(holder, list):
        list.extend(holder, parts[: len(keys)])
    getattr(holder, "__dict__", {}).update(zip(names, parts[len(keys) :], strict=True))
    return holder

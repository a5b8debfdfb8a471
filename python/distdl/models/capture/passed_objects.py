"""Objects among the arguments of a call in which models keep tensors, such as caches of keys and values."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress

import torch

from distdl.texts import has_own_attributes
from distdl.torch_compat.trees import tree_flatten, tree_unflatten

_Container = list[object] | deque[object] | Mapping[object, object]
Places = tuple[tuple[int, int], ...]
"""For each object that a model returns, its number among those of the call, and its place among the results."""


def objects_among(arguments: Iterable[object]) -> list[object]:
    """The objects with attributes among the arguments, and in their lists and dicts."""
    objects: list[object] = []
    for each in arguments:
        if isinstance(each, list | tuple | dict):
            objects += objects_among(each.values() if isinstance(each, dict) else each)
        elif has_own_attributes(each):
            objects.append(each)
        elif isinstance(each, Mapping):
            objects += objects_among(each.values())
    return objects


def _containers_among(arguments: Iterable[object]) -> list[_Container]:
    """The lists, deques and dicts among the arguments, and in them."""
    containers: list[_Container] = []
    for each in arguments:
        if isinstance(each, list | deque | Mapping):
            containers.append(each)
        if isinstance(each, list | deque | tuple | Mapping):
            containers += _containers_among(each.values() if isinstance(each, Mapping) else each)
    return containers


def own_copy(value: object) -> object:
    """A copy of an object, in which a recording may write; of what cannot be copied in it the original."""
    if isinstance(value, list | dict | tuple) or not has_own_attributes(value):
        return value
    with suppress(Exception):
        return copy.deepcopy(value)
    with suppress(Exception):
        copied = copy.copy(value)
        for name, part in vars(copied).items():
            with suppress(Exception):
                vars(copied)[name] = copy.deepcopy(part)
        return copied
    return value


class PassedObjects:
    """The objects of a call while it is recorded.

    Args:
        arguments: of the call.
    """

    def __init__(self, arguments: Iterable[object]) -> None:
        arguments = [*arguments]
        self._objects, self._containers = objects_among(arguments), _containers_among(arguments)
        self._before = [_content(each, set(), ()) for each in self._objects]
        self._identities_before = [_identities(each) for each in self._containers]

    def places_in(self, results: object, stale: Collection[int]) -> Places:
        """Places of the objects that the model returns.

        Args:
            stale: the ids of tensors with writes that the recording does not show.

        Raises:
            NotImplementedError: if it changes one that it does not return, or a list or dict.
        """
        for container, before in zip(self._containers, self._identities_before, strict=True):
            if _identities(container) != before:
                raise NotImplementedError(
                    f"the model changes an argument, a {type(container).__name__}; make another one, and return it"
                )
        if not self._objects:
            return ()
        numbers, places = {id(each): i for i, each in enumerate(self._objects)}, dict[int, int]()
        for place, leaf in enumerate(tree_flatten(results, is_leaf=_of_kinds_of(self._objects))[0]):
            if id(leaf) in numbers:
                places.setdefault(numbers[id(leaf)], place)
        for i, each in enumerate(self._objects):
            if i not in places and _content(each, set(), stale) != self._before[i]:
                raise NotImplementedError(
                    f"the model changes an argument, a {type(each).__name__}, and does not return it; return it, or "
                    "what it holds"
                )
        return tuple(places.items())


def with_returned(results: object, objects: Sequence[object], returned: Places) -> object:
    """The results with the objects of the call in their places, which take over what the new ones hold."""
    leaves, structure = tree_flatten(results, is_leaf=_of_kinds_of(objects))
    for number, place in returned:
        own, new = objects[number], leaves[place]
        vars(own).clear()
        vars(own).update(vars(new))
        leaves[place] = own
    return tree_unflatten(leaves, structure)


def _of_kinds_of(objects: Sequence[object]) -> Callable[[object], bool]:
    kinds = {type(each) for each in objects}
    return lambda value: type(value) in kinds


def _identities(container: _Container) -> list[tuple[object, int]]:
    """Identities of the parts of a list, deque or dict."""
    parts = container.items() if isinstance(container, Mapping) else enumerate(container)
    return [(key, id(part)) for key, part in parts]


def _content(value: object, seen: set[int], stale: Collection[int]) -> object:
    """Identities of the tensors that an object holds, and texts of its other parts.

    Other writes than stale ones are written into the tensors of the call.
    """
    if isinstance(value, torch.Tensor):
        return id(value), id(value) in stale
    if id(value) in seen:
        return None
    is_container = isinstance(value, Mapping | list | tuple | set)
    held = vars(value) if has_own_attributes(value) and not is_container else value
    if held is value and not is_container:
        return "" if hasattr(value, "__dict__") else repr(value)
    seen.add(id(value))
    parts = held.items() if isinstance(held, Mapping) else enumerate(held)  # type: ignore[arg-type]
    return [(repr(key), _content(part, seen, stale)) for key, part in parts]

"""The attributes of a model's modules before a call that changes them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

import torch

from distdl.models.capture.assignments import ABOUT_HOOKS, HOOKS
from distdl.models.capture.unrecorded import own_attributes

ListOrDict = dict[object, object] | list[object]
_HELD = ("_buffers", "_modules", "_parameters", *HOOKS, *ABOUT_HOOKS)


class AttributeState:
    """The attributes and hooks of all modules, with what lists and dicts in them hold."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._attributes = [
            (module, dict(vars(module)), {kind: dict(vars(module)[kind]) for kind in _HELD})
            for module in model.modules()
        ]
        values = (value for module, *_ in self._attributes for _, value in own_attributes(module))
        self._contents = [(each, dict(each) if isinstance(each, dict) else [*each])
                          for value in values for each in _containers(value)]  # fmt: skip
        self.modules = {id(module) for module, *_ in self._attributes}

    def restore_buffers(self) -> None:
        """Give the modules the buffers of before."""
        for module, _, held in self._attributes:
            vars(module)["_buffers"].update(held["_buffers"])

    def restore(self) -> None:
        """Give the modules the attributes of before."""
        for module, attributes, held in self._attributes:
            vars(module).clear()
            vars(module).update(attributes)
            for kind, own in held.items():
                vars(module)[kind].clear()
                vars(module)[kind].update(own)
        for container, content in self._contents:
            _refill(container, content)


def _refill(container: ListOrDict, content: ListOrDict) -> None:
    """Give a container the content of before, if it has another, by the methods of its base: its own may refuse to."""
    if _ids(container) == _ids(content):
        return
    if isinstance(container, dict) and isinstance(content, dict):
        kind = OrderedDict if isinstance(container, OrderedDict) else dict
        kind.clear(container)
        for key, value in content.items():
            kind.__setitem__(container, key, value)
    elif isinstance(container, list):
        list.__setitem__(container, slice(None), [*content])


def _ids(container: ListOrDict) -> list[int]:
    return [*map(id, container), *map(id, container.values() if isinstance(container, dict) else ())]


def _containers(value: object) -> Iterator[ListOrDict]:
    """The lists and dicts in an attribute."""
    if isinstance(value, dict | list):
        yield value
    if isinstance(value, dict | list | tuple):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _containers(part)

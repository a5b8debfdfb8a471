"""What is assigned to the modules of a model after it was recorded: numbers, texts, and hooks."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator

import torch

from distdl.models.unseen import own_attributes

HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_ABOUT_HOOKS = ("_forward_hooks_with_kwargs", "_forward_hooks_always_called", "_forward_pre_hooks_with_kwargs")
_PLAIN = (int, float, complex, str, bytes, type(None), torch.dtype, torch.device)


class Assigned:
    """The attributes and hooks of modules, noted when it is made."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._noted = []
        for path, module in model.named_modules():
            names, values = [], []
            for name, value in own_attributes(module):
                if _is_plain(value):
                    names.append(name)
                    values.append(value)
            self._noted.append((path, module, names, values, len(vars(module))))
        self._hooks = self._hooks_of_all()
        self._version = 0

    def changes(self) -> str:
        """What is another one than it was, in an order that is the same on all ranks; "" for nothing.

        Raises:
            TypeError: if something became what cannot be compared.
        """
        found: list[str] = []
        for path, module, names, values, count in self._noted:
            held = vars(module)
            if len(held) != count or not all(map(operator.is_, map(held.get, names), values)):
                found += _changed(path, module, dict(zip(names, values, strict=True)))
        hooks = self._hooks_of_all()
        if len(hooks) != len(self._hooks) or not all(map(operator.is_, hooks, self._hooks)):
            self._hooks, self._version = hooks, self._version + 1
        if self._version:
            found.append(f"other hooks, for the {self._version}. time")
        return ", ".join(found)

    def _hooks_of_all(self) -> list[Callable[..., object]]:
        found: list[Callable[..., object]] = []
        for _, module, *_ in self._noted:
            held = vars(module)
            for kind in HOOKS:
                if held[kind]:
                    found.extend(held[kind].values())
        return found


def take_over(own: torch.nn.Module, given: torch.nn.Module) -> None:
    """Give a module the plain attributes and the hooks of another one."""
    held, other = vars(own), vars(given)
    held.update({name: value for name, value in own_attributes(given) if _is_plain(value)})
    for kind in (*HOOKS, *_ABOUT_HOOKS):
        for gone in held[kind].keys() - other[kind].keys():
            del held[kind][gone]
        for key, hook in other[kind].items():
            held[kind].setdefault(key, hook)


def _is_plain(value: object) -> bool:
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    return isinstance(value, _PLAIN)


def _changed(path: str, module: torch.nn.Module, noted: dict[str, object]) -> Iterator[str]:
    for name, value in own_attributes(module):
        full = f"{path}.{name}".removeprefix(".")
        if name in noted and not _is_plain(value):
            raise TypeError(
                f"distribute: {full} became a {type(value).__name__}; it was {noted[name]!r} when the model was "
                "distributed, and can become another number or text"
            )
        if _is_plain(value) and (name not in noted or repr(value) != repr(noted[name])):
            yield f"{full}={value!r}"

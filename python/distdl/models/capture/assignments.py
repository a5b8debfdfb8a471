"""Find attributes and hooks of modules that were changed after the model was distributed."""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import torch

from distdl.models.capture.marks import Marks, is_marked
from distdl.models.capture.unrecorded import own_attributes, refuse_backward_hooks
from distdl.torch_compat.trees import tree_leaves

_OF_CALLS = ("_forward_hooks", "_forward_pre_hooks")
HOOKS = (*_OF_CALLS, "_backward_hooks", "_backward_pre_hooks")
ABOUT_HOOKS = ("_forward_hooks_with_kwargs", "_forward_hooks_always_called", "_forward_pre_hooks_with_kwargs")
_PLAIN = (int, float, complex, str, bytes, type(None), torch.dtype, torch.device)

_Place = tuple[Mapping[str, object], str, str]  # the dict that holds a parameter, its name there, and its full name


class Hook(NamedTuple):
    """A hook on a module, before its forward pass or after it.

    Attributes:
        takes_options: whether it is called with the keyword arguments of the module's call, too.
    """

    path: str
    module: torch.nn.Module
    is_after: bool
    function: Callable[..., object]
    takes_options: bool


class _ModuleState(NamedTuple):
    """The state of a module when the model was distributed.

    Attributes:
        names, values: of its plain attributes, and of attributes that replace a method.
        size: the number of all its attributes.
        now: the dict in which torch keeps its children.
        children: a copy of this dict.
    """

    path: str
    module: torch.nn.Module
    kind: type
    names: list[str]
    values: list[object]
    size: int
    now: Mapping[str, object]
    children: Mapping[str, object]


class AttributeSnapshot:
    """A snapshot of the modules of a model: attributes, hooks, children and tied parameters.

    Args:
        recorded: the copy of the model that is recorded. The hooks that it has belong to the model; others only look.

    Attributes:
        hooks: those that look at results of the last call.
        marks: where one process would keep tensors.
    """

    def __init__(self, model: torch.nn.Module, recorded: torch.nn.Module) -> None:
        held = [vars(module) for module in recorded.modules()]
        self._recorded = [{kind: set(own[kind]) for kind in _OF_CALLS} for own in held]
        self._states: list[_ModuleState] = []
        self._tensors: list[tuple[str, torch.nn.Module, str, list[torch.Tensor]]] = []
        places: dict[int, list[_Place]] = {}
        for path, module in model.named_modules():
            names, values = list[str](), list[object]()
            for name, value in own_attributes(module):
                if _is_plain(value) or _is_method(module, name):
                    names.append(name)
                    values.append(value)
                elif tensors := _held_tensors(value):
                    self._tensors.append((path, module, name, tensors))
            own = vars(module)
            now, held = own["_modules"], own["_parameters"]
            self._states.append(_ModuleState(path, module, type(module), names, values, len(own), now, dict(now)))
            for name, parameter in held.items():
                if parameter is not None:
                    places.setdefault(id(parameter), []).append((held, name, f"{path}.{name}".removeprefix(".")))
        self._tied = [several for several in places.values() if len(several) > 1]
        self.marks = Marks(model)
        self.hooks: list[Hook] = []

    def changes(self) -> str:
        """Describe the attributes that were assigned, in the same order on all ranks; "" if there are none.

        Raises:
            TypeError, ValueError, NotImplementedError: if the model cannot be recorded again after a change.
        """
        changes: list[str] = []
        for path, module, kind, names, values, size, now, children in self._states:
            held = vars(module)
            if type(module) is not kind:
                raise ValueError(
                    f"distribute: {path or 'the model'} was a {kind.__name__} when the model was distributed, and is a "
                    f"{type(module).__name__} now; change it before, and distribute the model again"
                )
            if now != children:
                _refuse_other_modules(path, now, children)
            if len(held) != size or not all(map(operator.is_, map(held.get, names), values)):
                changes += _changed(path, module, dict(zip(names, values, strict=True)))
        for path, module, name, tensors in self._tensors:
            now_held = _held_tensors(vars(module).get(name))
            if len(now_held) != len(tensors) or not all(map(operator.is_, now_held, tensors)):
                changes.append(_emptied(f"{path}.{name}".removeprefix("."), now_held))
        for several in self._tied:
            _refuse_untied(several)
        return ", ".join(filter(None, (*changes, self.marks.note(), *self._find_hooks())))

    def _find_hooks(self) -> list[str]:
        """Find the hooks that look at results, and describe hooks of the model that were removed."""
        hooks, changes = list[Hook](), list[str]()
        for (path, module, *_), recorded in zip(self._states, self._recorded, strict=True):
            held = vars(module)
            refuse_backward_hooks(module, path)
            for kind, keys in recorded.items():
                if not held[kind] and not keys:
                    continue
                if gone := len(keys - held[kind].keys()):
                    changes.append(f"{path or 'the model'} without {gone} of its hooks")
                takes_options = held[f"{kind}_with_kwargs"]
                hooks += [
                    Hook(path, module, kind == "_forward_hooks", hook, key in takes_options)
                    for key, hook in held[kind].items()
                    if key not in keys
                ]
        self.hooks = hooks
        return changes


def _refuse_other_modules(path: str, now: Mapping[str, object], children: Mapping[str, object]) -> None:
    name = next(iter(dict(now.items() ^ children.items())))
    raise ValueError(
        f"distribute: the module {f'{path}.{name}'.removeprefix('.')} was added, removed or replaced after the model "
        "was distributed; do it before, and distribute the model again"
    )


def _refuse_untied(several: Sequence[_Place]) -> None:
    (held, name, full), *others = several
    for own, leaf, other in others:
        both = held.get(name), own.get(leaf)
        # Transforms replace parameters by tensors of their own.
        if both[0] is not both[1] and all(isinstance(tensor, torch.nn.Parameter) for tensor in both):
            raise ValueError(
                f"distribute: {other} is no longer the same parameter as {full}, which it was when the model was "
                "distributed; untie them before, and distribute the model again"
            )


def _emptied(name: str, tensors: Sequence[torch.Tensor]) -> str:
    if tensors:
        raise ValueError(
            f"distribute: {name} holds other tensors than when the model was distributed; write into the model's "
            "buffers, or distribute the model again"
        )
    return f"{name} without its tensors"


def _held_tensors(value: object) -> list[torch.Tensor]:
    """The tensors in an attribute."""
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def take_over(own: torch.nn.Module, source: torch.nn.Module) -> None:
    """Give a module the plain attributes of another module, and remove tensors and hooks that the other has no more."""
    held, other = vars(own), vars(source)
    for name, value in own_attributes(own):
        if _held_tensors(value) and not _held_tensors(other.get(name)):
            held[name] = copy.copy(other.get(name))
    held.update({name: value for name, value in own_attributes(source) if _is_plain(value)})
    for kind in (*_OF_CALLS, *ABOUT_HOOKS):
        for gone in held[kind].keys() - other[kind].keys():
            del held[kind][gone]


def _is_plain(value: object) -> bool:
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    return isinstance(value, _PLAIN)


def _is_method(module: torch.nn.Module, name: str) -> bool:
    """Whether an attribute takes the place of a method, such as forward()."""
    return callable(getattr(type(module), name, None))


def _changed(path: str, module: torch.nn.Module, noted: dict[str, object]) -> Iterator[str]:
    for name, value in own_attributes(module):
        full = f"{path}.{name}".removeprefix(".")
        if _is_method(module, name):
            if noted.get(name) is not value:
                raise ValueError(f"distribute: {full} was assigned after the model was distributed; assign it before")
            continue
        if is_marked(value):
            continue
        if name in noted and not _is_plain(value):
            raise TypeError(
                f"distribute: {full} became a {type(value).__name__}; it was {noted[name]!r} when the model was "
                "distributed, and can become another number or text"
            )
        if _is_plain(value) and (name not in noted or repr(value) != repr(noted[name])):
            yield f"{full}={value!r}"

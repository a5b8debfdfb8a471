"""Turning classic mode on and off."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType

from distdl.classic import mode, paths, state

_replaced: list[tuple[ModuleType | type, str, object]] = []
_ABSENT = object()


def turn_on() -> None:
    """Let the names that programs written for DistDL know mean what these programs mean.

    It takes no communication. Every rank has to turn it on before it makes partitions and layers. The modules of this
    library are not concerned: what they import from each other stays as it is.
    """
    if mode.is_on():
        return
    mode.switch(True)
    everything = {path: paths.contents(path) for path in paths.PATHS}  # before the first name changes
    for path, names in everything.items():
        if (module := sys.modules.get(path)) is not None:
            for name, value in names.items():
                _replace(module, name, value)
            if hasattr(module, "__all__"):
                _replace(module, "__all__", [*dict.fromkeys([*module.__all__, *names])])
    root = sys.modules["distdl"]
    _replace(root.nn.Module, "_distdl_backend", importlib.import_module("distdl.backends.mpi"))
    for function, adapted in state.FUNCTIONS.items():
        if (ours := vars(root).get(function)) is not None:
            _replace(root, function, adapted(ours))


def turn_off() -> None:
    """Undo :func:`turn_on`. What was made before stays as it is."""
    while _replaced:
        module, name, before = _replaced.pop()
        if before is _ABSENT:
            delattr(module, name)
        else:
            setattr(module, name, before)
    mode.switch(False)
    for path in paths.PATHS:  # those that were imported meanwhile
        imported = sys.modules.get(path)
        if imported is not None and isinstance(imported.__loader__, paths.PathLoader):
            imported.__dict__.update(paths.contents(path))


def _replace(module: ModuleType | type, name: str, value: object) -> None:
    _replaced.append((module, name, vars(module).get(name, _ABSENT)))
    setattr(module, name, value)

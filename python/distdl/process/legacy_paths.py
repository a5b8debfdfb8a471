"""Import paths, names in modules, and hints in messages that a package of distdl adds, imported when they are needed.

Importing the package itself turns a mode on, so its modules are loaded with a stand-in in its place.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

PACKAGE = "distdl.classic"
_ROOT = PACKAGE.partition(".")[0]


def module(name: str) -> ModuleType:
    """A module of the package, loaded without importing the package."""
    if PACKAGE in sys.modules:
        return importlib.import_module(f"{PACKAGE}.{name}")
    stand_in = ModuleType(PACKAGE)
    stand_in.__path__ = [str(Path(__file__).parents[1] / PACKAGE.rpartition(".")[2])]
    sys.modules[PACKAGE] = stand_in
    try:
        return importlib.import_module(f"{PACKAGE}.{name}")
    finally:
        del sys.modules[PACKAGE]


class _FurtherModules(MetaPathFinder):
    """Finds modules of distdl that have no file."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not fullname.startswith(f"{_ROOT}.") or fullname.startswith(PACKAGE):
            return None
        spec: ModuleSpec | None = module("paths").spec_of(fullname)
        return spec


def _further_names(owner: str) -> Callable[[str], object]:
    def find(name: str) -> object:
        if name.startswith("_"):
            raise AttributeError(f"module {owner!r} has no attribute {name!r}")
        return module("paths").attribute_of(owner, name)

    return find


def install_finder() -> None:
    """Make the paths and names of the package known, without loading them, at the end of importing distdl."""
    sys.meta_path.append(_FurtherModules())
    for name, loaded in list(sys.modules.items()):
        depth = name.count(".")
        if name.startswith(_ROOT) and (depth <= 1 or (depth == 2 and name.startswith(f"{_ROOT}.nn."))):
            loaded.__dict__.setdefault("__getattr__", _further_names(name))
            loaded.__dict__.setdefault("__path__", [])  # so that modules below it can be imported


def legacy_hint(name: str, arguments: Mapping[str, object], positions: Sequence[object] = ()) -> str:
    """A hint for the message about wrong arguments; "" if there is none.

    Args:
        name: the class or function.
        arguments: by name.
        positions: arguments by position.
    """
    text: str = module("hints").hint(name, arguments, positions)
    return text

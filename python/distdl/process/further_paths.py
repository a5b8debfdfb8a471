"""Additions of a package of distdl: import paths, names in modules, and hints in messages.

None of it is imported before it is needed. Importing that package itself turns a mode on; its modules are therefore
loaded with a stand-in in its place.
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
    """Finds modules of distdl that have no file of their own."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not fullname.startswith(f"{_ROOT}.") or fullname.startswith(PACKAGE):
            return None
        found: ModuleSpec | None = module("paths").spec_of(fullname)
        return found


def _further_names(owner: str) -> Callable[[str], object]:
    def find(name: str) -> object:
        if name.startswith("_"):
            raise AttributeError(f"module {owner!r} has no attribute {name!r}")
        return module("paths").attribute_of(owner, name)

    return find


def install() -> None:
    """Make the paths and names of the package known. Called at the end of importing distdl; it loads none of them."""
    sys.meta_path.append(_FurtherModules())
    for name, one in list(sys.modules.items()):
        depth = name.count(".")
        if name.startswith(_ROOT) and (depth <= 1 or (depth == 2 and name.startswith(f"{_ROOT}.nn."))):
            one.__dict__.setdefault("__getattr__", _further_names(name))
            one.__dict__.setdefault("__path__", [])  # so that modules below it can be imported


def hint(what: str, given: Mapping[str, object], positions: Sequence[object] = ()) -> str:
    """A hint for the message about wrong arguments; "" if there is none.

    Args:
        what: the name of the class or function.
        given: its arguments by name.
        positions: its arguments by position.
    """
    found: str = module("hints").hint(what, given, positions)
    return found

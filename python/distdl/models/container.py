"""The view of its module that a distributed model gives: children by numbers, and no other methods."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import torch

from distdl.models.function_module import not_forward


class Container:
    """Lets a wrapper of a module be counted and indexed like the module.

    Attributes:
        module: the module.
    """

    module: torch.nn.Module

    def _container(self) -> torch.nn.Sequential:
        if hasattr(type(self.module), "__getitem__"):
            return cast(torch.nn.Sequential, self.module)
        raise TypeError(f"distribute: a {type(self.module).__name__} has no modules by numbers or keys")

    def __getitem__(self, index: int) -> torch.nn.Module:
        """A module with its parts of parameters, to freeze it or to give it to an optimizer. Calling it raises."""
        return self._container()[index]

    def __len__(self) -> int:
        return len(self._container())

    def __iter__(self) -> Iterator[torch.nn.Module]:
        return iter(self._container())

    def refuse_method(self, name: str) -> None:
        """Raise AttributeError for a method of the module, or for a property."""
        module = self.__dict__.get("module")
        if module is not None and not name.startswith("_") and hasattr(type(module), name):
            raise AttributeError(not_forward(name, module))

    def __bool__(self) -> bool:
        return True  # also of a model that cannot be counted

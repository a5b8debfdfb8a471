"""The modules of a distributed Sequential or ModuleList, by their numbers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import torch


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

    def __bool__(self) -> bool:
        return True  # also of a model that cannot be counted

"""Forbid calls of single modules of a distributed model."""

from __future__ import annotations

import functools
from typing import NoReturn

import torch
from torch.nn.utils.parametrize import ParametrizationList


def forbid_submodule_calls(model: torch.nn.Module) -> None:
    """Let the modules within a model raise when they are called.

    A distributed model runs its program, which calls none of its modules. They would compute with this rank's part of
    the parameters. Parametrizations may be called: they compute a weight whenever it is read.
    """
    lists = (module for module in model.modules() if isinstance(module, ParametrizationList))
    within = {module for parametrizations in lists for module in parametrizations.modules()}
    for path, module in model.named_modules():
        if path and module not in within:
            vars(module)["forward"] = functools.partial(_refuse, path)  # hooks would be visible to users and tools


def _refuse(path: str, *args: object, **kwargs: object) -> NoReturn:
    raise RuntimeError(
        f"distribute: {path} cannot be called by itself: it is a module of a distributed model, and this rank has a "
        "part of its parameters alone. Call the model, or distribute this module of the original model by itself"
    )

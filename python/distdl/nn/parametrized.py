"""Parametrizations of torch that compute a weight from the whole of another one: they do not work on its blocks."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from distdl.nn.module import Module

_OF_WHOLE = ("_SpectralNorm", "_Orthogonal", "_WeightNorm")


def problem_of_parametrizations(module: Module) -> Iterator[str]:
    """Why the parametrizations of a layer give other weights than those of its sequential twin, one by one.

    A parametrization that treats each number by itself works on blocks as it is.
    """
    lists = module.named_children()
    found = next((one for name, one in lists if name == "parametrizations"), None)
    for name, several in found.named_children() if found is not None else ():
        layout = module.layouts.get(name)
        if layout is None or (layout.grid.known and layout.grid.constructing_ranks().size == 1):
            continue
        for one in several.children():
            kind = type(one).__name__
            if kind in _OF_WHOLE and type(one).__module__.startswith(torch.__name__):
                yield (
                    f"{kind.removeprefix('_')} computes {name} from the whole of it; here it would compute each block "
                    f"from itself, and there are {layout.grid.constructing_ranks().size} ranks"
                )

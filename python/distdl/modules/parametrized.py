"""Parametrizations of torch that compute a weight from a whole weight: they do not work on blocks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch

from distdl.modules.layouts import layouts_of
from distdl.torch_compat.parametrizations import computed_from_whole, may_compute_weights


def problem_of_parametrizations(
    module: torch.nn.Module, known: Iterable[torch.nn.Module] | None = None
) -> Iterator[str]:
    """Reasons why parametrizations within a layer give other weights than its twin's.

    A parametrization of each number alone works on blocks.

    Args:
        known: the layer's modules, if they are known.
    """
    if not any(map(may_compute_weights, module.modules() if known is None else known)):
        return
    layouts = layouts_of(module)
    for prefix, part in module.named_modules():
        for name, kind in computed_from_whole(part):
            full = f"{prefix}.{name}" if prefix else name
            layout = layouts.get(full)
            if layout is None or (layout.grid.known and layout.grid.constructing_ranks().size == 1):
                continue
            yield (
                f"{kind} computes {full} from the whole of it; here it would compute each block from itself, and there "
                f"are {layout.grid.constructing_ranks().size} ranks"
            )

"""Parametrizations of torch that compute a weight from the whole of another one: they do not work on its blocks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch.nn.utils.parametrizations import _Orthogonal, _SpectralNorm, _WeightNorm
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

from distdl.nn.declared import layouts_of

_OF_WHOLE = (_SpectralNorm, _Orthogonal, _WeightNorm)
_HOOKS_OF_WHOLE = (SpectralNorm, WeightNorm)  # of torch.nn.utils, which are older than parametrizations


def problem_of_parametrizations(
    module: torch.nn.Module, known: Iterable[torch.nn.Module] | None = None
) -> Iterator[str]:
    """Why parametrizations of a layer, and of what is in it, give other weights than those of its twin, one by one.

    A parametrization that treats each number by itself works on blocks as it is.

    Args:
        known: the layer's modules, where they need not be looked for.
    """
    if not any(map(_may_compute_weights, module.modules() if known is None else known)):
        return
    layouts = layouts_of(module)
    for prefix, one in module.named_modules():
        for name, kind in _computed_from_whole(one):
            full = f"{prefix}.{name}" if prefix else name
            layout = layouts.get(full)
            if layout is None or (layout.grid.known and layout.grid.constructing_ranks().size == 1):
                continue
            yield (
                f"{kind} computes {full} from the whole of it; here it would compute each block from itself, and there "
                f"are {layout.grid.constructing_ranks().size} ranks"
            )


def computed_weights(module: torch.nn.Module) -> dict[int, torch.Tensor]:
    """The weights that older parametrizations compute before each call, by id, and their values without a graph.

    For ``copy.deepcopy``, which copies no tensor that was computed from another one.
    """
    hooks = ((one, hook) for one in module.modules() for hook in vars(one)["_forward_pre_hooks"].values())
    weights = [getattr(one, hook.name) for one, hook in hooks if isinstance(hook, WeightNorm)]
    return {id(weight): weight.detach().clone() for weight in weights}


def _may_compute_weights(module: torch.nn.Module) -> bool:
    own = vars(module)
    return bool(own["_forward_pre_hooks"]) or "parametrizations" in own["_modules"]


def _computed_from_whole(module: torch.nn.Module) -> Iterator[tuple[str, str]]:
    """The weights of one module that are computed from whole ones, and by what."""
    own = vars(module)
    for hook in own["_forward_pre_hooks"].values():
        if isinstance(hook, _HOOKS_OF_WHOLE):
            yield hook.name, type(hook).__name__
    parametrizations = own["_modules"].get("parametrizations")
    for name, several in parametrizations.named_children() if parametrizations is not None else ():
        for one in several.children():
            if isinstance(one, _OF_WHOLE):
                yield name, type(one).__name__.removeprefix("_")

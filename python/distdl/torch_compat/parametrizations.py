"""Parametrizations of torch that compute a weight from a whole weight: they do not work on blocks."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch.nn.utils.parametrizations import _Orthogonal, _SpectralNorm, _WeightNorm
from torch.nn.utils.prune import BasePruningMethod
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

_OF_WHOLE = (_SpectralNorm, _Orthogonal, _WeightNorm)
_HOOKS_OF_WHOLE = (SpectralNorm, WeightNorm)  # of torch.nn.utils, older than parametrizations


def computed_weights(module: torch.nn.Module) -> dict[int, torch.Tensor]:
    """Weights that hooks of torch compute before each call, as copies without a graph, by id.

    For ``copy.deepcopy``, which does not copy tensors with a graph.
    """
    hooks = ((owner, hook) for owner in module.modules() for hook in vars(owner)["_forward_pre_hooks"].values())
    weights = [getattr(owner, name) for owner, hook in hooks if (name := _computed_by(hook))]
    return {id(weight): weight.detach().clone() for weight in weights}


def _computed_by(hook: object) -> str:
    """The name of the weight that a hook computes; "" for other hooks."""
    if isinstance(hook, BasePruningMethod):
        return hook._tensor_name
    return hook.name if isinstance(hook, _HOOKS_OF_WHOLE) else ""


def may_compute_weights(module: torch.nn.Module) -> bool:
    """Whether a module may have parametrizations, or hooks that compute weights."""
    attributes = vars(module)
    return bool(attributes["_forward_pre_hooks"]) or "parametrizations" in attributes["_modules"]


def computed_from_whole(module: torch.nn.Module) -> Iterator[tuple[str, str]]:
    """The weights of a module that are computed from whole weights, and the parametrizations' names."""
    attributes = vars(module)
    for hook in attributes["_forward_pre_hooks"].values():
        if isinstance(hook, _HOOKS_OF_WHOLE):
            yield hook.name, type(hook).__name__
    parametrizations = attributes["_modules"].get("parametrizations")
    for name, chain in parametrizations.named_children() if parametrizations is not None else ():
        for parametrization in chain.children():
            if isinstance(parametrization, _OF_WHOLE):
                yield name, type(parametrization).__name__.removeprefix("_")

"""Guards of a layer's call: calls that all ranks refuse before they compute, in this order, and why.

A guard looks at the tensors of one rank. Its exception takes part in the vote, which raises it on all ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import torch

from distdl.modules.parametrized import problem_of_parametrizations
from distdl.torch_compat.memory import problem_without_memory
from distdl.torch_compat.transforms import innermost_transform, is_functional, is_wrapped

_MISSING = TypeError("is of type NoneType; it has to be a torch.Tensor")
_TRANSFORMED = TypeError("meets parameters within the transforms of torch.func; these go through primitives only")
_FUNCTIONAL = TypeError("is wrapped for functionalization; it has to be a plain torch.Tensor")
_NO_VALUES = TypeError("meets a parameter or buffer that has no values: sparse, fake, or on the meta device")


class Observation(NamedTuple):
    """Facts of this rank about a call.

    Attributes:
        tensors: the tensors of the call; an exception in the place of a tensor is raised on all ranks.
        compared: text that must be equal on all ranks.
    """

    tensors: Sequence[object]
    parameters: Sequence[torch.Tensor] = ()
    buffers: Sequence[torch.Tensor] = ()
    compared: str = ""
    is_random: bool = False


def tensor_or_problem(tensor: object, is_optional: bool) -> object:
    """A tensor of a call; an exception if it is missing, or has no memory that MPI could send."""
    if tensor is None:
        return None if is_optional else _MISSING
    return problem_without_memory(tensor) or tensor


def parametrized(
    layer: torch.nn.Module, tensors: Sequence[object], modules: Iterable[torch.nn.Module] | None
) -> Exception | None:
    """A parametrization that needs a whole weight would compute each block from itself.

    It is refused first, before the weights are computed. ``modules`` are those of the layer, if they never change.
    """
    attributes = layer.__dict__
    if not (attributes["_modules"] or attributes["_forward_pre_hooks"]) or has_problem(tensors):
        return None
    problem = next(problem_of_parametrizations(layer, modules), None)
    return None if problem is None else ValueError(f"cannot be passed on: {problem}")


def transformed(observed: Observation) -> Exception | None:
    """Transforms of torch.func call a layer once for many tensors, so parameters on other ranks would not match."""
    if innermost_transform() is None:
        return None
    meets = any(map(is_functional, observed.tensors)) or any(map(is_wrapped, observed.parameters))
    return _TRANSFORMED if meets else None


def functional(observed: Observation) -> Exception | None:
    """Functionalization wraps tensors, and the wrappers have no memory."""
    return _FUNCTIONAL if any(map(is_functional, observed.tensors)) else None


def without_values(observed: Observation) -> Exception | None:
    """Parameters that are sparse, fake or on the meta device have no memory, either."""
    return _NO_VALUES if any(map(_has_no_values, (*observed.parameters, *observed.buffers))) else None


GUARDS: tuple[Callable[[Observation], Exception | None], ...] = (transformed, functional, without_values)
"""After :func:`parametrized`, in this order."""


def has_problem(tensors: Sequence[object]) -> bool:
    """Whether there is an exception in the place of a tensor."""
    return any(isinstance(tensor, Exception) for tensor in tensors)


def _has_no_values(tensor: torch.Tensor | None) -> bool:
    if tensor is None:
        return False
    return tensor.is_meta or tensor.layout is not torch.strided or problem_without_memory(tensor) is not None

"""Tensors of a user's own class: to them the call of a layer is one function of torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch.overrides import handle_torch_function

from distdl.collective.comparison import shown

may_override = torch._C._has_torch_function
"""Whether any of these objects has a ``__torch_function__`` of its own. It also holds within modes of functions."""

_PLAIN = (torch.Tensor.__torch_function__, torch._C._disabled_torch_function_impl)


def _overrides(one: object) -> bool:
    return isinstance(one, torch.Tensor) and type(one).__torch_function__ not in _PLAIN


def overridden(
    call: Callable[..., object],
    refuse: Callable[[Exception], None],
    args: Sequence[object],
    kwargs: Mapping[str, object],
) -> object:
    """The result of a call, through the ``__torch_function__`` of the arguments' classes.

    Within the call they are not asked: what they raise there is raised on this rank alone, and others would wait.

    Args:
        call: of a layer, with these arguments.
        refuse: raises on all ranks of the layer what keeps this rank from the call.
    """
    tensors = [one for one in (*args, *kwargs.values()) if _overrides(one)]
    if not tensors:
        return call(*args, **kwargs)
    begun, named, name = False, None, type(tensors[0]).__name__

    def layer(*args: object, **kwargs: object) -> object:
        nonlocal begun, named
        begun = True
        result = call(*args, **kwargs)
        if hasattr(result, "_fields"):  # torch makes no named tuple of converted results
            named = type(result)
            return tuple(result)  # type: ignore[arg-type]
        return result

    try:
        result = handle_torch_function(layer, tensors, *args, **kwargs)
    except Exception as error:
        if not begun:
            refuse(TypeError(f"is a {name}, which cannot be passed on: {shown(error, str)}"))
        raise
    if not begun:
        refuse(TypeError(f"is a {name}, whose __torch_function__ does not make the call"))
    return result if named is None else named(*result)

"""Tensors of a user's class with ``__torch_function__``, which sees a call of a layer as one function of torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch.overrides import handle_torch_function

from distdl.texts import safe_text

may_override = torch._C._has_torch_function
"""Whether any of these objects overrides ``__torch_function__``; also True within function modes."""

_DEFAULTS = (torch.Tensor.__torch_function__, torch._C._disabled_torch_function_impl)


def _overrides(x: object) -> bool:
    return isinstance(x, torch.Tensor) and type(x).__torch_function__ not in _DEFAULTS


def overridden(
    call: Callable[..., object],
    refuse: Callable[[Exception], None],
    args: Sequence[object],
    kwargs: Mapping[str, object],
) -> object:
    """Call a layer through the ``__torch_function__`` of the arguments' classes.

    It is not used within the call: an exception there would be raised on this rank only, and other ranks would wait.

    Args:
        refuse: raises an error of this rank on all ranks of the layer.
    """
    tensors = [x for x in (*args, *kwargs.values()) if _overrides(x)]
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
            refuse(TypeError(f"is a {name}, which cannot be passed on: {safe_text(error, str)}"))
        raise
    if not begun:
        refuse(TypeError(f"is a {name}, whose __torch_function__ does not make the call"))
    return result if named is None else named(*result)

"""Names and arguments of the functions of torch that a model calls."""

from __future__ import annotations

import contextlib
import inspect
import sys
from collections.abc import Iterator
from types import FunctionType

import torch
import torch.nn.functional as F
from torch.overrides import resolve_name

from distdl.models.capture.recording import Arguments, Function, Options
from distdl.nn.fourier.kinds import FUNCTIONS
from distdl.nn.kernels.kept_sizes import keeping_sizes
from distdl.torch_compat.layers import NormBase
from distdl.torch_compat.operators import name_of_library, without_values


def key_of(function: Function) -> str:
    """The name by which rules know a function: "add" for ``torch.add``, ``Tensor.add_``, ``+`` and ``+=``.

    Operators of other libraries keep the name of their library, as in "torchvision::roi_align".
    """
    if name := name_of_library(function):
        return name
    name = getattr(function, "__name__", "")
    if name == "_grouped_mm":  # of torch before 2.10
        return "grouped_mm"
    if name == "__get__":
        return str(function.__self__.__name__)  # type: ignore[attr-defined]
    if name.startswith("__") and name.endswith("__"):
        plain = name.strip("_")
        # The operands are exchanged, so that these are other functions; "radd" is the same as "add".
        if plain in ("rsub", "rdiv", "rtruediv", "rfloordiv", "rpow", "rmatmul", "rmod"):
            return plain
        for prefix in ("i", "r"):
            if plain.startswith(prefix) and plain[1:] in _OPERATORS:
                return plain[1:]
        return plain
    # The plain name of requires_grad_() is an attribute.
    if name.endswith("_") and not name.startswith("_") and name != "requires_grad_":
        name = name.rstrip("_")
    return name or str(resolve_name(function))


def asks_again_for_gradients(function: Function, args: Arguments) -> bool:
    """Whether a call lets a tensor ask for gradients that does so already, as all inputs do while recorded."""
    owner = getattr(function, "__self__", None) if getattr(function, "__name__", "") == "__set__" else None
    is_assigned = getattr(owner, "__name__", "") == "requires_grad"
    if not is_assigned and function is not torch.Tensor.requires_grad_:
        return False
    return args[1:] in ((True,), *([] if is_assigned else [()])) and args[0].requires_grad


_OPERATORS = {"add", "sub", "mul", "truediv", "floordiv", "pow", "mod", "and", "or", "xor", "matmul", "div", "lshift",
              "rshift"}  # fmt: skip


def with_lost_arguments(function: Function, args: Arguments, kwargs: Options) -> dict[str, object]:
    """The named arguments of a call, with those that a function of torch omits when it calls a recorder.

    ``torch.nn.functional.l1_loss`` omits its weight. The frame of its call, a few frames up the stack, still has it.
    """
    named = dict(kwargs)
    if not isinstance(function, FunctionType) or function.__module__ != F.__name__:
        return named
    frame = sys._getframe()
    for _ in range(_FRAMES):
        if frame.f_back is None:
            return named
        frame = frame.f_back
        if frame.f_code is function.__code__:
            for parameter in [*inspect.signature(function).parameters.values()][len(args) :]:
                value = frame.f_locals.get(parameter.name, parameter.default)
                if value is not parameter.default:
                    named.setdefault(parameter.name, value)
            return named
    return named


_FRAMES = 4  # between a function of torch and a recorder, at most


SHAPED_AS = {"expand_as": torch.Tensor.expand, "view_as": torch.Tensor.view, "reshape_as": torch.Tensor.reshape}
"""Functions that take the shape of a second tensor, and the functions that take a shape in its place."""
TYPED_AS = {"to", "type_as"}
"""Functions that take the dtype and the device of a second tensor."""


def without_template(key: str, args: Arguments, kwargs: Options) -> tuple[Function, Arguments, Options] | None:
    """The same call with a shape or a dtype in place of a second tensor, whose blocks then need not be sent.

    None if the call has no such tensor.
    """
    other = args[1] if len(args) > 1 else kwargs.get("other")
    if not isinstance(other, torch.Tensor) or key not in SHAPED_AS.keys() | TYPED_AS:
        return None
    x, rest = args[0], args[2:]
    kwargs = {name: value for name, value in kwargs.items() if name != "other"}
    if key in SHAPED_AS:
        return SHAPED_AS[key], (x, other.shape, *rest), kwargs
    where = () if other.device == x.device else (other.device,)
    return torch.Tensor.to, (x, *where, other.dtype, *rest), kwargs


@contextlib.contextmanager
def without_count_of_batches(module: torch.nn.Module) -> Iterator[None]:
    """Give a norm without momentum one for a while, as it would read the value of its buffer num_batches_tracked.

    A recording has no values, and the momentum changes no shape.
    """
    has_no_momentum = isinstance(module, NormBase) and module.momentum is None
    if has_no_momentum:
        module.momentum = 0.1
    try:
        yield
    finally:
        if has_no_momentum:
            module.momentum = None


def _grouped_mm(
    mat_a: torch.Tensor,
    mat_b: torch.Tensor,
    offs: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """The shape and the dtype of ``torch.nn.functional.grouped_mm``."""
    if mat_a.dim() == 2 and mat_b.dim() == 2 and offs is not None:
        return (mat_a @ mat_b).expand(len(offs), -1, -1).to(out_dtype or mat_a.dtype)
    return torch.matmul(mat_a, mat_b if mat_a.dim() == mat_b.dim() else mat_b[0]).to(out_dtype or mat_a.dtype)


def _assert_async(input: torch.Tensor, assert_msg: str = "") -> torch.Tensor:
    """The condition that is checked, so that the check is recorded: torch returns nothing."""
    return input.detach().clone()


def _ctc_loss(log_probs: torch.Tensor, *_: object, reduction: str = "mean", **__: object) -> torch.Tensor:
    """The shape of ``torch.nn.functional.ctc_loss``, which reads lengths."""
    losses = log_probs.sum((0, -1))
    return losses if reduction == "none" else losses.sum()


WITHOUT_VALUES: dict[str, Function] = {
    "_assert_async": _assert_async, "ctc_loss": _ctc_loss, "grouped_mm": _grouped_mm, **without_values,
}  # fmt: skip
"""Functions to record in place of functions that torch cannot call without values, such as for some dtypes."""
KEEPING_SIZES: dict[str, Function] = {f"fft_{name}": keeping_sizes(getattr(torch.fft, name)) for name in FUNCTIONS}
"""Functions to call in place of functions that keep an input of which the backward pass needs only the shape."""

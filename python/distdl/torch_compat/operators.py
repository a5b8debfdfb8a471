"""Operators of torch: their schemas, and those without a public name."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch

from distdl.torch_compat.version import TORCH

cpu_flash_attention = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
cpu_flash_attention_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward

OpOverload = torch._ops.OpOverload
"""An operator itself, below the functions that call it."""


assert_async = torch._assert_async
"""Raises if a tensor without dimensions is false."""
Message = Callable[[], object]
TensorCheck = Callable[..., None]
"""``check(error, condition, message)`` raises an error of a class with a message if any element is false."""


@contextmanager
def tensor_checks_by(checked: Callable[..., None]) -> Iterator[None]:
    """Call ``checked(check, error, condition, message)`` for ``torch._check_tensor_all`` of a condition."""
    check = torch._check_tensor_all_with
    torch._check_tensor_all_with = functools.partial(checked, check)
    try:
        yield
    finally:
        torch._check_tensor_all_with = check


def schemas_of(name: str) -> Sequence[torch._C.FunctionSchema]:
    """The schemas of the overloads of an operator."""
    schemas: Sequence[torch._C.FunctionSchema] = torch._C._jit_get_schemas_for_operator(f"aten::{name}")
    return schemas


def is_operator(function: object) -> bool:
    """Whether a function is an operator of ``torch.ops``."""
    return isinstance(function, torch._ops.OpOverload | torch._ops.OpOverloadPacket)


def name_of_library(function: object) -> str:
    """The name "namespace::name" of an operator that is not torch's own; "" for other functions."""
    if isinstance(function, torch._ops.OpOverload):
        function = function.overloadpacket
    name = function._qualified_op_name if isinstance(function, torch._ops.OpOverloadPacket) else ""
    return "" if name.startswith("aten::") else name


def writes_into_arguments(function: object) -> bool:
    """Whether an operator that is not torch's own says that it writes into an argument."""
    if not name_of_library(function):
        return False
    names = function.overloads() if isinstance(function, torch._ops.OpOverloadPacket) else ()
    several = [getattr(function, name) for name in names] or [function]
    return any(overload._schema.is_mutable for overload in several)


def keep_in_order(library: torch.library.Library, name: str) -> None:
    """Have compilers keep the order of an operator's calls."""
    if TORCH >= (2, 10):
        library._register_effectful_op(name, torch.library.EffectType.ORDERED)
    else:  # which can go with torch 2.9
        effects = importlib.import_module("torch._higher_order_ops.effects")
        operator = getattr(torch.ops.distdl, name.removeprefix("distdl::")).default
        effects._register_effectful_op(operator, effects._EffectType.ORDERED)


def _quantile(
    input: torch.Tensor,
    q: float | torch.Tensor,
    dim: int | None = None,
    keepdim: bool = False,
    *,
    interpolation: str = "linear",
) -> torch.Tensor:
    """The shape and the dtype of ``torch.quantile``."""
    result = input.amax(() if dim is None else dim, keepdim)
    return result.expand(*q.shape, *result.shape) if isinstance(q, torch.Tensor) else result


without_values: dict[str, Callable[..., object]] = {}
"""For functions that torch cannot call without values: functions with results of the same shape and dtype."""
if TORCH < (2, 12):
    without_values |= {"quantile": _quantile, "nanquantile": _quantile}

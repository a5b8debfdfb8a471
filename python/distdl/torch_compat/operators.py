"""Operators of torch: their schemas, and those without a public name."""

from __future__ import annotations

from collections.abc import Sequence

import torch

cpu_flash_attention = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
cpu_flash_attention_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward

OpOverload = torch._ops.OpOverload
"""An operator itself, below the functions that call it."""


def schemas_of(name: str) -> Sequence[torch._C.FunctionSchema]:
    """The schemas of the overloads of an operator."""
    schemas: Sequence[torch._C.FunctionSchema] = torch._C._jit_get_schemas_for_operator(f"aten::{name}")
    return schemas


def keep_in_order(library: torch.library.Library, name: str) -> None:
    """Have compilers keep the order of an operator's calls."""
    library._register_effectful_op(name, torch.library.EffectType.ORDERED)

"""Tensors without values."""

from __future__ import annotations

import sys

from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
)

__all__ = ["FakeTensor", "FakeTensorMode", "errors_of_missing_values"]


def errors_of_missing_values() -> tuple[type[Exception], ...]:
    """The errors of functions whose results depend on values.

    The module of the last one imports sympy, which takes longer than this whole package, so it is not imported for it.
    """
    symbolic_shapes = sys.modules.get("torch.fx.experimental.symbolic_shapes")
    guards = () if symbolic_shapes is None else (symbolic_shapes.GuardOnDataDependentSymNode,)
    return DataDependentOutputException, DynamicOutputShapeException, *guards

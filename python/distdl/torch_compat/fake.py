"""Tensors without values."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
    UnsupportedOperatorException,
)

__all__ = [
    "FakeTensor", "FakeTensorMode", "UnsupportedOperatorException", "errors_as_with_values", "errors_of_missing_values",
    "fake_of", "with_whole_lists", "without_log",
]  # fmt: skip


def fake_of(tensor: torch.Tensor, mode: FakeTensorMode, device: torch.device) -> FakeTensor:
    """A tensor without values in place of a parameter or buffer, with its attributes."""
    fake = FakeTensor(mode, torch.empty_like(tensor, device="meta"), device)
    own = vars(fake)
    own.update({name: value for name, value in vars(tensor).items() if name not in own})
    if isinstance(tensor, torch.nn.Parameter):
        fake.requires_grad_(tensor.requires_grad)
        fake._is_param = True  # torch.nn.Parameter makes a copy first, which takes longer
    return fake


@contextmanager
def without_log() -> Iterator[None]:
    """Keep torch from printing the traceback of each error on fake tensors, which is raised as well."""
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before


@contextmanager
def with_whole_lists() -> Iterator[None]:
    """Let ``tolist()`` be one call, as for tensors with values; fake tensors call ``item()`` for each element."""
    own = vars(FakeTensor).get("tolist")
    if own is None:
        yield
        return
    del FakeTensor.tolist
    try:
        yield
    finally:
        FakeTensor.tolist = own


@contextmanager
def errors_as_with_values() -> Iterator[None]:
    """Raise RuntimeError for sizes that a function refuses, also for tensors without values.

    Until torch 2.12, for which this is needed, some functions raise AssertionError for these.
    """
    try:
        yield
    except AssertionError as error:
        raise RuntimeError(str(error)) from error


def errors_of_missing_values() -> tuple[type[Exception], ...]:
    """The errors of functions whose results depend on values.

    The module of the last one imports sympy, which takes longer than this whole package, so it is not imported for it.
    """
    symbolic_shapes = sys.modules.get("torch.fx.experimental.symbolic_shapes")
    guards = () if symbolic_shapes is None else (symbolic_shapes.GuardOnDataDependentSymNode,)
    return DataDependentOutputException, DynamicOutputShapeException, *guards

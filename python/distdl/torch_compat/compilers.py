"""A mark for torch's compiler, without importing the compiler, which takes a second."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

AnyFunction = TypeVar("AnyFunction", bound=Callable[..., object])


def assume_constant_result(function: AnyFunction) -> AnyFunction:
    """Have compiled programs call the function while they are traced only, and keep its result.

    Source: ``torch.compiler.assume_constant_result``, which sets the same attribute.
    """
    vars(function)["_dynamo_marked_constant"] = True
    return function

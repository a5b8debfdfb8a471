"""A mark for torch's compiler that does not import it: with the compiler, `import distdl` takes a second longer."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

Marked = TypeVar("Marked", bound=Callable[..., object])


def assume_constant_result(function: Marked) -> Marked:
    """Let compiled programs call the function once, while they are traced, and keep its result.

    Source: ``torch.compiler.assume_constant_result``, which sets the same attribute.
    """
    vars(function)["_dynamo_marked_constant"] = True
    return function

"""The first exchange of a program, whose messages may travel beside the vote on the call."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from distdl import _core
from distdl.models.plan.redistribution import Redistribution
from distdl.models.run.steps import Step

Applied = tuple[_core.Primitive, torch.Tensor]


def first_exchange(steps: Sequence[Step], inputs: Sequence[int]) -> Callable[[Sequence[torch.Tensor]], Applied | None]:
    """A function from the inputs of a call to the operator that the first of the steps which read them applies.

    None if that step exchanges nothing.

    Args:
        inputs: the slots of the inputs.
    """
    first = next((step for step in steps if not {*step.reads}.isdisjoint(inputs)), None)
    if first is None:
        return lambda tensors: None
    exchange = getattr(first.run, "__self__", first.run)  # a method, if it is started
    if type(exchange) is not Redistribution or not exchange.can_start:
        return lambda tensors: None
    number = inputs.index(first.reads[0])
    return lambda tensors: exchange.exchange_of(tensors[number]) if number < len(tensors) else None

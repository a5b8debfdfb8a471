"""Operators of a program whose messages travel beside the vote on its call."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from distdl.models.plan.redistribution import Redistribution
from distdl.models.run.parameter_buckets import ParameterStep
from distdl.models.run.steps import Step
from distdl.operators.dispatch import Applied
from distdl.parameters.transport import TensorSequence


def beside_vote(
    steps: Sequence[Step], inputs: Sequence[int], parameters: Sequence[int]
) -> Callable[[TensorSequence, TensorSequence], list[Applied]]:
    """A function from the inputs and parameters of a call to operators that it applies to them, once.

    They are the exchange of the first step that reads an input, and the first transport of parameters.

    Args:
        inputs, parameters: their slots.
    """
    first = next((step for step in steps if not {*step.reads}.isdisjoint(inputs)), None)
    exchange = None if first is None else getattr(first.run, "__self__", first.run)  # a method, if it is started
    number = 0 if first is None else next(i for i, slot in enumerate(inputs) if slot in first.reads)
    transports = [(step.run, step.reads) for step in steps if isinstance(step.run, ParameterStep)]

    def applied(tensors: TensorSequence, held: TensorSequence) -> list[Applied]:
        applied = list[Applied]()
        if type(exchange) is Redistribution and exchange.can_start and number < len(tensors):
            applied.append(exchange.exchange_of(tensors[number]))
        by_slot = dict(zip(parameters, held, strict=True))
        for transport, reads in transports[:1]:
            applied += transport.beside_vote([by_slot[slot] for slot in reads])
        return applied

    return applied

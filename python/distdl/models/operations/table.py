"""The table of rules, and building blocks of rules."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from distdl.models.capture.interception import FunctionClass
from distdl.models.capture.recording import Arguments, Node, Run, Value
from distdl.models.operations.operation import BoxFunction, Draw, InputSpec, NoRuleError, Operation, Sharded, Workers
from distdl.partitions.boxes import Interval

Rule = Callable[[Node], Operation]
RULES: dict[str, Rule] = {}
"""By the name of a function, the same for ``torch.add``, ``Tensor.add_`` and ``+=``, or of a class of torch.nn."""


def rule_for(*names: str, takes: str = "*") -> Callable[[Rule], Rule]:
    """A decorator for the rule of the functions, or the classes of torch.nn, with these names.

    Args:
        takes: the arguments that the rule knows, in order, if it does not call the function itself. It refuses others,
            such as arguments of a newer torch. "*" among them stands for any number by position, and alone for all.
    """
    known = takes.split()

    def register(function: Rule) -> Rule:
        @functools.wraps(function)
        def checked(node: Node) -> Operation:
            refuse_others(node, known)
            return function(node)

        RULES.update(dict.fromkeys(names, function if known == ["*"] else checked))
        return function

    return register


def function_of(node: Node) -> FunctionClass | None:
    """The autograd function that a node calls; None for other nodes."""
    kind = getattr(node.target, "__self__", None)
    return kind if isinstance(kind, type) and issubclass(kind, torch.autograd.Function) else None


def known_rule(node: Node) -> Rule | None:
    """The rule under a node's key. Autograd functions have those of the program only: their names may be anything."""
    rule = RULES.get(node.key)
    is_own = rule is not None and rule.__module__.startswith("distdl.")
    return None if is_own and function_of(node) is not None else rule


def refuse_others(node: Node, known: Sequence[str]) -> None:
    """Refuse a call with arguments that a rule does not use.

    Raises:
        NoRuleError: that names them.
    """
    others = [name for name in node.kwargs if name not in known]
    if "*" not in known:
        others += [f"argument {place + 1}" for place in range(len(known), len(node.args))]
    if others:
        raise NoRuleError(f"{node.key} with {', '.join(others)}")


def same(dims: int, but: Container[int] = ()) -> InputSpec:
    """Shard each dimension as the same dimension of the result. Dimensions in `but` are read whole."""
    return tuple(None if d in but else Sharded(d) for d in range(dims))


def whole(value: Value) -> InputSpec:
    """Each worker reads all of it."""
    return (None,) * len(value.shape)


def broadcast_spec(value: Value, shape: Sequence[int]) -> InputSpec:
    """Shard a tensor as torch broadcasts it: dimensions count from the end; all workers read a dimension of size 1."""
    first = len(shape) - len(value.shape)
    return tuple(None if n == 1 != shape[first + d] else Sharded(first + d) for d, n in enumerate(value.shape))


def batches(value: Value, shape: Sequence[int]) -> InputSpec:
    """Shard all dimensions but the last two of an operand, as torch broadcasts them."""
    return broadcast_spec(value, shape)[:-2]


def local(
    node: Node, specs: Sequence[InputSpec], but: Iterable[int] = (), run: Run | None = None, draw: Draw | None = None
) -> Operation:
    """An operation on each block by itself, split in any dimension of the result that is not in `but`."""
    shape = node.outputs[0].shape
    call = run or node.as_function()
    kept = frozenset(range(len(shape))) - {d % len(shape) for d in but}
    return Operation(shape, tuple(specs), lambda workers: call, kept, draw=draw, box=BoxFunction(call))


def argument(node: Node, position: int, name: str, default: object = None) -> Any:
    """An argument of a call, by its position or by its name."""
    return node.args[position] if len(node.args) > position else node.kwargs.get(name, default)


def options_of(node: Node, names: Sequence[str], but: Container[str] = ()) -> dict[str, Any]:
    """The arguments of a call by their names, without defaults.

    Args:
        names: of positional arguments, since most of torch's own functions have no signature.
        but: names that are left out.
    """
    arguments = dict(zip(names, node.args, strict=False)) | dict(node.kwargs)
    return {name: value for name, value in arguments.items() if name not in but}


def through_layer(
    node: Node, module: torch.nn.Module, parameters: Mapping[str, Value] | None = None, args: Arguments | None = None
) -> Operation:
    """The operation of a function, by the rule of a layer that computes the same.

    Args:
        args: the arguments of the layer; by default the first argument of the function.
    """
    key = type(module).__name__
    args = tuple(node.arguments[:1]) if args is None else args
    call = replace(node, target=module, key=key, args=args, kwargs={}, parameters=parameters or {})
    if call.inputs != node.inputs:
        raise NoRuleError(f"{node.key} with arguments by name in another order, or with other tensors")
    return replace(RULES[key](call), of_layer=call)


def bound(node: Node) -> dict[str, Any]:
    """The arguments of a function by their names."""
    try:
        call = inspect.signature(node.target).bind(*node.args, **node.kwargs)
    except ValueError as error:
        raise NoRuleError(f"{node.key} as torch has it; use that of torch.nn.functional") from error
    call.apply_defaults()
    return call.arguments


def cut_out(value: torch.Tensor, intervals: Sequence[Interval]) -> torch.Tensor:
    """The box of a tensor with these intervals."""
    for d, (start, stop) in enumerate(intervals):
        if stop - start != value.shape[d]:
            value = value.narrow(d, start, stop - start)
    return value


def in_blocks(make: Callable[[Workers], Run], copies: Run) -> Callable[[Workers | None], Run]:
    """The `make` of an operation: of a block, or of the whole result if all inputs are replicated."""
    return lambda workers: copies if workers is None else make(workers)

"""The table of misuses: constructors of layers, from their classes and their examples.

Good arguments are those of the layer's first example. The types of the options say what must not be passed for them;
in the module of the family, ``MISUSES`` adds what the layer checks by itself, and ``OTHER`` other good values, both by
layer and option. A layer that this does not fit has a row in ``rows()`` there.
"""

from collections.abc import Callable
from types import NoneType
from typing import Any, get_args

import torch

import distdl.nn as dnn
from distdl import Partition
from distdl.nn.base import option_types
from distdl.nn.base.option_types import Check, Option, declared_options
from support.blocks import grid
from support.families import FAMILIES, LAYERS, splits
from support.misuses.table import (
    Row,
    Wrong,
    is_partition,
    not_a_device,
    not_a_dtype,
    not_a_further_partition,
    not_a_partition,
    not_an_int,
    not_per_dimension,
    not_positive,
)

REFUSED = (TypeError, ValueError, RuntimeError)
SHARE_CODE = ("1d", "3d", "4d")
"""Endings of layers that have the code of the layer in two dimensions, and run the first misuse of each option."""


def not_a_number(name: str, *further: Any) -> list[Wrong]:
    """For a number."""
    return [Wrong(value, TypeError, name) for value in ("a", None, 1j, *further)]


def negative(name: str) -> list[Wrong]:
    """For a number of elements, which may be 0."""
    return [Wrong(-1, RuntimeError, name), Wrong(1 << 70, RuntimeError, name)]


OF_TYPES: dict[str, Callable[[str], list[Wrong]]] = {
    "Integer": not_an_int,
    "Natural": lambda name: [*not_an_int(name), *negative(name)],
    "Positive": lambda name: [*not_an_int(name), *not_positive(name)],
    "Count": lambda name: [*not_an_int(name), *not_positive(name, (ValueError, RuntimeError))],
    "Number": not_a_number,
    "Float": lambda name: not_a_number(name, True),
    "PlainNumber": lambda name: not_a_number(name, True),
    "Probability": lambda name: [
        *not_a_number(name, True),
        *(Wrong(value, ValueError, name) for value in (-0.1, 1.5, float("nan"))),
    ],
    "Flag": lambda name: [Wrong(value, TypeError, name) for value in (1, None, "yes")],
    "IntegerFlag": lambda name: [Wrong(value, TypeError, name) for value in ("yes", 1.5)],
    "Sizes": not_per_dimension,
    "NaturalSizes": lambda name: [*not_per_dimension(name), Wrong(-1, RuntimeError, name)],
    "PositiveSizes": lambda name: [*not_per_dimension(name), *not_positive(name)],
}


def checks_of(kind: object) -> tuple[Check, ...]:
    """The checks of a type of options."""
    return tuple(check for check in get_args(kind) if isinstance(check, Check))


BY_CHECKS = {checks_of(getattr(option_types, name)): wrong for name, wrong in OF_TYPES.items()}


def misuses_of(name: str, option: Option) -> list[Wrong]:
    """The values that the type of an option refuses; none where it takes all values."""
    if is_partition(name):
        return not_a_partition() if name == "P_x" else not_a_further_partition()
    if name in ("device", "dtype"):
        return not_a_device() if name == "device" else not_a_dtype()
    if not option.checks:
        return []
    may_be_none = NoneType in get_args(option.argument.annotation)
    any_other = [Wrong(value, REFUSED, name) for value in ("no such value", 1j)]
    known = [checks for checks in BY_CHECKS if checks == tuple(option.checks)[: len(checks)]]
    wrong = BY_CHECKS[max(known, key=len)](name) if known else any_other
    return [each for each in wrong if not (may_be_none and each.value is None)]


def another(name: str, value: Any, of_examples: list[Any]) -> Any:
    """Another good value of an option: near this value, or that of another example. None if none is known."""
    if name == "dtype":
        return torch.float32 if value == torch.float64 else torch.float64
    if name in ("device", "output_blocks"):
        return {"device": "meta", "output_blocks": "aligned"}[name]
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value / 2 + 0.1 if isinstance(value, float) else 2 * value if value > 0 else value + 1
    if isinstance(value, tuple) and all(isinstance(each, int) for each in value):
        return tuple(each + 1 for each in value)
    return next((other for other in of_examples if not isinstance(other, torch.Tensor) and other != value), None)


def row_of(name: str) -> Row:
    """The row of a layer, by its public name."""
    kind, example, *others = getattr(dnn, name), *LAYERS[name]
    options = {name: option for name, option in declared_options(kind).items() if name != "P_x"}

    def good(P: Partition) -> dict[str, Any]:
        layer = example.make(example.twin(), grid(P, splits(example, P.size)[-1]))
        partitions = {name: getattr(layer, name) for name in layer.partitions if getattr(layer, name) is not None}
        return {**partitions, **layer.passed}

    wrong = {"P_x": not_a_partition(), **{name: misuses_of(name, option) for name, option in options.items()}}
    of_examples = [kind.options_of(example.twin()) for example in (example, *others)]
    other = {}
    for option, (argument, _) in options.items():
        values = [passed.get(option, argument.default) for passed in of_examples]
        other[option] = another(option, values[0], values[1:])
    for family in FAMILIES:
        other |= getattr(family, "OTHER", {}).get(name, {})
        for option, misuses in getattr(family, "MISUSES", {}).get(name, {}).items():
            wrong[option] = wrong[option] + misuses
    if name.endswith(SHARE_CODE):
        wrong = {option: misuses[:1] for option, misuses in wrong.items()}
    return Row(kind, good, wrong, {option: value for option, value in other.items() if value is not None})


def rows() -> dict[str, Row]:
    """By public name: all layers that have examples."""
    return {f"nn.{name}": row_of(name) for name in LAYERS}

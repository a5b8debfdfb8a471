"""Types of options, which say their checks, and constructors made from annotated attributes.

In ``Annotated[type, check, ...]`` each :class:`Check` raises, or returns the value for the next one; the last value
becomes the attribute. The checks run in the order of the constructor's arguments, before ``check_options``. None is not
checked if the argument may be None.
"""

from __future__ import annotations

import functools
import inspect
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from inspect import Parameter
from types import NoneType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    ClassVar,
    ForwardRef,
    Generic,
    NamedTuple,
    TypeAlias,
    TypeVar,
    get_args,
    get_origin,
)

import torch
from typing_extensions import dataclass_transform

from distdl.nn.base.documentation import completed
from distdl.nn.base.options import check_choice, flag, floating, integer, number, per_dimension
from distdl.partitions.construction import PartitionLike, constructor, partitions_behind_first
from distdl.partitions.partition import Partition

Attribute = TypeVar("Attribute")
Argument = TypeVar("Argument")
LayerClass = TypeVar("LayerClass", bound=type)

Size: TypeAlias = int | Sequence[int]
Device: TypeAlias = torch.device | str | None
Dtype: TypeAlias = torch.dtype | None


class Converted(Generic[Attribute, Argument]):
    """The type of an option whose attribute has another type than the argument. Only type checkers use it."""

    if TYPE_CHECKING:

        def __get__(self, layer: object, kind: type) -> Attribute: ...
        def __set__(self, layer: object, value: Argument) -> None: ...


@dataclass(frozen=True)
class Check:
    """A check of an option: ``convert(layer, value, name)`` raises, or returns the attribute."""

    convert: Callable[..., object]


def named(convert: Callable[..., object]) -> Check:
    """A check by a function that takes the name of the layer instead of the layer."""
    return Check(lambda layer, value, name: convert(type(layer).__name__, value, name))


def must(holds: Callable[..., bool], text: str, error: type[Exception] = ValueError) -> Check:
    """A check that a value keeps a rule; ``text`` follows "it must"."""

    def check(layer: str, value: object, name: str) -> object:
        if not holds(value):
            raise error(f"{layer}: {name}={value!r}; it must {text}")
        return value

    return named(check)


def at_least(least: int, error: type[Exception] = RuntimeError) -> Check:
    """A check that a number, or each number of a tuple, is not too small."""
    text = f"be at least {least}" if least else "not be negative"
    return must(lambda value: min(value if isinstance(value, tuple) else (value,)) >= least, text, error)


def choice(*choices: str, error: type[Exception] = ValueError) -> Check:
    """A check that a value is among these."""
    return named(lambda layer, value, name: check_choice(layer, name, value, choices, error))


in_unit_interval = must(lambda value: 0 <= value <= 1, "be in [0, 1]")
positive = must(lambda value: value > 0, "be greater than 0")
_sizes = Check(lambda layer, value, name: per_dimension(type(layer).__name__, value, layer.dims, name))

# Types of options, each of which accepts what torch.nn accepts there, and raises the same type of exception.

Integer: TypeAlias = Annotated[int, named(integer)]
Natural: TypeAlias = Annotated[Integer, at_least(0)]
Positive: TypeAlias = Annotated[Integer, at_least(1)]
Count: TypeAlias = Annotated[Integer, at_least(1, ValueError)]

Number: TypeAlias = Annotated[float, named(number)]  # any real number, as a float
Float: TypeAlias = Annotated[float, named(floating)]  # anything that float() converts, but no bool
PlainNumber: TypeAlias = Annotated[
    float, must(lambda value: isinstance(value, int | float) and not isinstance(value, bool), "be a number", TypeError)
]  # unchanged
Probability: TypeAlias = Annotated[PlainNumber, in_unit_interval]

Flag: TypeAlias = Annotated[bool, named(flag)]
IntegerFlag: TypeAlias = Annotated[bool, named(lambda layer, value, name: bool(integer(layer, value or 0, name)))]

# An int, or one for each of the layer's spatial dimensions.
Sizes: TypeAlias = Annotated[Converted[tuple[int, ...], Size], _sizes]
SizesOrNone: TypeAlias = Annotated[Converted[tuple[int, ...], Size | None], _sizes]
NaturalSizes: TypeAlias = Annotated[Sizes, at_least(0)]
PositiveSizes: TypeAlias = Annotated[Sizes, at_least(1)]
PositiveSizesOrNone: TypeAlias = Annotated[SizesOrNone, at_least(1)]

# Signatures show the text.
FirstPartition: TypeAlias = Converted[Partition, "PartitionLike"]
FurtherPartition: TypeAlias = Converted[Partition | None, "PartitionLike | None"]
HasBias: TypeAlias = Converted[torch.Tensor | None, bool]


# Constructors


class Option(NamedTuple):
    """An option of a layer: the argument of its constructor, and the checks that its annotation says."""

    argument: Parameter
    checks: list[Check]


def checked(layer: torch.nn.Module, options: Mapping[str, object]) -> dict[str, object]:
    """The attributes for options, by name. Raises what the annotations of the layer's class refuse."""
    declared, attributes = declared_options(type(layer)), dict(options)
    for name in [name for name in options if name in declared]:  # in order: all ranks raise the same error
        if options[name] is not None or NoneType not in get_args(declared[name].argument.annotation):
            for check in declared[name].checks:
                attributes[name] = check.convert(layer, attributes[name], name)
    return attributes


def declared_options(kind: type) -> dict[str, Option]:
    """The options of the nearest base class with a decorator of this module, and of its base classes."""
    return getattr(kind, "_declared_options", {})


def option(*, default: object) -> Any:
    """The default of an option that is :class:`Converted`."""
    return default


@dataclass_transform(field_specifiers=(option,))
def common_options(kind: LayerClass) -> LayerClass:
    """Let annotated attributes be arguments of the classes with :func:`with_options` that are derived from this one."""
    declared: dict[str, Option] = {}
    for base in reversed(kind.__mro__):
        declared |= vars(base).get("_declared_options", {})
    by_keyword = False
    # Names in annotations are those of the module, although options may have the same names.
    for name, annotation in inspect.get_annotations(kind, locals={}, eval_str=True).items():
        if annotation is KW_ONLY:
            by_keyword = True
        elif ClassVar not in (annotation, get_origin(annotation)):
            how = Parameter.KEYWORD_ONLY if by_keyword else Parameter.POSITIONAL_OR_KEYWORD
            default = vars(kind).get(name, Parameter.empty)
            argument = Parameter(name, how, default=default, annotation=_argument_type(annotation))
            declared[name] = Option(argument, _checks(annotation))
            if default is not Parameter.empty:
                delattr(kind, name)  # an instance has the attribute, or a parameter of this name
    setattr(kind, "_declared_options", declared)  # noqa: B010
    return kind


@dataclass_transform(field_specifiers=(option,))
def with_options(kind: LayerClass) -> LayerClass:
    """Make the constructor of a layer from its annotated attributes, as ``dataclasses.dataclass`` does.

    Its arguments are those of base classes with these decorators, then the annotated attributes of the class but for
    ``ClassVar``. Values are defaults; attributes after ``_: KW_ONLY`` are passed by keyword.
    """
    return _complete(kind, _made_constructor(common_options(kind)))


class PartitionsFirst:
    """A layer with further partitions, which are keywords, or directly follow P_x. So any types may stand there."""

    if TYPE_CHECKING:

        def __init__(self, *args: object, **kwargs: object) -> None: ...


def with_partitions_first(kind: LayerClass) -> LayerClass:
    """Make the constructor of a :class:`PartitionsFirst` layer, as :func:`with_options` does."""
    further = [name for name in declared_options(common_options(kind)) if name.startswith("P_") and name != "P_x"]
    return _complete(kind, partitions_behind_first(*further)(_made_constructor(kind)), several=True)


def _complete(kind: LayerClass, construct: Callable[..., None], several: bool = False) -> LayerClass:
    setattr(kind, "__init__", constructor(construct))  # noqa: B010
    if kind.__doc__:
        kind.__doc__ = completed(kind.__doc__, kind.__name__, several)
    return kind


def _made_constructor(kind: type) -> Callable[..., None]:
    layer = next(base for base in reversed(kind.__mro__) if "_declared_options" in vars(base))
    arguments = sorted((option.argument for option in declared_options(kind).values()), key=lambda x: x.kind)
    signature = inspect.Signature([Parameter("self", Parameter.POSITIONAL_ONLY), *arguments], return_annotation=None)

    def __init__(self: object, *args: object, **kwargs: object) -> None:  # noqa: N807
        bound = signature.bind(self, *args, **kwargs)
        bound.apply_defaults()
        layer.__init__(self, bound.arguments)  # type: ignore[misc]

    __init__.__signature__, __init__.__qualname__ = signature, f"{kind.__qualname__}.__init__"  # type: ignore[attr-defined]
    __init__.__module__ = kind.__module__
    return __init__


def _checks(annotation: object) -> list[Check]:
    if get_origin(annotation) is Annotated:
        return [check for check in get_args(annotation) if isinstance(check, Check)]
    return [check for part in get_args(annotation) for check in _checks(part)]


def _argument_type(annotation: object) -> object:
    """The type of the argument for an annotated attribute."""
    parts = get_args(annotation)
    if get_origin(annotation) is Annotated:
        return _argument_type(parts[0])
    if get_origin(annotation) is Converted:
        return parts[1].__forward_arg__ if isinstance(parts[1], ForwardRef) else parts[1]
    return functools.reduce(operator.or_, map(_argument_type, parts)) if NoneType in parts else annotation

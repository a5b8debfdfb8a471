"""Constructors with the arguments of DistDL, made from the options that our layers declare."""

from __future__ import annotations

from collections.abc import Callable
from inspect import Parameter, Signature
from typing import TypeVar

from distdl.nn.base.layer import Layer
from distdl.nn.base.option_types import declared_options
from distdl.partitions.construction import constructor

FURTHER = {"buffer_manager": None, "collect_state": False, "scale_backward": None, "auto_clear_buffer": True}
"""Options that all old layers with parameters take, by keyword if they have no position."""

OldClass = TypeVar("OldClass", bound=type)


def old_arguments(names: str, ours: type[Layer] | None = None, /, **others: object) -> Callable[[OldClass], OldClass]:
    """A decorator for layers that gives them a constructor, which passes all options by name to ``construct``.

    Args:
        names: arguments in the old order, with the types and defaults that our layer declares.
        ours: our layer, if it is not a base class. Its further options are keywords; so are partitions of a base class.
        others: defaults of arguments that are not ours, which follow ``names``, or that have other defaults.
    """

    def decorate(kind: OldClass) -> OldClass:
        declared = {name: option.argument for name, option in declared_options(ours or kind).items()}
        order = list(dict.fromkeys((*names.split(), *others)))
        taken = {name.lower() for name in order}  # P_w is the old name of P_W
        taken |= {name.lower() for name in declared if name == "P_x" or (ours and name.startswith("P_"))}
        keywords = [name for name in (*declared, *FURTHER) if name.lower() not in taken]
        defaults = {name: argument.default for name, argument in declared.items()} | FURTHER | others
        arguments = [Parameter("self", Parameter.POSITIONAL_ONLY)]
        for name in reversed((*order, *keywords)):
            how = Parameter.KEYWORD_ONLY if name in keywords else Parameter.POSITIONAL_OR_KEYWORD
            default = defaults.get(name, Parameter.empty)
            if name in order and len(arguments) > 1 and _has_to_be_passed(arguments[1]):
                default = Parameter.empty  # of a partition that our layer takes as a keyword
            annotation = declared[name].annotation if name in declared else Parameter.empty
            arguments.insert(1, Parameter(name, how, default=default, annotation=annotation))
        signature = Signature(arguments, return_annotation=None)

        def __init__(self: object, *args: object, **kwargs: object) -> None:  # noqa: N807
            bound = signature.bind(self, *args, **kwargs)
            bound.apply_defaults()
            options = bound.arguments
            options.pop("self").construct(**options)

        __init__.__signature__, __init__.__qualname__ = signature, f"{kind.__qualname__}.__init__"  # type: ignore[attr-defined]
        __init__.__module__ = kind.__module__
        setattr(kind, "__init__", constructor(__init__))  # noqa: B010
        return kind

    return decorate


def _has_to_be_passed(argument: Parameter) -> bool:
    return argument.kind is not Parameter.KEYWORD_ONLY and argument.default is Parameter.empty

"""The common sections of the docstrings of losses."""

from __future__ import annotations

import inspect
import textwrap

from distdl.nn.base.documentation import completed

_SECTIONS = """

    Args:
        P_x: the partition of the {first}.
        {options}: as in ``torch.nn.{name}``.{weights}

    Shape:
        {shapes}

    Raises:
        ValueError: on all ranks, if the blocks do not match each other or P_x, the loss is not defined for a dtype or
            a value, or an option is out of range.
        TypeError: on all ranks, if an option is of another type.

    Constructing and calling are collective over P_x's parent communicator. Every rank must call ``backward()``; the
    loss counts once. The deprecated ``size_average`` and ``reduce`` are left out.
    """
_SCALAR = " Zero volume on all other ranks. The result is a scalar on every rank, unless reduction='none'."
_WHOLE = " Weights are whole, equal on all ranks."


def with_sections(cls: type, shapes: str, weights: tuple[str, ...]) -> str:
    """The docstring of a loss class, with the common sections."""
    summary = (cls.__doc__ or "").rstrip()
    options = ", ".join(
        name for name in inspect.signature(vars(cls)["__init__"]).parameters if name not in ("self", "P_x")
    )
    sections = _SECTIONS.format(
        first=getattr(cls, "tensors")[0],  # noqa: B009
        options=options,
        name=cls.__name__.removeprefix("Distributed"),
        weights=_WHOLE if weights else "",
        shapes=textwrap.fill(shapes + _SCALAR, 112).replace("\n", "\n        "),
    )
    return completed(summary + sections, cls.__name__)

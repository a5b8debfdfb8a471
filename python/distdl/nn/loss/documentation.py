"""The sections that the docstrings of all losses have."""

from __future__ import annotations

import inspect
import textwrap

_SECTIONS = """

    Args:
        P_x: the partition of the {first}.
        {options}: as in ``torch.nn.{name}``.{weights}

    Shape:
        {shapes}

    Raises:
        ValueError: on all ranks, if the blocks do not fit each other or P_x, a dtype or a value is not one that the
            loss is defined for, or an option is out of its range.
        TypeError: on all ranks, if an option is of another type.

    Constructing and calling are collective over the communicator that P_x comes from. Every rank has to call
    ``backward()``; the loss counts once. The deprecated ``size_average`` and ``reduce`` are left out.

    Source: https://docs.pytorch.org/docs/stable/generated/torch.nn.{name}.html.
    """
_SCALAR = " Zero volume on all other ranks. The result is a scalar on every rank, unless reduction='none'."
_WHOLE = " Weights are whole, the same on all ranks."


def documented(cls: type, shapes: str, weights: tuple[str, ...]) -> str:
    """The docstring of a loss: what the class says itself, and the sections."""
    own = (cls.__doc__ or "").rstrip()
    options = ", ".join(
        name for name in inspect.signature(vars(cls)["__init__"]).parameters if name not in ("self", "P_x")
    )
    return own + _SECTIONS.format(
        first=getattr(cls, "tensors")[0],  # noqa: B009
        options=options,
        name=cls.__name__.removeprefix("Distributed"),
        weights=_WHOLE if weights else "",
        shapes=textwrap.fill(shapes + _SCALAR, 112).replace("\n", "\n        "),
    )

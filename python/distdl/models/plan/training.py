"""How a model is trained, as far as its memory depends on it."""

from __future__ import annotations

from dataclasses import dataclass

OPTIMIZERS = {"sgd": 0, "momentum": 1, "rmsprop": 1, "adagrad": 1, "lion": 1, "adam": 2, "adamw": 2}
"""The number of copies of the parameters that optimizers keep."""


@dataclass(frozen=True)
class Training:
    """How a model is trained.

    Attributes:
        layout: the kind of layout of its parameters, as in :func:`distdl.parameter_layout`.
        copies: the number of copies of the parameters that the optimizer keeps.
    """

    layout: str
    copies: float

    @classmethod
    def of(cls, name: str, layout: str, optimizer: str | float) -> Training:
        """How a model is trained with an optimizer, by its name or by the number of copies of parameters.

        Raises:
            ValueError: for another optimizer.
        """
        copies = OPTIMIZERS.get(optimizer.lower(), -1.0) if isinstance(optimizer, str) else optimizer
        if isinstance(copies, bool) or not isinstance(copies, int | float) or copies < 0:
            raise ValueError(
                f"{name}: optimizer={optimizer!r}; it has to be one of {', '.join(map(repr, OPTIMIZERS))}, or the "
                "number of copies of the parameters that it keeps"
            )
        return cls(layout, copies)

"""The sections that end the docstrings of layers: who calls a layer together, and its source."""

from __future__ import annotations

_COLLECTIVE = "Collective: constructing over {of} parent communicator, calling over {over}."
_SOURCE = "Source: https://docs.pytorch.org/docs/stable/generated/torch.nn.{twin}.html."


def completed(text: str, layer: str, several: bool = False) -> str:
    """The docstring of a layer with the last sections, unless it has its own ones.

    Args:
        text: the docstring; a text without arguments is left alone.
        layer: the name of the class: that of torch.nn after ``Distributed``.
        several: whether the layer takes several partitions.
    """
    if "\n    Args:" not in text:
        return text
    of, over = ("the partitions'", "the partitions") if several else ("P_x's", "P_x")
    sections = {"ollective": _COLLECTIVE.format(of=of, over=over)}
    sections["Source:"] = _SOURCE.format(twin=layer.removeprefix("Distributed"))
    for word, section in sections.items():
        if word not in text:
            text = f"{text.rstrip()}\n\n    {section}\n    "
    return text

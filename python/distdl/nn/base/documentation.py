"""The sections that docstrings of layers share: ranks without a result, collective calls, and the source."""

from __future__ import annotations

import re

import torch

_ELSEWHERE = "Zero volume on all other ranks."
_COLLECTIVE = "Collective: constructing over {of} parent communicator, calling over {over}."
_SOURCE = "Source: https://docs.pytorch.org/docs/stable/generated/torch.nn.{twin}.html."


def completed(text: str, layer: str, several: bool = False) -> str:
    """The docstring of a layer with the shared sections, unless it has its own ones.

    Args:
        text: the docstring; a text without arguments is left alone.
        layer: the name of the class. After ``Distributed``, it is that of the source in torch.nn; a layer that
            torch.nn lacks names its own.
        several: whether the layer takes several partitions.
    """
    if "\n    Args:" not in text:
        return text
    paragraphs = re.split(r"\n\n(?=    \S)", text.rstrip())
    if "ollective" not in text:
        of, over = ("the partitions'", "the partitions") if several else ("P_x's", "P_x")
        sources = [place for place, paragraph in enumerate(paragraphs) if paragraph.startswith("    Source:")]
        place = sources[0] if sources else len(paragraphs)
        paragraphs.insert(place, f"    {_COLLECTIVE.format(of=of, over=over)}")
    twin = layer.removeprefix("Distributed")
    if "Source:" not in text and hasattr(torch.nn, twin):
        paragraphs.append(f"    {_SOURCE.format(twin=twin)}")
    for place, paragraph in enumerate(paragraphs):
        if paragraph.startswith("    Shape:\n") and "ero volume" not in paragraph and "scalar" not in paragraph:
            paragraphs[place] += f"\n        {_ELSEWHERE}"
    return "\n\n".join(paragraphs) + "\n    "

"""Pictures as SVG."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape


def document(width: int, height: int, elements: Sequence[str]) -> str:
    """A picture with a white ground."""
    size = f'width="{width}" height="{height}" font-family="monospace" font-size="11"'
    first = f'<svg xmlns="http://www.w3.org/2000/svg" {size}>'
    return "\n".join([first, '<rect width="100%" height="100%" fill="white"/>', *elements, "</svg>"])


def text(x: float, y: float, content: str, color: str = "black") -> str:
    """An element of text."""
    return f'<text x="{x}" y="{y}" fill="{color}">{escape(content)}</text>'

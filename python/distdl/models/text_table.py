"""Tables as text."""

from __future__ import annotations

from collections.abc import Sequence

MIB = 1 << 20


def text_table(rows: Sequence[Sequence[str]], left: Sequence[int]) -> list[str]:
    """Lines with aligned columns: the columns `left` on their left sides, the others on their right sides."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if i in left else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def numbers(shape: Sequence[int]) -> str:
    """A shape as text, such as "4x3x8"."""
    return "x".join(str(int(n)) for n in shape)

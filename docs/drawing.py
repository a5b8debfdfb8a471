"""Themes, and the sheet on which the pictures of the documentation are drawn."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product

from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, Rectangle

UNIT = 0.27  # inches per tensor element, by default
SMALL, NORMAL, LARGE = 7.5, 9.0, 10.0  # points

Point = tuple[float, float]
Span = tuple[int, int]


@dataclass(frozen=True)
class Theme:
    """Colors that are readable on one background."""

    name: str
    ink: str
    faint: str
    blank: str
    accent: str
    hues: tuple[str, ...]


LIGHT = Theme(
    "light",
    ink="#24292f",
    faint="#aeb5bd",
    blank="#f1f3f5",
    accent="#c9302c",
    hues=("#a5c8f0", "#f7c58b", "#a9dba9", "#f2aca6", "#cbb6ea", "#93d8d3"),
)
DARK = Theme(
    "dark",
    ink="#e3e6ea",
    faint="#636a73",
    blank="#22262b",
    accent="#ff8f87",
    hues=("#2d5f94", "#96601f", "#36743c", "#93433d", "#644d90", "#22706c"),
)


class Sheet:
    """A figure whose size is in units. y points downwards, like the rows of a matrix."""

    def __init__(self, theme: Theme, width: float, height: float, unit: float = UNIT) -> None:
        self.theme = theme
        self.figure = Figure(figsize=(width * unit, height * unit))
        self.axes = self.figure.add_axes((0, 0, 1, 1))
        self.axes.set(xlim=(0, width), ylim=(height, 0))
        self.axes.axis("off")

    def cell(self, at: Point, size: Point, fill: str | None, edge: str | None = None, line: float = 0.6) -> None:
        edge = edge or self.theme.faint
        self.axes.add_patch(Rectangle(at, *size, facecolor=fill or "none", edgecolor=edge, linewidth=line))

    def text(self, at: Point, text: str, size: float = NORMAL, **options: str) -> None:
        style = {"ha": "center", "va": "center", "color": self.theme.ink, "fontsize": size, **options}
        self.axes.text(*at, text, **style)

    def arrow(self, start: Point, stop: Point, color: str | None = None, **options: float | str) -> None:
        style = {"arrowstyle": "-|>", "mutation_scale": 9, "linewidth": 1.1, "shrinkA": 0, "shrinkB": 0, **options}
        self.axes.add_patch(FancyArrowPatch(start, stop, color=color or self.theme.ink, **style))

    def line(self, *points: Point, color: str | None = None, **options: float | str) -> None:
        x, y = zip(*points, strict=True)
        self.axes.plot(
            x, y, **{"color": color or self.theme.ink, "linewidth": 1.1, "solid_capstyle": "butt", **options}
        )

    def grid(self, at: Point, shape: Span, fill: Callable[[int, int], str | None]) -> None:
        """The elements of a matrix."""
        for row, column in product(range(shape[0]), range(shape[1])):
            self.cell((at[0] + column, at[1] + row), (1, 1), fill(row, column))

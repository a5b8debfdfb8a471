"""Draws how long the primitives take, relative to what they are compared with.

python benchmarks/plot.py figures.json figures.svg
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator

COLUMNS = 5
LARGE = 1 << 20  # bytes, from which on the goal is a ratio
STYLES = {"forward": {"color": "#1f6fb4", "marker": "o"}, "adjoint": {"color": "#d1690e", "marker": "s"}}
RATIOS = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50)


def plot(rows: Sequence[dict[str, Any]], file: Path) -> None:
    """One small plot for each primitive: the ratio of medians over the size, with the goals from 1 MiB on as lines."""
    primitives = list(dict.fromkeys(row["primitive"] for row in rows if row["bytes"] >= LARGE))
    sizes = sorted({row["bytes"] for row in rows})
    lines = -(-len(primitives) // COLUMNS)
    with mpl.rc_context({"svg.hashsalt": "distdl", "font.size": 8}):
        figure = Figure(figsize=(2.1 * COLUMNS, 0.5 + 2.1 * lines), layout="constrained")
        all_axes = figure.subplots(lines, COLUMNS, sharex=True, sharey=True, squeeze=False).flatten()
        for axes, primitive in zip(all_axes, primitives, strict=False):
            _panel(axes, primitive, [row for row in rows if row["primitive"] == primitive])
        for axes in all_axes[len(primitives) :]:
            axes.remove()
        for axes in figure.axes[-COLUMNS:]:  # the lowest of each column
            axes.tick_params(labelbottom=True, labelsize=6.5)
        first = figure.axes[0]
        first.set(xscale="log", yscale="log")
        first.set_xticks(sizes, [_text(size) for size in sizes])
        first.xaxis.set_minor_locator(NullLocator())
        first.set_yticks(RATIOS)
        first.yaxis.set_major_formatter(FuncFormatter(lambda ratio, _: f"{ratio:g}"))
        first.yaxis.set_minor_locator(NullLocator())
        first.legend(fontsize=7)
        figure.supxlabel("bytes of the largest tensor on a rank")
        figure.supylabel("median time, relative")
        figure.savefig(file, format="svg", metadata={"Date": None})


def _text(size: int) -> str:
    return f"{size >> 20}\nMiB" if size >= LARGE else f"{size >> 10}\nKiB"


def _panel(axes: Axes, primitive: str, rows: Sequence[dict[str, Any]]) -> None:
    reference = next(iter(rows[0]["ratio"]))
    for direction, style in STYLES.items():
        selected = [row for row in rows if row["direction"] == direction]
        sizes, ratios = [row["bytes"] for row in selected], [row["ratio"][reference] for row in selected]
        axes.plot(sizes, ratios, label=direction, markersize=3, linewidth=1.2, **style)
        goals = {row["bytes"]: float(row["goal"].split()[0]) for row in selected if row["bytes"] >= LARGE}
        axes.plot(list(goals), list(goals.values()), linestyle="--", linewidth=1, color=style["color"])
    axes.axhline(1, color="#888888", linewidth=0.6)
    axes.set_title(f"{primitive} / {reference}", fontsize=7.5)


if __name__ == "__main__":
    plot(json.loads(Path(sys.argv[1]).read_text())["times"], Path(sys.argv[2]))

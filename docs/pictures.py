"""The pictures of the documentation, drawn from the geometry that the package itself computes with.

`draw_all(folder)` writes NAME-light.svg and NAME-dark.svg for every picture. `python docs/pictures.py FOLDER` does the
same from the command line.
"""

import io
import math
import sys
from collections.abc import Callable, Iterable, Sequence
from itertools import product
from pathlib import Path

import charts
import matplotlib as mpl
from drawing import DARK, LARGE, LIGHT, SMALL, Point, Sheet, Span, Theme
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

from distdl import _core
from distdl.nn.fourier.pencils import Task, plan


def blocks(shape: Span, workers: Span) -> Iterable[tuple[int, Span, Span]]:
    """(rank, rows, columns) of the balanced blocks of a matrix, without the empty blocks."""
    for rank in range(math.prod(workers)):
        row, column = _core.grid_index(workers, rank)
        rows = _core.balanced_block(shape[0], workers[0], row)
        columns = _core.balanced_block(shape[1], workers[1], column)
        if rows[0] < rows[1] and columns[0] < columns[1]:
            yield rank, rows, columns


def borders(sheet: Sheet, at: Point, shape: Span, workers: Span, edge: str | None = None, line: float = 1.6) -> None:
    """The borders of the workers' blocks."""
    for _, (top, bottom), (left, right) in blocks(shape, workers):
        sheet.cell((at[0] + left, at[1] + top), (right - left, bottom - top), None, edge or sheet.theme.ink, line)


def balanced(theme: Theme) -> Figure:
    """Balanced blocks of two vectors and of a matrix."""
    sheet = Sheet(theme, 22.2, 7.3)
    for y, n in ((1.3, 10), (4.9, 3)):
        sheet.text((0.2, y - 0.7), f"{n} elements over 4 workers", ha="left")
        for rank in range(4):
            for i in range(*_core.balanced_block(n, 4, rank)):
                sheet.cell((0.2 + i, y), (1, 1), theme.hues[rank])
                sheet.text((0.7 + i, y + 0.5), str(i), SMALL)
        borders(sheet, (0.2, y), (1, n), (1, 4))
        spans = [_core.balanced_block(n, 4, rank) for rank in range(4)]
        sheet.text((0.2, y + 1.65), f"blocks of {', '.join(str(b - a) for a, b in spans)}", SMALL, ha="left")

    shape, workers, at = (5, 7), (2, 3), (13.4, 1.3)
    sheet.text((at[0], at[1] - 0.7), "5 × 7 elements over 2 × 3 workers", ha="left")
    owner = {(i, j): rank for rank, rows, cols in blocks(shape, workers) for i in range(*rows) for j in range(*cols)}
    sheet.grid(at, shape, lambda i, j: theme.hues[owner[i, j]])
    borders(sheet, at, shape, workers)
    for rank, rows, columns in blocks(shape, workers):
        middle = (at[0] + sum(columns) / 2, at[1] + sum(rows) / 2)
        index = _core.grid_index(workers, rank)
        sheet.cell((middle[0] - 0.85, middle[1] - 0.7), (1.7, 1.4), theme.hues[rank], theme.hues[rank])
        sheet.text((middle[0], middle[1] - 0.25), f"{rank}", LARGE)
        sheet.text((middle[0], middle[1] + 0.4), f"({index[0]}, {index[1]})", SMALL)
    sheet.text((at[0], at[1] + 5.6), "each worker's number and index", SMALL, ha="left")
    return sheet.figure


def matching(theme: Theme) -> Figure:
    """Workers that match in broadcasts and sum-reductions have the same color."""
    cases = [  # title, P_x, P_y, transpose_src, transpose_dest
        ("Broadcast", (3,), (2, 3), False, False),
        ("SumReduce", (3, 4), (3, 1), False, False),
        ("SumReduce, transpose_src=True", (3, 4), (1, 3), True, False),
        ("SumReduce, transpose_dest=True", (3, 4), (4, 1), False, True),
    ]
    sheet = Sheet(theme, 23.4, 15)
    side = 1.25
    for place, (title, x, y, transpose_x, transpose_y) in enumerate(cases):
        left, top = 0.2 + 12.8 * (place % 2), 0.7 + 7.0 * (place // 2)
        sides = {"x": (x, transpose_x), "y": (y, transpose_y)}
        root_grid, many = ("x", "y") if title == "Broadcast" else ("y", "x")
        (root_shape, transpose_roots), (many_shape, transpose_many) = sides[root_grid], sides[many]
        hue = {}
        for root in range(math.prod(root_shape)):
            hue[root_grid, root] = theme.hues[root]
            for member in _core.matched_ranks(root_shape, many_shape, root, transpose_roots, transpose_many):
                hue[many, member] = theme.hues[root]
        sheet.text((left, top), title, ha="left")
        sheet.arrow((left + 5.4, top + 3.6), (left + 6.8, top + 3.6))
        for name, at in (("x", left), ("y", left + 7.2)):
            shape = sides[name][0]
            extents = " × ".join(map(str, shape))
            sheet.text((at, top + 1.15), f"$P_{name}$: {extents}", SMALL, ha="left")
            for rank in range(math.prod(shape)):
                row, column = [0, *_core.grid_index(shape, rank)][-2:]
                corner = (at + side * column, top + 1.75 + side * row)
                sheet.cell(corner, (side, side), hue[name, rank], theme.ink, 1.3)
                sheet.text((corner[0] + side / 2, corner[1] + side / 2), str(rank), SMALL)
    return sheet.figure


def repartition(theme: Theme) -> Figure:
    """The overlaps of the middle worker of a 3 x 3 partition with the blocks of a 4 x 4 partition."""
    shape, source, target = (10, 10), (3, 3), (4, 4)
    sheet = Sheet(theme, 34.2, 12.4, unit=0.2)
    middle = [_core.balanced_block(n, p, 1) for n, p in zip(shape, source, strict=True)]
    along = [_core.pieces(n, p, block) for n, p, block in zip(shape, target, middle, strict=True)]
    hue = {}
    for k, ((_, *rows), (_, *columns)) in enumerate(product(*along)):
        hue.update(dict.fromkeys(product(range(*rows), range(*columns)), theme.hues[k + 1]))

    for k, title in enumerate(("$P_x$: 3 × 3", "both", "$P_y$: 4 × 4")):
        at = (0.3 + 11.8 * k, 1.8)
        sheet.text((at[0], 0.8), title, ha="left")
        sheet.grid(at, shape, lambda i, j, k=k: theme.hues[0] if k == 0 and (i, j) in hue else hue.get((i, j)))
        if k > 0:
            borders(sheet, at, shape, target, edge=theme.accent)
        if k < 2:
            borders(sheet, at, shape, source)
    return sheet.figure


def pencils(theme: Theme) -> Figure:
    """The grids that a transform of both dimensions of a matrix over 2 x 2 workers goes through."""
    shape, grid = (8, 9), (2, 2)
    large = (100 * shape[0], 100 * shape[1])  # a small matrix would be gathered on one worker
    task = Task((0, 1), None, None, large, large)
    stages = plan(task, grid, grid)
    sheet = Sheet(theme, 12.2 * len(stages), 11)
    for k, stage in enumerate(stages):
        at = (0.3 + 12.2 * k, 1.8)
        done = " and ".join("rows" if d else "columns" for d in stage.dims)
        sheet.text(
            (at[0], 0.8), f"{stage.shape[0]} × {stage.shape[1]}{': transform ' + done if done else ''}", ha="left"
        )
        owner = {}
        for rank, rows, columns in blocks(shape, (stage.shape[0], stage.shape[1])):
            owner.update(dict.fromkeys(product(range(*rows), range(*columns)), rank))
        sheet.grid(at, shape, lambda i, j, owner=owner: theme.hues[owner[i, j]])
        borders(sheet, at, shape, (stage.shape[0], stage.shape[1]))
        if k + 1 < len(stages):
            sheet.arrow((at[0] + 9.4, at[1] + 4), (at[0] + 11.8, at[1] + 4))
    return sheet.figure


def windows(n: int, workers: int, window: _core.Window) -> Callable[[Theme], Figure]:
    """The elements that workers hold before and after the exchange for sliding windows."""

    def draw(theme: Theme) -> Figure:
        total = window.outputs(n)
        outputs = [_core.balanced_block(total, workers, w) for w in range(workers)]
        reads = [window.reads(n, span) for span in outputs]
        low, high = min(0, *(r[0] for r in reads)), max(n, *(r[1] for r in reads))
        left = 5.6 - low
        sheet = Sheet(theme, left + high + 4.4, 2.4 + 1.55 * workers)
        owner = {i: w for w in range(workers) for i in range(*_core.balanced_block(n, workers, w))}

        def row(y: float, span: Span, own: Span | None) -> None:
            for i in range(*span):
                inside = i in owner
                sheet.cell((left + i, y), (1, 1), theme.hues[owner[i]] if inside else theme.blank)
                sheet.text((left + i + 0.5, y + 0.5), str(i) if inside else "·", SMALL)
            if own is not None and own[0] < own[1]:
                sheet.cell((left + own[0], y), (own[1] - own[0], 1), None, theme.ink, 1.8)

        sheet.text((0.3, 0.9), "input", ha="left")
        row(0.4, (0, n), None)
        borders(sheet, (left, 0.4), (1, n), (1, workers), line=1.8)
        sheet.text((left + high + 0.6, 0.9), "computes", ha="left")
        for w in range(workers):
            y = 2.35 + 1.55 * w
            own_block = _core.balanced_block(n, workers, w)
            kept = (max(own_block[0], reads[w][0]), min(own_block[1], reads[w][1]))
            sheet.text((0.3, y + 0.5), f"worker {w} reads", ha="left")
            row(y, reads[w], kept)
            computed = " ".join(map(str, range(*outputs[w])))
            sheet.text((left + high + 0.6, y + 0.5), computed or "none", ha="left")
        return sheet.figure

    return draw


def linear(theme: Theme) -> Figure:
    """A linear layer over a 2 x 3 partition of the weight."""
    sheet = Sheet(theme, 20.4, 11.3)
    wide, high, at = 3.4, 2.3, (0.3, 5.4)
    rows, columns = 2, 3
    for j in range(columns):
        x = at[0] + j * wide
        sheet.cell((x, 1.6), (wide, 1), theme.hues[j], theme.ink, 1.3)
        sheet.text((x + wide / 2, 2.1), f"$x_{j}$")
        sheet.arrow((x + wide / 2, 2.9), (x + wide / 2, at[1] - 0.3))
    sheet.text((at[0], 0.8), "$P_x$: 1 × 3", ha="left")
    sheet.text((at[0] + wide * 1.5 + 0.3, 3.9), "Broadcast", SMALL, ha="left")
    sheet.text((at[0], at[1] + rows * high + 0.8), "$P_W$: 2 × 3", ha="left")
    for i, j in product(range(rows), range(columns)):
        corner = (at[0] + j * wide, at[1] + i * high)
        sheet.cell(corner, (wide, high), theme.hues[j], theme.ink, 1.3)
        name = f"$x_{j} W_{{{i}{j}}}^T$" + (f" $+\\, b_{i}$" if j == 0 else "")
        sheet.text((corner[0] + wide / 2, corner[1] + high / 2), name)
    right = at[0] + columns * wide
    left = right + 2.4
    for i in range(rows):  # along the row, then up to its block of y
        x, y = left + i * wide, at[1] + i * high + high / 2
        sheet.cell((x, 1.6), (wide, 1), theme.hues[3 + i], theme.ink, 1.3)
        sheet.text((x + wide / 2, 2.1), f"$y_{i}$")
        sheet.line((right + 0.3, y), (x + wide / 2, y))
        sheet.arrow((x + wide / 2, y), (x + wide / 2, 2.7))
    sheet.text((right + 0.3, at[1] + high / 2 - 0.6), "SumReduce", SMALL, ha="left")
    sheet.text((left, 0.8), "$P_y$: 1 × 2", ha="left")
    return sheet.figure


def layers(theme: Theme) -> Figure:
    """The folders of the source; each folder is above the folders that it may use."""
    rows: Sequence[tuple[str, str, str]] = [
        ("python/distdl", "layers, partitions, agreement on what is constructed", "torch, mpi4py, numpy"),
        ("src/bindings", "the module distdl._core", "pybind11, mpi4py"),
        ("src/autograd", "autograd nodes of operators, losses and softmax", "torch"),
        ("src/operators", "linear operators and their adjoints, on tensors", "torch (ATen)"),
        ("src/agreement", "what the ranks of a call agree on before data moves", "torch (ATen)"),
        ("src/kernels", "memory, copies, sums and norms on one rank", "torch (ATen)"),
        ("src/comm", "communicators, votes, errors, progress thread, watchdog", "MPI"),
        ("src/geometry", "blocks, grids, matching rules, windows, exchange plans", "the standard library"),
        ("src/base", "texts, hashes, random words, kinds of errors", "the standard library"),
    ]
    sheet = Sheet(theme, 26.8, 2.15 * len(rows) + 0.8)
    sheet.text((20.7, 0.6), "also sees", SMALL, ha="left")
    for k, (name, what, sees) in enumerate(rows):
        y = 1.1 + 2.15 * k
        box = {"boxstyle": "round,pad=0,rounding_size=0.25", "linewidth": 1.1, "edgecolor": theme.ink}
        sheet.axes.add_patch(
            FancyBboxPatch((0.3, y), 19.8, 1.6, facecolor=theme.hues[(0, 4, 5, 2, 1, 3)[k % 6]], **box)
        )
        sheet.text((0.8, y + 0.8), name, LARGE, ha="left", family="monospace")
        sheet.text((6.6, y + 0.8), what, ha="left")
        sheet.text((20.7, y + 0.8), sees, ha="left")
        if k + 1 < len(rows):
            sheet.arrow((10, y + 1.62), (10, y + 2.13))
    return sheet.figure


PICTURES: dict[str, Callable[[Theme], Figure]] = {
    "balanced": balanced,
    "matching": matching,
    "repartition": repartition,
    "halo": windows(11, 4, _core.Window(3, 1, (1, 1))),
    "halo_wide": windows(7, 4, _core.Window(7, 1, (3, 3))),
    "halo_stride": windows(11, 4, _core.Window(2, 2)),
    "pencils": pencils,
    "linear": linear,
    "replicas": charts.replicas,
    "start_wait": charts.start_wait,
    "vote": charts.vote,
    "layers": layers,
    "scaling": charts.scaling,
}


def draw_all(folder: Path) -> None:
    """Write all pictures. A file that would not change is not written, so that Sphinx does not read it again."""
    folder.mkdir(parents=True, exist_ok=True)
    with mpl.rc_context({"svg.hashsalt": "distdl", "mathtext.fontset": "dejavusans"}):
        for (name, draw), theme in product(PICTURES.items(), (LIGHT, DARK)):
            drawn = io.StringIO()
            draw(theme).savefig(drawn, format="svg", transparent=True, metadata={"Date": None})
            path = folder / f"{name}-{theme.name}.svg"
            if not path.exists() or path.read_text() != drawn.getvalue():
                path.write_text(drawn.getvalue())


if __name__ == "__main__":
    draw_all(Path(sys.argv[1]))

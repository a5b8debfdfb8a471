"""The tables and the plot of the page on performance, made from the files of the benchmarks in docs/figures."""

import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

here = Path(__file__).parent
sys.path.insert(0, str(here.parent / "benchmarks"))

from plot import plot  # noqa: E402

FIGURES = here / "figures"
Row = dict[str, Any]


def times(rows: Sequence[Row]) -> str:
    """For each primitive, direction and size: microseconds, and the ratio to the reference."""
    sizes = sorted({row["bytes"] for row in rows})
    lines: dict[tuple[str, str], dict[int, str]] = {}
    for row in rows:
        reference, ratio = next(iter(row["ratio"].items()))
        what = f"{row['primitive']} / {reference}", row["direction"]
        lines.setdefault(what, {})[row["bytes"]] = _marked(f"{1e6 * row['median']['distdl']:,.0f} ({ratio:.2f})", row)
    titles = ["", "", *(f"{size >> 10} KiB" if size < 1 << 20 else f"{size >> 20} MiB" for size in sizes)]
    return _table(titles, ([*what, *(cells.get(size, "") for size in sizes)] for what, cells in lines.items()))


def set_up(rows: Sequence[Row]) -> str:
    """Microseconds to construct an operator and call it for the first time."""
    lines = (
        [row["primitive"], f"{1e6 * row['first']:.0f}", _marked(f"{1e6 * row['median']:.0f}", row)] for row in rows
    )
    return _table(["", "first", "median"], lines)


def peak(rows: Sequence[Row]) -> str:
    """MiB that a call needs at its peak."""

    def line(row: Row) -> list[str]:
        growth, result, message = (f"{row[name] / (1 << 20):.1f}" for name in ("growth", "result", "message"))
        return [row["primitive"], row["direction"], _marked(growth, row), result, message]

    return _table(["", "", "growth", "result", "message"], map(line, rows))


def overlap(rows: Sequence[Row]) -> str:
    """Milliseconds of the four programs, and the share of the communication that is hidden."""

    def line(row: Row) -> list[str]:
        milliseconds = [f"{1e3 * seconds:.1f}" for seconds in row["median"].values()]
        return [
            str(row["cores"]),
            row["overlap"],
            row["direction"],
            *milliseconds,
            _marked(f"{row['hidden']:.0%}", row),
        ]

    programs = [name.replace("_", " ") for name in rows[0]["median"]]
    return _table(["cores", "", "", *programs, "hidden"], map(line, rows))


def convolution(rows: Sequence[Row]) -> str:
    """Milliseconds of a layer and of its references, how much faster it is, and the share of the exchange."""

    def line(row: Row) -> list[str]:
        milliseconds = [f"{1e3 * seconds:,.1f}" for seconds in row["median"].values()]
        speed_up = [f"{ratio:.2f}" for ratio in row["speed-up"]]
        what = [row["layer"], str(row["side"]), row["direction"]]
        return [*what, *milliseconds, *speed_up, _marked(f"{row['exchange']:.1%}", row)]

    titles = ["", "side", "", *rows[0]["median"], "speed-up", "over 2 threads", "exchange"]
    return _table(titles, map(line, rows))


def convolution_memory(rows: Sequence[Row]) -> str:
    """MiB that forward and backward need, and their ratio to the sequential layer's."""

    def line(row: Row) -> list[str]:
        mebibytes = [f"{row[name] / (1 << 20):,.1f}" for name in ("distdl", "1 thread", "halos")]
        return [
            row["layer"],
            str(row["side"]),
            row["what"],
            *mebibytes,
            _marked(f"{row['distdl'] / row['1 thread']:.2f}", row),
        ]

    return _table(["", "side", "", "distdl", "sequential", "halos", "ratio"], map(line, rows))


def machine(facts: dict[str, Any]) -> str:
    """The machine and the versions on which the figures depend, in a line."""
    return "; ".join(f"{name} {fact}" for name, fact in facts.items()) + "\n"


def write_all(folder: Path) -> None:
    """Write the tables as reStructuredText and the plot as SVG. Files that would not change are not written."""
    folder.mkdir(parents=True, exist_ok=True)
    primitives, shared, wire, layers = (
        json.loads((FIGURES / f"{name}.json").read_text())
        for name in ("primitives", "overlap", "two_hosts", "convolution")
    )
    parts = {
        "machine": machine(primitives["machine"]),
        "times": times(primitives["times"]),
        "set_up": set_up(primitives["set-up"]),
        "peak": peak(primitives["peak"]),
        "overlap": overlap(shared["overlap"]),
        "two_hosts": overlap(wire["overlap"]),
        "convolution": convolution(layers["times"]),
        "convolution_memory": convolution_memory(layers["memory"]),
    }
    for name, text in parts.items():
        path = folder / f"performance-{name}.rst"
        if not path.exists() or path.read_text() != text:
            path.write_text(text)
    plot(primitives["times"], folder / "performance.svg")


def _marked(text: str, row: Row) -> str:
    """The text, with a cross if the goal is not met."""
    return text if row["met"] or not row["goal"] else f"{text} ✗"


def _table(titles: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    rows = "".join("   " + ", ".join(f'"{cell}"' for cell in line) + "\n" for line in [titles, *lines])
    return f".. csv-table::\n   :header-rows: 1\n\n{rows}"


if __name__ == "__main__":
    write_all(Path(sys.argv[1]))

"""One table of everything that has a goal, from what the benchmarks left in a folder: see README.md.

python benchmarks/goals.py docs/figures
"""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from limits import LIMITS, limit
from report import Row, size_text


class Line(NamedTuple):
    """A row: what was measured, its median, what that is relative to the reference, and how that ended."""

    what: str
    direction: str
    size: str
    median: str
    ratio: str
    goal: str
    limit: str  # empty if the goal is met

    def text(self) -> str:
        """As it is printed."""
        end = f"not met: {self.limit}" if self.limit else "met"
        return (
            f"{self.what:32} {self.direction:9} {self.size:>8} {self.median:>12} {self.ratio:>7}  {self.goal:18} {end}"
        )


def lines(folder: Path) -> Iterator[Line]:
    """All rows with a goal."""
    figures = {
        name: json.loads((folder / f"{name}.json").read_text()) for name in ("primitives", "overlap", "two_hosts")
    }
    for row in figures["primitives"]["times"]:
        if row["goal"]:
            (ratio, *_) = row["ratio"].values()
            yield _line("times", row, row["primitive"], row["bytes"], row["median"]["distdl"], f"{ratio:.2f}")
    for row in figures["primitives"]["set-up"]:
        yield _line("set-up", row, f"{row['primitive']}, set-up", 0, max(row["first"], row["median"]), "")
    for row in figures["primitives"]["peak"]:
        ratio = row["growth"] / max(row["result"] + row["message"], 1)
        yield _line("peak", row, f"{row['primitive']}, memory", row["bytes"], None, f"{ratio:.2f}")
    for name, where in (("overlap", "shared memory"), ("two_hosts", "wire")):
        for row in figures[name]["overlap"]:
            if row["goal"]:
                what = f"{row['overlap']}, hidden, {where}"
                yield _line("overlap", row, what, row["bytes"], row["median"]["overlapped"], f"{row['hidden']:.0%}")
    yield from _geometry((folder / "geometry.txt").read_text())


def _line(table: str, row: Row, what: str, size: int, seconds: float | None, ratio: str) -> Line:
    size_column = size_text(size) if size else ""
    median = "" if seconds is None else f"{1e6 * seconds:,.1f} us"
    reason = "" if row["met"] else limit(table, row)
    return Line(what, row.get("direction", ""), size_column, median, ratio, row["goal"], reason)


def _geometry(text: str) -> Iterator[Line]:
    """Its program prints a header, a line for each plan, and the goals."""
    _, *plans, goals = text.splitlines()
    for plan in plans:
        words = plan.removesuffix("  not met").split()
        what, microseconds = " ".join(words[:-3]), float(words[-3])
        reason = "unknown" if plan.endswith("not met") else ""
        yield Line("Plan of one worker", "", "", f"{microseconds:,.1f} us", "", what, reason)
    assert goals.startswith("goals:")


def main() -> None:
    """Print the table, and below it what limits the rows that miss their goals."""
    rows = list(lines(Path(sys.argv[1])))
    header = Line("", "", "size", "median", "ratio", "goal", "").text().removesuffix("met").rstrip()
    print(header, "-" * 100, *(row.text() for row in rows), sep="\n")
    missed = [row.limit for row in rows if row.limit]
    print(f"\n{len(rows) - len(missed)} of {len(rows)} goals are met.")
    for name in LIMITS:
        if name in missed:
            print(
                f"\n{name} ({missed.count(name)} rows):",
                *textwrap.wrap(" ".join(LIMITS[name].split()), 118),
                sep="\n  ",
            )


if __name__ == "__main__":
    main()

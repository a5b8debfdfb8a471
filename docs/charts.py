"""Charts of what happens in time, of replicas, and of what limits a step."""

from itertools import groupby
from pathlib import Path

from drawing import SMALL, Sheet, Theme
from matplotlib.figure import Figure

RANKS = 3
BETWEEN = 5.2  # units between the lines of two ranks
TRAVEL = 3.4  # units of time that a message takes


def vote(theme: Theme) -> Figure:
    """A halo exchange whose data goes ahead of its vote, and the same where a rank holds its data back."""
    sheet = Sheet(theme, 31.4, 16.0)
    _vote(sheet, 2.0, "All ranks send their data ahead", [True, True, True], ["the halos are there"])
    steps = ["early messages are dropped", "the new structure is gathered", "the halos are sent"]
    _vote(sheet, 18.6, "Rank 2 has a new shape, and does not", [True, True, False], steps)
    x, y = 1.0, 13.6
    sheet.arrow((x, y), (x + 2.2, y), theme.accent, linewidth=1.8)
    sheet.text((x + 2.6, y), "halo", SMALL, ha="left")
    sheet.arrow((x, y + 1.2), (x + 2.2, y + 1.2), linewidth=0.8)
    sheet.text((x + 2.6, y + 1.2), "vote", SMALL, ha="left")
    sheet.cell((x + 5.9, y - 0.4), (0.5, 1.9), theme.faint, theme.ink)
    sheet.text((x + 6.8, y + 0.5), "the rank waits for votes", SMALL, ha="left")
    return sheet.figure


def _vote(sheet: Sheet, left: float, title: str, ahead: list[bool], steps: list[str]) -> None:
    begins = [2.9, 4.1, 3.4]
    votes = [begin + 0.8 for begin in begins]
    sheet.text((left - 1.6, 0.7), title, ha="left")
    at = [left + BETWEEN * rank for rank in range(RANKS)]
    knows = [max(votes[r] + (r != rank) * TRAVEL for r in range(RANKS)) for rank in range(RANKS)]
    top = max(knows) + 0.5
    for rank, x in enumerate(at):
        sheet.text((x, 1.9), f"rank {rank}", SMALL)
        sheet.line((x, 2.4), (x, top), color=sheet.theme.faint, zorder=0)
        sheet.cell((x - 0.25, votes[rank]), (0.5, knows[rank] - votes[rank]), sheet.theme.faint, sheet.theme.ink)
        for other in range(RANKS):
            side = 0.3 if other > rank else -0.3
            if other == rank:
                continue
            sheet.arrow((x + side, votes[rank]), (at[other] - side, votes[rank] + TRAVEL), linewidth=0.8)
            if abs(other - rank) == 1 and ahead[rank]:
                stop = (at[other] - side, begins[rank] + TRAVEL)
                sheet.arrow((x + side, begins[rank]), stop, sheet.theme.accent, linewidth=1.8)
    for number, step in enumerate(steps):
        hue = sheet.theme.hues[2 if number + 1 == len(steps) else 1]
        sheet.cell((left - 0.9, top + 1.4 * number), (BETWEEN * (RANKS - 1) + 1.8, 1.1), hue, sheet.theme.ink)
        sheet.text((at[1], top + 1.4 * number + 0.55), step, SMALL)


def start_wait(theme: Theme) -> Figure:
    """What the program and the progress thread do between start and wait, forward and backward."""
    sheet = Sheet(theme, 33.0, 12.4)
    forward = (("start", 3.0, 3), ("compute", 9.0, 1), ("wait", 3.0, 4))
    backward = (("backward of wait", 4.6, 4), ("backward of compute", 9.0, 1), ("backward of start", 4.6, 3))
    for top, title, parts, what in (
        (1.0, "forward", forward, "the data of x travels"),
        (7.4, "backward", backward, "the data of the gradient travels"),
    ):
        sheet.text((0.4, top), title, ha="left")
        sheet.text((0.4, top + 1.7), "program", SMALL, ha="left")
        sheet.text((0.4, top + 3.9), "progress thread", SMALL, ha="left")
        x, edges = 10.0, []
        for name, width, hue in parts:
            sheet.cell((x, top + 1.0), (width, 1.4), theme.hues[hue], theme.ink)
            sheet.text((x + width / 2, top + 1.7), name, SMALL)
            edges.append((x, x + width))
            x += width
        begin, end = edges[0][1] - 0.5, edges[2][0] + 0.5
        sheet.cell((begin, top + 3.2), (end - begin, 1.4), theme.hues[0], theme.ink)
        sheet.text(((begin + end) / 2, top + 3.9), what, SMALL)
        sheet.arrow((begin + 0.02, top + 2.4), (begin + 0.02, top + 3.2))
        sheet.arrow((end, top + 3.2), (end, top + 2.4))
        sheet.text((x + 0.6, top + 1.7), "y" if title == "forward" else "gradient of x", SMALL, ha="left")
        sheet.text((9.6, top + 1.7), "x" if title == "forward" else "gradient of y", SMALL, ha="right")
    return sheet.figure


def replicas(theme: Theme) -> Figure:
    """Two replicas of a model in four blocks each: halos within a replica, sums of gradients between replicas."""
    sheet = Sheet(theme, 27.0, 11.8)
    side, gap, left = 3.4, 2.0, 6.6
    for replica in range(2):
        top = 1.9 + 6.2 * replica
        sheet.text((0.4, top + 1.2), f"replica {replica}", ha="left")
        sheet.text((0.4, top + 2.2), f"samples {3 * replica} to {3 * replica + 2}", SMALL, ha="left")
        for block in range(4):
            x = left + block * (side + gap)
            sheet.cell((x, top), (side, side), theme.hues[block], theme.ink, 1.3)
            sheet.text((x + side / 2, top + 1.2), f"rank {4 * replica + block}")
            sheet.text((x + side / 2, top + 2.3), f"block {block}", SMALL)
            if block < 3:
                sheet.arrow(
                    (x + side + 0.1, top + side / 2), (x + side + gap - 0.1, top + side / 2), arrowstyle="<|-|>"
                )
                if replica == 0:
                    sheet.text((x + side + gap / 2, top + side / 2 - 0.7), "halo", SMALL)
            if replica == 0:
                middle = x + side / 2
                sheet.arrow(
                    (middle, top + side + 0.1), (middle, top + 6.1), theme.accent, arrowstyle="<|-|>", linewidth=1.8
                )
    sheet.text((left, 0.8), "$P_{replicas}$: 2 × 4, the first dimension counts replicas", ha="left")
    sheet.text((0.4, 1.9 + side + 1.4), "gradients, summed", SMALL, ha="left", color=theme.accent)
    return sheet.figure


def scaling(theme: Theme) -> Figure:
    """What a step of weak scaling consists of, for each network and number of ranks: see benchmarks/scaling.py."""
    lines = (Path(__file__).parent / "figures" / "scaling.txt").read_text().splitlines()[1:]
    rows = [line.rsplit(maxsplit=5) for line in lines if ", weak" in line]
    sheet = Sheet(theme, 33.0, 3.2 + 1.3 * len(rows) + 2.0 * len({row[0] for row in rows}))
    left, width, y = 4.2, 23.0, 1.6
    for i, part in enumerate(("computing", "bytes that travel", "messages that wait for each other")):
        sheet.cell((left + 7.2 * i, 0.5), (0.8, 0.8), theme.hues[i], theme.ink)
        sheet.text((left + 7.2 * i + 1.1, 0.9), part, SMALL, ha="left")
    for name, group in groupby(rows, lambda row: row[0]):
        y += 1.0
        sheet.text((0.4, y), name.removesuffix(", weak"), ha="left")
        y += 0.8
        for _, ranks, step, *parts in group:
            x, total = left, float(step)
            sheet.text((left - 0.4, y + 0.5), ranks, SMALL, ha="right")
            for hue, part in zip(theme.hues, parts, strict=False):
                sheet.cell((x, y), (width * float(part) / total, 1.0), hue, theme.ink)
                x += width * float(part) / total
            sheet.text((left + width + 0.5, y + 0.5), f"{total:,.0f} ms", SMALL, ha="left")
            y += 1.3
    return sheet.figure

"""Counts the bytes between hosts in a halo exchange, with ranks in order and as distdl.arrange orders them.

python benchmarks/hosts.py

By geometry alone, in one process: hosts are emulated. All faces between two blocks have the same size, 1 MiB each way.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from time import perf_counter

from distdl.partitions.placement import bytes_between, order_on_hosts

MIB = 1 << 20
CASES: list[tuple[int, int, Sequence[int]]] = [  # hosts, ranks of each, grid
    (4, 4, (4, 4)),
    (4, 4, (2, 2, 4)),
    (4, 4, (4, 2, 2)),
    (1024, 8, (16, 16, 32)),
    (1024, 8, (8, 32, 32)),
    (12500, 8, (50, 50, 40)),
]


def main() -> None:
    """Print a table: MiB between hosts, in order and arranged, and the seconds of arranging."""
    print(f"{'hosts':>6} {'ranks':>6}  {'grid':12} {'placed':12} {'in order':>9} {'arranged':>9}  less  seconds")
    for hosts, each, grid in CASES:
        ranks, ones = math.prod(grid), [MIB] * len(grid)
        for name, placed in (
            ("host by host", [rank // each for rank in range(ranks)]),
            ("in turns", [rank % hosts for rank in range(ranks)]),
        ):
            start = perf_counter()
            order = order_on_hosts(grid, placed, ones)
            seconds = perf_counter() - start
            before = bytes_between(grid, placed, ones) / MIB
            after = bytes_between(grid, [placed[rank] for rank in order], ones) / MIB
            text = " x ".join(map(str, grid))
            print(
                f"{hosts:6} {ranks:6}  {text:12} {name:12} {before:9.0f} {after:9.0f} {1 - after / before:5.0%} "
                f"{seconds:8.3f}"
            )


if __name__ == "__main__":
    main()

"""The table of misuses: Fourier transforms."""

from typing import Any

import torch

import distdl
from distdl import Partition
from distdl.fft import transforms
from support.misuses.table import Row, Wrong, grid_of, not_a_partition, not_a_tensor

# Functions of the same code run a part of the table, but for these.
IN_FULL = ("fft", "irfftn", "fftshift")


def rows() -> dict[str, Row]:
    """By public name."""
    table = {f"fft.{name}": transform(name) for name in transforms.__all__}
    table |= {f"fft.{name}": shift(name) for name in ("fftshift", "ifftshift")}
    table |= {f"fft.{name}": frequencies(name) for name in ("fftfreq", "rfftfreq")}
    for name, row in table.items():
        if name.removeprefix("fft.") not in IN_FULL:
            row.wrong = {argument: wrong[:1] for argument, wrong in row.wrong.items()}
    return table


def transform(name: str) -> Row:
    """A transform of a tensor in two dimensions."""
    several = name[-1] in "2n"
    size = "s" if several else "n"
    torchs = (TypeError, RuntimeError, IndexError, ValueError)

    def good(P: Partition) -> dict[str, Any]:
        return {"input": torch.ones(3, 4), "P_x": grid_of(P, 2)}

    def sizes(*values: Any) -> list[Any]:
        return [(value, value) if several and isinstance(value, int) else value for value in values]

    wrong = {
        "input": not_a_tensor(),
        "P_x": not_a_partition(),
        size: [Wrong(v, torchs, name) for v in sizes(0, -3, "a", 1.5, torch.ones(2))],
        "dim": [Wrong(v, torchs, name) for v in (7, -8, "a", 1.5, [0, 0], {})],
        "norm": [Wrong(v, torchs, name) for v in ("mean", 1, [1.0])],
        "out": [Wrong(v, TypeError, "P_out is a") for v in (3, "pencils", [0], torch.ones(2))],
        "parts": [Wrong(v, (TypeError, ValueError), "parts") for v in (0, -1, 1.5, None, "a")],
    }
    other = {size: (4, 4) if several else 4, "dim": (0, 1) if several else 0, "norm": "ortho", "parts": 2}
    other |= {"dim": (1, 0)} if several else {}
    return Row(getattr(distdl.fft, name), good, wrong, other)


def shift(name: str) -> Row:
    """A shift of a tensor in two dimensions."""
    return Row(
        getattr(distdl.fft, name),
        lambda P: {"input": torch.ones(3, 4), "P_x": grid_of(P, 2)},
        {
            "input": not_a_tensor(),
            "P_x": not_a_partition(),
            "dim": [Wrong(v, (TypeError, RuntimeError, IndexError), name) for v in (7, -8, "a", 1.5, {})],
        },
        {"dim": 0},
    )


def frequencies(name: str) -> Row:
    """The frequencies of a block, which are this rank's own business."""
    return Row(
        getattr(distdl.fft, name),
        lambda P: {"n": 9, "P_x": grid_of(P, 2)},
        {
            "P_x": not_a_partition(),
            "n": [Wrong(v, (TypeError, RuntimeError), ".") for v in ("a", 1.5, None)],
            "dim": [Wrong(2, IndexError, "dim=2")],
        },
        free=("d", "dtype", "device"),
        alone=True,
    )

"""The results of the training: a table on the screen, all figures as JSON, both loss curves as a picture."""

from __future__ import annotations

import argparse
import json
import platform
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from matplotlib.figure import Figure
from mpi4py import MPI

import distdl

if TYPE_CHECKING:
    from train import Run


def write(runs: dict[str, Run], args: argparse.Namespace, ranks: int) -> None:
    """Print the table, and write JSON and picture into the output folder. One rank calls this."""
    compared = compare(runs["distributed"], runs["sequential"]) if "sequential" in runs else {}
    print("\n" + table(runs, compared), flush=True)

    args.output.mkdir(parents=True, exist_ok=True)
    figures = args.output / f"figures-{ranks}-ranks.json"
    figures.write_text(json.dumps(as_json(runs, compared, args, ranks), indent=1) + "\n")
    picture = args.output / f"loss-{ranks}-ranks.png"
    plot(runs, ranks, picture)
    print(f"\nWritten: {figures} and {picture}", flush=True)


def compare(distributed: Run, sequential: Run) -> dict[str, float]:
    """The largest differences between the two runs."""

    def relative(value: torch.Tensor, expected: torch.Tensor) -> float:
        return ((value - expected).abs().max() / expected.abs().max()).item()

    epoch = sequential.steps_per_epoch
    losses = list(zip(distributed.losses, sequential.losses, strict=True))
    return {
        "first gradients, relative": max(
            relative(distributed.first_gradients[name], g) for name, g in sequential.first_gradients.items()
        ),
        "loss, first epoch": max(abs(loss - expected) for loss, expected in losses[:epoch]),
        "loss, whole training": max(abs(loss - expected) for loss, expected in losses),
        "final weights": max(
            (distributed.weights[name] - w).abs().max().item() for name, w in sequential.weights.items()
        ),
    }


def table(runs: dict[str, Run], compared: dict[str, float]) -> str:
    """Both runs side by side, and their differences."""
    rows = [
        ("loss, last epoch", lambda run: f"{run.last_epoch_loss():.9f}"),
        ("accuracy, training", lambda run: f"{run.training_accuracy:.2%}"),
        ("accuracy, held out", lambda run: f"{run.held_out_accuracy:.2%}"),
        ("seconds", lambda run: f"{run.seconds:.1f}"),
    ]
    lines = [f"{'':26}" + "".join(f"{name:>14}" for name in runs)]
    lines += [f"{label:26}" + "".join(f"{text(run):>14}" for run in runs.values()) for label, text in rows]
    if compared:
        lines.append("\nlargest difference of distributed and sequential")
        lines += [f"{label:26}{value:14.1e}" for label, value in compared.items()]
    return "\n".join(lines)


def as_json(
    runs: dict[str, Run], compared: dict[str, float], args: argparse.Namespace, ranks: int
) -> dict[str, object]:
    """All figures, with the options and versions on which they depend."""
    versions = {"distdl": distdl.__version__, "torch": torch.__version__, "python": platform.python_version(),
                "mpi": " ".join(MPI.Get_library_version().strip("\0\n ").splitlines()[0].split())}  # fmt: skip
    chosen = {name: value for name, value in vars(args).items() if name != "output"}
    results = {
        name: {
            "last_epoch_loss": run.last_epoch_loss(),
            "training_accuracy": run.training_accuracy,
            "held_out_accuracy": run.held_out_accuracy,
            "seconds": run.seconds,
            "steps_per_epoch": run.steps_per_epoch,
            "losses": run.losses,
        }
        for name, run in runs.items()
    }
    return {"ranks": ranks, "options": chosen, "versions": versions, "differences": compared, "runs": results}


def plot(runs: dict[str, Run], ranks: int, path: Path) -> None:
    """The loss of every step of both runs, and under it their difference."""
    both = len(runs) == 2
    figure = Figure(figsize=(7, 3 + 2 * both), layout="constrained")
    axes = figure.subplots(1 + both, 1, sharex=True, squeeze=False)
    for (name, run), style in zip(runs.items(), ({"linewidth": 3, "alpha": 0.4}, {"linewidth": 1}), strict=False):
        epochs = [(step + 1) / run.steps_per_epoch for step in range(len(run.losses))]
        label = f"distributed, ranks: {ranks}" if name == "distributed" else name
        axes[0, 0].semilogy(epochs, run.losses, label=label, **style)
    axes[0, 0].set_ylabel("cross entropy of the batch")
    axes[0, 0].legend()
    if both:
        pairs = zip(runs["distributed"].losses, runs["sequential"].losses, strict=True)
        axes[1, 0].plot(epochs, [abs(loss - expected) for loss, expected in pairs], ".", markersize=2)
        axes[1, 0].set_yscale("symlog", linthresh=1e-16)  # some differences are 0
        axes[1, 0].set_ylabel("difference")
    axes[-1, 0].set_xlabel("epoch")
    figure.savefig(path, dpi=150)

"""What the training programs of this folder share: options, a loop with a progress bar, a table and a picture."""

import argparse
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from matplotlib.figure import Figure
from tqdm import tqdm


def options(description, steps, **numbers):
    """The options of the command line; `more`: the further numbers of a program, with their defaults."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--steps", type=int, default=steps, help="of the training (default: %(default)s)")
    parser.add_argument(
        "--check", type=int, default=3, help="steps beside the sequential network (default: %(default)s)"
    )
    folder = Path(__file__).resolve().parents[2] / "build" / "networks"
    parser.add_argument("--output", type=Path, default=folder, help="folder of the picture (default: build/networks)")
    for name, default in numbers.items():
        parser.add_argument(
            f"--{name.replace('_', '-')}", type=type(default), default=default, help="default: %(default)s"
        )
    return parser.parse_args()


@dataclass
class Run:
    """A network's losses, and the seconds of its training."""

    losses: list[float]
    seconds: float


def train(
    network, optimizer, loss_of, batches, steps, title=None, *, report=torch.Tensor.detach, before=(), after=None
):
    """Some steps. Every rank of a distributed network calls this; the one that passes a title shows the progress.

    `report`: makes the loss that is kept of the loss of a batch. `before`: the losses of steps that are done already.
    `after`: called with all losses after each step.
    """
    losses, start, batch = list(before), time.perf_counter(), None
    with tqdm(total=steps, initial=len(losses), desc=title, disable=title is None) as bar:
        while len(losses) < steps:
            for batch in batches:
                optimizer.zero_grad()
                loss = loss_of(network, batch)
                loss.backward()
                optimizer.step()
                losses.append(report(loss).item())
                bar.set_postfix(loss=f"{losses[-1]:.4f}", refresh=False)
                bar.update()
                if after is not None:
                    after(losses)
                if len(losses) == steps:
                    break
    return Run(losses, time.perf_counter() - start)


def compare(expected, measured):
    """The largest relative difference of the losses of two runs. Raises if it is more than rounding."""
    apart = max(abs(a - b) / abs(a) for a, b in zip(expected.losses, measured.losses, strict=True))
    if not apart < 1e-10:
        raise SystemExit(f"the losses differ by {apart:.1e}, which is more than rounding: {expected} {measured}")
    return apart


def table(rows):
    """Names and values, one below the other."""
    width = max(map(len, rows))
    print("\n" + "\n".join(f"{name:{width}}  {value}" for name, value in rows.items()), flush=True)


def panels(rows, columns, **options):
    """A figure, and its axes as an array."""
    figure = Figure(layout="constrained", **options)
    return figure, figure.subplots(rows, columns, squeeze=False)


def plot_losses(axes, losses):
    """The loss of each step, and its mean over twenty steps."""
    axes.plot(losses, linewidth=0.5, alpha=0.5, label="of each step")
    window = min(20, len(losses))
    means = torch.tensor(losses).unfold(0, window, 1).mean(1)
    axes.plot(range(window - 1, len(losses)), means, linewidth=1.5, label=f"mean of {window} steps")
    axes.set(xlabel="step", ylabel="loss")
    axes.legend()


def save(figure, folder, name):
    """Write a picture, and say where it is."""
    folder.mkdir(parents=True, exist_ok=True)
    figure.savefig(folder / name, dpi=120)
    print(f"\nWritten: {folder / name}", flush=True)

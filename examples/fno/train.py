"""Trains a Fourier neural operator on flows in blocks, beside its sequential twin on the same batches.

    mpiexec -n 4 python -m mpi4py examples/fno/train.py [--epochs 15] [--help]

The flows are computed by flow.py. Everything is in float64: the two networks differ by rounding alone. The folder
build/fno receives the figures as JSON and pictures of predictions beside the truth.
"""

import argparse
import json
import time
from pathlib import Path

import flow
import torch
from model import distributed, in_one_process
from mpi4py import MPI
from tqdm import tqdm

import distdl


def blocks(P_x, whole):
    """This worker's balanced block of fields that all ranks have, in rows and columns."""
    for d in (2, 3):
        sizes = [len(range(i, whole.shape[d], P_x.shape[d])) for i in range(P_x.shape[d])]
        whole = whole.split(sizes, d)[P_x.index[d]]
    return whole


def relative_error(prediction, truth):
    """The mean relative error of fields in the L2 norm."""
    return float(((prediction - truth).flatten(1).norm(dim=1) / truth.flatten(1).norm(dim=1)).mean())


def train(network, criterion, batches, epochs, label, shown):
    """The losses of all steps, and seconds."""
    optimizer = torch.optim.Adam(network.parameters(), 5e-3)
    start, losses = time.perf_counter(), []
    for _ in tqdm(range(epochs), label, disable=not shown):
        for x, y in batches:
            optimizer.zero_grad()
            loss = criterion(network(x), y)
            loss.backward()
            optimizer.step()
            losses.append(float(loss.detach()))
    return losses, time.perf_counter() - start


def draw(path, first, truth, predictions):
    """First field, truth, prediction and ten times the error of a few flows, in one scale for each flow."""
    import matplotlib as mpl

    mpl.use("agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(3, 4, figsize=(10, 7.6), layout="constrained")
    titles = ("vorticity at the start", "truth", "prediction", "10 x (prediction - truth)")
    for row, fields in zip(axes, zip(first, truth, predictions, strict=True), strict=True):
        shown = (*(field[0] for field in fields), 10 * (fields[2] - fields[1])[0])
        bound = float(torch.cat(fields[:2]).abs().max())
        for axis, field, title in zip(row, shown, titles, strict=True):
            image = axis.imshow(field.T, origin="lower", cmap="RdBu_r", vmin=-bound, vmax=bound)
            axis.set(xticks=[], yticks=[], title=title)
        figure.colorbar(image, ax=row.tolist())
    figure.savefig(path, dpi=110)


def main():
    """Train both, compare them, and write what came out."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--flows", type=int, default=92, help="of which 12 are held out")
    parser.add_argument("--points", type=int, default=32, help="along each dimension")
    parser.add_argument("--seconds", type=float, default=1.0, help="of the flow that the network predicts")
    options = parser.parse_args()
    P_world = distdl.Partition(MPI.COMM_WORLD)
    rows = 2 if P_world.size % 2 == 0 and P_world.size > 2 else 1
    P_x = P_world.create_cartesian_topology_partition([1, 1, rows, P_world.size // rows])
    is_first = P_world.rank == 0

    first, last = flow.make(options.flows, options.points, options.seconds)
    scale = float(last[:-12].std())
    begun = first[:, :1] / scale  # to be compared with the result
    first, last = first / first[:-12].std((0, 2, 3), keepdim=True), last / scale
    train_pairs = list(zip(first[:-12].split(10), last[:-12].split(10), strict=True))
    torch.manual_seed(0)
    network = distributed(P_x)
    criterion = distdl.nn.DistributedMSELoss(P_x)
    own = [(blocks(P_x, x), blocks(P_x, y)) for x, y in train_pairs]
    losses, seconds = train(network, criterion, own, options.epochs, "distributed", is_first)
    P_one = P_world.create_partition_inclusive([0]).create_cartesian_topology_partition([1, 1, 1, 1])
    with torch.no_grad():
        predictions = distdl.functional.repartition(network(blocks(P_x, first[-12:])), P_x, P_one)
    state = distdl.sequential_state_dict(network)
    if is_first:
        torch.manual_seed(0)
        twin = in_one_process()
        expected, twin_seconds = train(twin, torch.nn.functional.mse_loss, train_pairs, options.epochs, "twin", True)
        with torch.no_grad():
            of_twin = twin(first[-12:])
        figures = {
            "ranks": P_world.size,
            "partition": [int(p) for p in P_x.shape],
            "error of the prediction": relative_error(predictions, last[-12:]),
            "error of the twin's": relative_error(of_twin, last[-12:]),
            "error of no change": relative_error(begun[-12:], last[-12:]),
            "loss, last step": losses[-1],
            "loss of the twin": expected[-1],
            "seconds": seconds,
            "seconds of the twin": twin_seconds,
            "largest difference, losses": max(abs(a - b) for a, b in zip(losses, expected, strict=True)),
            "largest difference, predictions": float((predictions - of_twin).abs().max()),
            "largest difference, weights": max(float((state[k] - v).abs().max()) for k, v in twin.state_dict().items()),
        }
        folder = Path("build/fno")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"figures-{P_world.size}.json").write_text(json.dumps(figures, indent=1))
        draw(folder / f"flows-{P_world.size}.png", begun[-3:], last[-3:], predictions[-3:])
        for name, value in figures.items():
            print(f"{name:34} {value:.3g}" if isinstance(value, float) else f"{name:34} {value}")


if __name__ == "__main__":
    main()

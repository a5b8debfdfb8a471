"""Trains a 3-d U-Net to find faults in seismic volumes that are split over all ranks.

    mpiexec -n 2 python -m mpi4py examples/networks/train_unet.py

Each rank reads its part of each volume. First a few steps in float64, beside the sequential network on whole volumes:
the losses are equal up to rounding. Then the training in float32. At the end a table, and a picture of a volume that
the network has not seen. The volumes are computed: nothing is downloaded.
"""

import torch
from mpi4py import MPI
from seismic import Volumes
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader
from unet import SequentialUNet3d, UNet3d

import distdl
import distdl.nn as dnn
from training import compare, options, panels, plot_losses, save, table, train

CHANNELS, CLASSES = 8, 2
WEIGHTS = [0.15, 0.85]  # few points are on a fault


def make(network, dtype):
    """A network with the weights of seed 0, and its optimizer."""
    torch.manual_seed(0)
    network = network().to(dtype)
    return network, torch.optim.Adam(network.parameters(), lr=0.005)


def check(P_x, P_labels, chosen):
    """How far the losses of both networks are apart, in float64."""
    weights = torch.tensor(WEIGHTS, dtype=torch.float64)
    whole = DataLoader(Volumes(chosen.check, chosen.size, torch.float64))
    twin = make(lambda: SequentialUNet3d(CHANNELS, CLASSES), torch.float64)
    expected = train(*twin, lambda net, batch: cross_entropy(net(batch[0]), batch[1], weights), whole, chosen.check)
    criterion = dnn.DistributedCrossEntropyLoss(P_x, weight=weights)
    model = make(lambda: UNet3d(P_x, CHANNELS, CLASSES), torch.float64)
    parts = blocks(P_x, P_labels, chosen, chosen.check, torch.float64)
    return compare(expected, train(*model, lambda net, batch: criterion(net(batch[0]), batch[1]), parts, chosen.check))


def blocks(P_x, P_labels, chosen, count, dtype, first=0, **options):
    """A loader of this rank's parts of volumes."""
    slices = P_x.slices((1, 1) + (chosen.size,) * 3)[2:]
    return distdl.data.loader(Volumes(count, chosen.size, dtype, first, slices), (P_x, P_labels), **options)


@torch.no_grad()
def evaluate(P_world, P_x, model, held_out):
    """Precision and recall of the predicted faults over all ranks, and a volume."""
    counts, shown = torch.zeros(3), None
    model.eval()
    for images, faults in held_out:
        probability = model(images).softmax(1)[:, 1:]
        faulty = (probability > 0.5).squeeze(1)
        counts += torch.tensor([(faulty & (faults == 1)).sum(), faulty.sum(), faults.sum()])
        if shown is None:  # its parts together, on rank 0
            P_root = P_world.create_partition_inclusive([0]).create_cartesian_topology_partition([1] * 5)
            parts = (images, faults.unsqueeze(1).to(images.dtype), probability)
            shown = [distdl.functional.repartition(part, P_x, P_root) for part in parts]
    right, positive, true = P_world.allreduce_data(counts.double().numpy())
    return right / max(positive, 1), right / max(true, 1), shown


def picture(chosen, run, shown):
    """Three sections of an unseen volume, and the losses."""
    figure, axes = panels(1, 4, figsize=(13, 3.4))
    names = ("an unseen volume", "its faults", "probability of a fault")
    middle = chosen.size // 2
    for panel, name, part in zip(axes[0], names, shown, strict=False):
        panel.imshow(part[0, 0, :, middle].numpy(), cmap="gray" if part is shown[0] else "magma")
        panel.set(title=name, xlabel="x", ylabel="depth")
    plot_losses(axes[0, 3], run.losses)
    save(figure, chosen.output, "unet.png")


def main():
    """Compare, train, evaluate."""
    chosen = options(__doc__.partition("\n")[0], 200, size=32, volumes=100)
    P_world = distdl.Partition(MPI.COMM_WORLD)
    P_x = P_world.create_cartesian_topology_partition([1, 1, 1, 1, P_world.size])
    P_labels = P_world.create_cartesian_topology_partition([1, 1, 1, P_world.size])
    apart = check(P_x, P_labels, chosen)

    model, optimizer = make(lambda: UNet3d(P_x, CHANNELS, CLASSES), torch.float32)
    criterion = dnn.DistributedCrossEntropyLoss(P_x, weight=torch.tensor(WEIGHTS))
    training = blocks(P_x, P_labels, chosen, chosen.volumes, torch.float32, first=100, shuffle=True)
    title = "U-Net" if P_world.rank == 0 else None
    run = train(model, optimizer, lambda net, batch: criterion(net(batch[0]), batch[1]), training, chosen.steps, title)
    held_out = blocks(P_x, P_labels, chosen, 5, torch.float32, first=10_000)
    precision, recall, shown = evaluate(P_world, P_x, model, held_out)
    if P_world.rank == 0:
        table({
            "ranks": P_world.size,
            "difference from the sequential network": f"{apart:.1e}",
            "loss, first and last step": f"{run.losses[0]:.4f}, {run.losses[-1]:.4f}",
            "points called faults that are": f"{precision:.1%}",
            "points on faults that are found": f"{recall:.1%}",
            "seconds": f"{run.seconds:.1f}",
        })  # fmt: skip
        picture(chosen, run, shown)


if __name__ == "__main__":
    main()

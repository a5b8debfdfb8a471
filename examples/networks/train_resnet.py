"""Trains a ResNet-18 on handwritten digits that are split over all ranks in blocks of rows.

    mpiexec -n 2 python -m mpi4py examples/networks/train_resnet.py

Rank 0 has the 1,797 digits that come with scikit-learn; the loader sends the blocks of each batch to the other ranks.
First a few steps in float64, beside the sequential network: the losses are equal up to rounding. Then the training in
float32. At the end a table, and a picture of digits that the network has not seen.
"""

import torch
from mpi4py import MPI
from resnet import ResNet18, SequentialResNet18
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import distdl
import distdl.nn as dnn
from training import compare, options, panels, plot_losses, save, table, train

WIDTH, SIDE, TRAINING = 8, 32, 1437


def digits(dtype):
    """Images (N, 3, 32, 32) and labels (N,): those for training, and the others."""
    from sklearn.datasets import load_digits  # here, because rank 0 alone has the data

    bunch = load_digits()
    images = (torch.from_numpy(bunch.images).to(dtype).unsqueeze(1) / 16 - 0.305) / 0.376
    images = torch.nn.functional.interpolate(images, size=(SIDE, SIDE), mode="bilinear").expand(-1, 3, -1, -1)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    images, labels = images[order], torch.from_numpy(bunch.target)[order]
    return TensorDataset(images[:TRAINING], labels[:TRAINING]), TensorDataset(images[TRAINING:], labels[TRAINING:])


def make(network, dtype):
    """A network with the weights of seed 0, its optimizer, and the loss of a batch."""
    torch.manual_seed(0)
    network = network().to(dtype)
    return network, torch.optim.AdamW(network.parameters(), lr=0.003)


def main():
    """Compare, train, evaluate."""
    chosen = options(__doc__.partition("\n")[0], 120, batch_size=64)
    P_world = distdl.Partition(MPI.COMM_WORLD)
    is_root = P_world.rank == 0
    P_x = P_world.create_cartesian_topology_partition([1, 1, P_world.size, 1])
    P_y = P_world.create_cartesian_topology_partition([1, 1])
    criterion = dnn.DistributedCrossEntropyLoss(P_y)

    def loss_of(network, batch):
        return criterion(network(batch[0]), batch[1])

    def load(dataset, **kwargs):
        return distdl.data.loader(dataset, (P_x, P_y), chosen.batch_size, root=0, **kwargs)

    data = digits(torch.float64)[0] if is_root else None
    apart = None
    model = make(lambda: ResNet18(P_x, P_y, WIDTH), torch.float64)
    torch.manual_seed(1)  # of the order of the batches, in both trainings
    measured = train(*model, loss_of, load(data, shuffle=True), chosen.check)
    if is_root:
        twin = make(lambda: SequentialResNet18(WIDTH), torch.float64)
        torch.manual_seed(1)
        whole = DataLoader(data, chosen.batch_size, shuffle=True)
        expected = train(*twin, lambda net, batch: cross_entropy(net(batch[0]), batch[1]), whole, chosen.check)
        apart = compare(expected, measured)

    training, held_out = digits(torch.float32) if is_root else (None, None)
    model, optimizer = make(lambda: ResNet18(P_x, P_y, WIDTH), torch.float32)
    batches = load(training, shuffle=True)
    run = train(model, optimizer, loss_of, batches, chosen.steps, "ResNet-18" if is_root else None)
    model.eval()
    with torch.no_grad():
        scores = torch.cat([model(images) for images, _ in load(held_out)])
    if is_root:
        images, labels = held_out.tensors
        guesses = scores.argmax(1)
        table({
            "ranks": P_world.size,
            "difference from the sequential network": f"{apart:.1e}",
            "loss, first and last step": f"{run.losses[0]:.4f}, {run.losses[-1]:.4f}",
            "digits recognised that it has not seen": f"{(guesses == labels).double().mean():.1%}",
            "seconds": f"{run.seconds:.1f}",
        })  # fmt: skip
        picture(chosen, run, images, labels, guesses)


def picture(chosen, run, images, labels, guesses):
    """Unseen digits with the network's guesses, errors first, and the losses."""
    figure, axes = panels(2, 6, figsize=(11, 4))
    grid = axes[0, 4].get_gridspec()
    for panel in axes[:, 4:].flat:
        panel.remove()
    plot_losses(figure.add_subplot(grid[:, 4:]), run.losses)
    order = (guesses == labels).int().argsort(stable=True)
    for panel, i in zip(axes[:, :4].flat, order.tolist(), strict=False):
        panel.imshow(images[i, 0].numpy(), cmap="gray")
        right = "" if guesses[i] == labels[i] else f", not {guesses[i]}"
        panel.set_title(f"{labels[i]}{right}", color="black" if not right else "crimson")
        panel.axis("off")
    figure.suptitle("unseen digits, first those that the network takes for others", x=0.32, fontsize="medium")
    save(figure, chosen.output, "resnet.png")


if __name__ == "__main__":
    main()

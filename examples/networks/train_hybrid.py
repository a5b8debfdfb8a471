"""Trains a network to remove noise from photographs: replicas on different samples, each split over several ranks.

    mpiexec -n 4 python -m mpi4py examples/networks/train_hybrid.py --stop 150
    mpiexec -n 2 python -m mpi4py examples/networks/train_hybrid.py

The first command saves as it trains, and stops after 150 steps, as a job does whose time is over. The second command
goes on where the first one stopped, on another number of ranks; without a file to go on from, it begins at the first
step. Each command begins with a few steps in float64, with a stop and a change of ranks in the middle, beside the
sequential network: the losses are equal up to rounding. At the end a table, and a picture of a photograph of which the
network has seen nothing. The photographs come with scikit-learn: nothing is downloaded.
"""

import itertools

import torch
from mpi4py import MPI
from torch.nn.functional import mse_loss
from torch.utils.data import DataLoader, Dataset

import distdl
import distdl.nn as dnn
from training import compare, options, panels, plot_losses, save, table, train

NOISE = 0.15  # its deviation; colors are between 0 and 1


def photographs():
    """Two photographs (3, 427, 640): for training, and for the picture."""
    from sklearn.datasets import load_sample_images

    return [torch.tensor(image).permute(2, 0, 1).double() / 255 for image in load_sample_images().images]


def noisy(clean, seed):
    """The same noise for the same seed."""
    generator = torch.Generator().manual_seed(seed)
    return clean + NOISE * torch.randn(clean.shape, generator=generator, dtype=clean.dtype)


class Patches(Dataset):
    """The part that a rank reads of small squares of a photograph, with noise and without.

    Args:
        count: how many there are.
        side: their extent.
        first: the seed of the first; a run that goes on does not see again what it has seen.
        part: slices of a square.
    """

    def __init__(self, photograph, count, side, dtype, first=0, part=()):
        self.photograph, self.count, self.side = photograph, count, side
        self.dtype, self.first, self.part = dtype, first, (slice(None), *part)

    def __len__(self):
        return self.count

    def __getitem__(self, number):
        seed = self.first + number
        generator = torch.Generator().manual_seed(seed)
        y, x = (torch.randint(n - self.side, (), generator=generator).item() for n in self.photograph.shape[1:])
        clean = self.photograph[:, y : y + self.side, x : x + self.side]
        return tuple(image[self.part].to(self.dtype) for image in (noisy(clean, seed), clean))


class Denoiser(torch.nn.Module):
    """Convolutions that estimate the noise, which is then taken away.

    Args:
        convolution: makes a layer of (channels before, channels after, width of the kernel, padding=).

    Source: K. Zhang, W. Zuo, Y. Chen, D. Meng, L. Zhang, "Beyond a Gaussian Denoiser: Residual Learning of Deep CNN for
    Image Denoising" (2017), in small.
    """

    def __init__(self, convolution, channels, depth):
        super().__init__()
        widths = [3] + [channels] * (depth - 1) + [3]
        self.layers = torch.nn.ModuleList(convolution(*pair, 3, padding=1) for pair in itertools.pairwise(widths))

    def forward(self, x):
        y = x
        for layer in self.layers[:-1]:
            y = torch.relu(layer(y))
        return x - self.layers[-1](y)


def make(network, dtype, steps):
    """A network with the weights of seed 0, its optimizer, and the schedule of its learning rate."""
    torch.manual_seed(0)
    network = network().to(dtype)
    optimizer = torch.optim.AdamW(network.parameters(), lr=0.003)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    optimizer.register_step_post_hook(lambda *_: schedule.step())
    return network, optimizer, schedule


class Training:
    """A training on all ranks of a partition, which may go on from a file."""

    def __init__(self, P, replicas, chosen, photograph, dtype, steps):
        self.replicas, self.ranks, self.steps = replicas, P.size, steps
        self.P_replicas = P.create_cartesian_topology_partition([replicas, P.size // replicas])
        P_replica = self.P_replicas.create_cartesian_subtopology_partition([False, True])
        self.P_x = P_replica.create_cartesian_topology_partition([1, 1, P_replica.size, 1])  # blocks of rows
        self.chosen, self.photograph, self.dtype = chosen, photograph, dtype
        self.net, self.optimizer, self.schedule = make(
            lambda: Denoiser(
                lambda *args, **kwargs: dnn.DistributedConv2d(self.P_x, *args, **kwargs), chosen.channels, chosen.depth
            ),
            dtype,
            steps,
        )
        self.model = distdl.DataParallel(self.net, self.P_replicas)
        self.loss = dnn.DistributedMSELoss(self.P_x)
        self.losses, self.stops, self.saving = [], [], None

    def load(self, path):
        """Go on from a file: every replica reads it."""
        values = distdl.load(path, self.net, self.optimizer)
        self.schedule.load_state_dict(values["schedule"])
        self.losses, self.stops = values["losses"], values["stops"]

    def save(self, path, losses):
        """Write a file while training goes on. The replicas are equal, so that the first writes it."""
        self.wait()
        if self.model.replica == 0:
            values = {"losses": losses, "stops": [*self.stops, [len(losses), self.ranks]]}
            schedule = self.schedule.state_dict()
            self.saving = distdl.save(path, self.net, self.optimizer, asynchronous=True, schedule=schedule, **values)

    def wait(self):
        """Wait until the last file is on the disk."""
        if self.saving is not None:
            self.saving.wait()

    def run(self, until, path, title=None):
        """Train until so many steps are done, and save every so many of them, and at the end."""
        chosen, done = self.chosen, len(self.losses)
        samples = max(until - done, 0) * chosen.batch_size
        part = self.P_x.slices((1, 3, chosen.side, chosen.side))[2:]
        batches = distdl.data.loader(
            Patches(self.photograph, samples, chosen.side, self.dtype, done * chosen.batch_size, part),
            (self.P_x, self.P_x),
            chosen.batch_size // self.replicas,
            P_replicas=self.P_replicas,
        )

        def after(losses):
            if len(losses) % chosen.every == 0 or len(losses) == until:
                self.save(path, losses)

        run = train(
            self.model, self.optimizer, lambda net, batch: self.loss(net(batch[0]), batch[1]), batches, until, title,
            report=self.model.reduce_loss, before=self.losses, after=after,
        )  # fmt: skip
        self.wait()
        self.P_replicas.comm.Barrier()  # now every rank can read the file
        if len(run.losses) > done:
            self.losses, self.stops = run.losses, [*self.stops, [len(run.losses), self.ranks]]
        return run


def check(P_world, replicas, chosen, photograph, path):
    """The largest difference from the sequential network's losses, with a stop in the middle; in float64."""
    steps, dtype = chosen.check, torch.float64
    Training(P_world, replicas, chosen, photograph, dtype, steps).run(steps // 2, path)
    goes_on = P_world.rank < -(-P_world.size // 2)
    half = MPI.COMM_WORLD.Split(goes_on, P_world.rank)
    if goes_on:
        resumed = Training(distdl.Partition(half), 1, chosen, photograph, dtype, steps)
        resumed.load(path)
        measured = resumed.run(steps, path)
    if P_world.rank != 0:
        return None
    path.unlink()
    twin, optimizer, _ = make(lambda: Denoiser(torch.nn.Conv2d, chosen.channels, chosen.depth), dtype, steps)
    batches = DataLoader(Patches(photograph, steps * chosen.batch_size, chosen.side, dtype), chosen.batch_size)
    expected = train(twin, optimizer, lambda net, batch: mse_loss(net(batch[0]), batch[1]), batches, steps)
    return compare(expected, measured)


@torch.no_grad()
def denoise(P_world, training, clean):
    """A photograph with noise, and without it again: each replica does it, and rank 0 gets the whole."""
    image = noisy(clean, 0).unsqueeze(0).to(training.dtype)
    P_root = training.P_x.create_partition_inclusive([0]).create_cartesian_topology_partition([1] * 4)
    whole = distdl.functional.repartition(
        training.net(distdl.data.read_block(image, training.P_x)), training.P_x, P_root
    )
    return [batch[0].double().clamp(0, 1) for batch in (image, whole)] if P_world.rank == 0 else (None, None)


def decibels(image, clean):
    """The ratio of the largest possible value to the error."""
    return -10 * mse_loss(image, clean).log10().item()


def picture(chosen, training, images):
    """A part of an unseen photograph, and the losses with the ranks that computed them."""
    figure, axes = panels(1, 4, figsize=(15, 3.6))
    for panel, (name, image) in zip(axes[0], images.items(), strict=False):
        panel.imshow(image.permute(1, 2, 0).numpy())
        panel.set_title(name)
        panel.axis("off")
    plot_losses(axes[0, 3], training.losses)
    axes[0, 3].set_yscale("log")
    start = 0
    for stop, ranks in training.stops:
        axes[0, 3].axvspan(start, stop, color=f"C{ranks}", alpha=0.15, label=f"{ranks} ranks")
        start = stop
    axes[0, 3].legend()
    save(figure, chosen.output, "hybrid.png")


def main():
    """Compare, go on or begin, stop or finish."""
    chosen = options(
        __doc__.partition("\n")[0], 300, stop=0, replicas=0, every=50, batch_size=8, side=48, channels=24, depth=6
    )
    P_world = distdl.Partition(MPI.COMM_WORLD)
    is_root, size = P_world.rank == 0, P_world.size
    replicas = chosen.replicas or 2 - size % 2
    if size % replicas or chosen.batch_size % replicas:
        raise SystemExit(f"{replicas} replicas have to divide {size} ranks, and a batch of {chosen.batch_size}")
    chosen.output.mkdir(parents=True, exist_ok=True)
    path = chosen.output / "hybrid.checkpoint"
    seen, unseen = photographs()
    apart = check(P_world, replicas, chosen, seen, path.with_name("hybrid.check"))

    training = Training(P_world, replicas, chosen, seen, torch.float32, chosen.steps)
    if path.exists():
        training.load(path)
    begun = len(training.losses)
    run = training.run(chosen.stop or chosen.steps, path, f"{replicas} replicas" if is_root else None)
    shown = unseen[:, 60:260, 200:400]
    noise, denoised = denoise(P_world, training, shown)
    if is_root:
        table({
            "ranks": f"{size}, in {replicas} replicas",
            "difference from the sequential network": f"{apart:.1e}",
            "steps": f"{begun} to {len(run.losses)} of {chosen.steps}",
            "loss, first and last step": f"{run.losses[0]:.5f}, {run.losses[-1]:.5f}",
            "unseen photograph with noise": f"{decibels(noise, shown):.1f} dB",
            "without it": f"{decibels(denoised, shown):.1f} dB",
            "seconds": f"{run.seconds:.1f}",
        })  # fmt: skip
        picture(chosen, training, {"unseen, with noise": noise, "without it again": denoised, "the photograph": shown})


if __name__ == "__main__":
    main()

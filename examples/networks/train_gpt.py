"""Trains a small GPT on the source of Python's own library; sequences are split over all ranks in blocks of tokens.

    mpiexec -n 2 python -m mpi4py examples/networks/train_gpt.py

The library comes with Python: nothing is downloaded. First a few steps in float64, beside the sequential network: the
losses are equal up to rounding. Then the training in float32. At the end a table, a picture, and what the network
writes: the gathered weights are loaded into the sequential network, which writes one letter after the other.
"""

import sysconfig
from pathlib import Path

import torch
from gpt import GPT, SequentialGPT
from mpi4py import MPI
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, Dataset

import distdl
import distdl.nn as dnn
from training import compare, options, panels, plot_losses, save, table, train

LETTERS = "\n\t" + "".join(map(chr, range(32, 127)))
BEGIN = "def "


def library():
    """The modules of Python's library, one after the other, as numbers of letters. A tab stands for four spaces."""
    folder = Path(sysconfig.get_path("stdlib"))
    text = "".join(path.read_text(encoding="utf-8", errors="ignore") for path in sorted(folder.glob("*.py")))
    number = {letter: i for i, letter in enumerate(LETTERS)}
    text = text.replace(4 * " ", "\t")
    return torch.tensor([number[letter] for letter in text if letter in number], dtype=torch.int64)


class Sequences(Dataset):
    """Sequences of the text with their places and the letters that follow: the part that a rank reads of each.

    Args:
        part: the slice of a sequence.
    """

    def __init__(self, text, length, part=None):
        self.text, self.length, self.part = text, length, part or slice(None)

    def __len__(self):
        return (len(self.text) - 1) // self.length

    def __getitem__(self, number):
        start = number * self.length
        tokens, targets = self.text[start : start + self.length], self.text[start + 1 : start + self.length + 1]
        return tokens[self.part], torch.arange(self.length)[self.part], targets[self.part]


def make(network, dtype, steps):
    """A network with the weights of seed 0, its optimizer, and the order of batches of seed 1 from now on."""
    torch.manual_seed(0)
    network = network().to(dtype)
    optimizer = torch.optim.AdamW(network.parameters(), lr=0.003, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.004, total_steps=steps + 1, pct_start=0.1)
    optimizer.register_step_post_hook(lambda *_: schedule.step())
    torch.manual_seed(1)
    return network, optimizer


@torch.no_grad()
def write(network, longest, count, temperature=0.7):
    """What the sequential network writes after the beginning of a function."""
    tokens, generator = [LETTERS.index(letter) for letter in "\n\n" + BEGIN], torch.Generator().manual_seed(0)
    while len(tokens) < count:
        seen = torch.tensor([tokens[-longest:]])
        scores = network(seen, torch.arange(seen.shape[1])[None])[0, -1]
        chances = (scores / temperature).softmax(0)
        tokens.append(torch.multinomial(chances, 1, generator=generator).item())
    return "".join(LETTERS[token] for token in tokens).strip().replace("\t", 4 * " ")


def main():
    """Compare, train, write."""
    chosen = options(__doc__.partition("\n")[0], 1500, batch_size=16, length=64, features=64, heads=4, layers=2)
    P_world = distdl.Partition(MPI.COMM_WORLD)
    is_root, size = P_world.rank == 0, P_world.size
    P_x, P_tokens, P_heads, P_flat = (
        P_world.create_cartesian_topology_partition(shape)
        for shape in ([1, size, 1], [1, size], [1, 1, size, 1], [size, 1])
    )
    shape = (len(LETTERS), chosen.features, chosen.heads, chosen.layers, chosen.length)
    criterion, text = dnn.DistributedCrossEntropyLoss(P_flat), library()

    def loss_of(network, batch):
        tokens, places, targets = batch
        return criterion(network(tokens, places).flatten(0, 1), targets.flatten())

    def whole_loss(network, batch):
        tokens, places, targets = batch
        return cross_entropy(network(tokens, places).flatten(0, 1), targets.flatten())

    def distributed():
        return GPT(P_x, P_tokens, P_heads, *shape)

    own = Sequences(text, chosen.length, P_tokens.slices((1, chosen.length))[1])
    batches = distdl.data.loader(own, (P_tokens,) * 3, chosen.batch_size, shuffle=True, drop_last=True)
    compared = train(*make(distributed, torch.float64, chosen.check), loss_of, batches, chosen.check)
    twin = make(lambda: SequentialGPT(*shape), torch.float64, chosen.check)
    whole = DataLoader(Sequences(text, chosen.length), chosen.batch_size, shuffle=True, drop_last=True)
    apart = compare(train(*twin, whole_loss, whole, chosen.check), compared)

    model, optimizer = make(distributed, torch.float32, chosen.steps)
    run = train(model, optimizer, loss_of, batches, chosen.steps, "GPT" if is_root else None)
    state = distdl.sequential_state_dict(model)
    if is_root:
        writer = SequentialGPT(*shape)
        writer.load_state_dict(state)
        sample = write(writer, chosen.length, min(700, 4 * chosen.steps))
        last = sum(run.losses[-50:]) / len(run.losses[-50:])
        table({
            "ranks": size,
            "difference from the sequential network": f"{apart:.1e}",
            "letters of text": f"{len(text):,}",
            "parameters": f"{sum(parameter.numel() for parameter in writer.parameters()):,}",
            "loss of a letter, first and last fifty steps": f"{run.losses[0]:.3f}, {last:.3f}",
            "seconds": f"{run.seconds:.1f}",
        })  # fmt: skip
        print(f"\nIt writes:\n\n{sample}", flush=True)
        picture(chosen, run, sample)


def picture(chosen, run, sample):
    """The losses, and what the network writes."""
    figure, axes = panels(1, 2, figsize=(12, 5))
    plot_losses(axes[0, 0], run.losses)
    axes[0, 1].axis("off")
    lines = [line[:80] for line in sample.splitlines()[:28]]
    shown = "\n".join(lines).replace("$", r"\$")  # matplotlib would read it as mathematics
    axes[0, 1].text(0, 1, shown, family="monospace", size=8, va="top", transform=axes[0, 1].transAxes)
    save(figure, chosen.output, "gpt.png")


if __name__ == "__main__":
    main()

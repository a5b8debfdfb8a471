"""No layer votes more than once in a forward call, whatever it is made of, once its first call has set it up.

Votes are counted below the library, by tests/pmpi/observer.cpp, which has to be preloaded; tests/run.sh does, on two
ranks. A new layer of distdl.nn needs an example here. This has no name that pytest looks for.
"""

import ctypes
import functools

import pytest
import torch

import distdl.fft
import distdl.nn as dnn
from support import families
from support.blocks import block_of, grid
from support.cases import CASES
from support.ranks import job
from support.sequential import block
from support.tensors import values
from support.versions import TORCH

process = ctypes.CDLL(None)
COLLECTIVES = (
    "MPI_Allreduce", "MPI_Iallreduce", "MPI_Iallreduce_c", "MPI_Allgather", "MPI_Allgatherv", "MPI_Iallgatherv_c",
    "MPI_Ibcast_c", "MPI_Ireduce_c", "MPI_Ireduce_scatter_c",
)  # fmt: skip


def on_grids(make, shapes, *inputs):
    """An example: the layer that is made of partitions of these shapes, and its inputs in blocks of the first."""

    def example(P_world):
        partitions = [grid(P_world, shape) for shape in shapes]
        return make(*partitions), [block_of(x, partitions[0]) for x in inputs]

    return example


def images(dims):
    """A batch of images of two channels in so many dimensions."""
    return values([2, 2, *[6] * dims], torch.float32)


def split_along(dims, *chosen):
    """Grids of one worker, and of two along each of the chosen dimensions."""
    return [[1] * dims, *([2 if d == along else 1 for d in range(dims)] for along in chosen)]


def by_windows(name, *arguments, **options):
    """Examples of a layer Distributed<name> of images."""
    dims = int(name[-2])
    kind = getattr(dnn, f"Distributed{name}")
    convolution = "Conv" in name
    along = [d for d in range(dims + 2) if d != 1 or not convolution]
    return [
        on_grids(lambda P_x: kind(P_x, *arguments, **options), [shape], images(dims))
        for shape in split_along(dims + 2, *along)
    ]


def by_channels(name):
    """Examples of a convolution that splits channels: of the input, of the output, and space alone."""
    dims = int(name[-2])
    unsplit = [1] * dims
    grids = [
        ([1, 2, *unsplit], [1, 1, *unsplit], [1, 2, *unsplit]),
        ([1, 1, *unsplit], [1, 2, *unsplit], [2, 1, *unsplit]),
    ]
    if "Channel" not in name:
        grids.append(([1, 1, 2, *unsplit[1:]], [1, 1, 2, *unsplit[1:]], [1, 1, 2, *unsplit[1:]]))
    kind = getattr(dnn, f"Distributed{name}")
    return [on_grids(lambda *P: kind(*P, 2, 2, 3, padding=1), shapes, images(dims)) for shapes in grids]


def examples():
    """By public name: functions of the partition of all ranks that give a layer and what it is called with."""
    table = {}
    for d in (1, 2, 3):
        table |= {name: by_windows(name, 2) for name in (f"MaxPool{d}d", f"AvgPool{d}d", f"AdaptiveAvgPool{d}d")}
        table[f"AdaptiveMaxPool{d}d"] = by_windows(f"AdaptiveMaxPool{d}d", 3)
        table[f"LPPool{d}d"] = by_windows(f"LPPool{d}d", 2, 3)
        for name in (f"Conv{d}d", f"ConvTranspose{d}d"):
            table[name] = [*by_windows(name, 2, 2, 3), *by_channels(name)]
        table[f"Conv{d}d"] += by_windows(f"Conv{d}d", 2, 4, 3, padding=1, padding_mode="circular", bias=False)
        table[f"FeatureConv{d}d"] = by_windows(f"FeatureConv{d}d", 2, 2, 3, padding=1)
        table |= {name: by_channels(name) for name in (f"ChannelConv{d}d", f"GeneralConv{d}d")}
    table["Upsample"] = [
        on_grids(lambda P_x: dnn.DistributedUpsample(P_x, scale_factor=2, mode="bilinear"), [shape], images(2))
        for shape in split_along(4, 0, 1, 2, 3)
    ]
    table["Pad"] = [
        on_grids(lambda P_x: dnn.DistributedPad(P_x, (1, 2, 3, 0), mode="circular"), [shape], images(2))
        for shape in split_along(4, 0, 1, 2, 3)
    ]
    table["Linear"] = [
        on_grids(lambda *P: dnn.DistributedLinear(*P, 5, 3), shapes, values([4, 5], torch.float32))
        for shapes in ([[1, 1]] * 3, [[1, 2], [1, 1], [1, 2]], [[1, 1], [1, 2], [2, 1]])
    ]
    floats, classes = values([4, 3], torch.float32), values([4], torch.int64) % 3
    reductions = ("mean", "sum", "none")
    table["MSELoss"] = [
        on_grids(lambda P_x, how=how: dnn.DistributedMSELoss(P_x, how), [shape], floats, 2 * floats)
        for shape in split_along(2, 0, 1)
        for how in reductions
    ]
    table["CrossEntropyLoss"] = [on_classes(split, how, floats, classes) for split in (0, 1) for how in reductions]
    table["ScaledDotProductAttention"] = [
        on_attention(split, how) for how in (None, "heads", "ring") for split in (0, 1, 2)
    ]
    table |= {"Transpose": [transposed]}
    table = {f"Distributed{name}": made for name, made in table.items()} | primitives()
    table["Local"] = [on_grids(lambda P_x: dnn.Local(P_x, two_layers()), [[2, 1]], values([4, 5], torch.float32))]
    table["DistributedMixtureOfExperts"] = [
        on_grids(
            lambda P_x: dnn.DistributedMixtureOfExperts(P_x, 5, 3, square), [[2, 1]], values([4, 5], torch.float32)
        )
    ]
    for name, of_layer in families.LAYERS.items():
        table[name] = [*table.get(name, []), *(made for example in of_layer for made in of_family(example))]
    return table | transforms()


def of_family(example):
    """On two workers along each dimension that may be split."""

    def on(shape, P_world):
        P_x = grid(P_world, shape)
        inputs = [block(x, P_x, cut) for x, cut in zip(example.inputs(), example.cuts, strict=True)]
        return functools.partial(example.make(example.twin(), P_x), **example.call), inputs

    along = [d for d in range(example.dims) if d not in example.whole]
    return [functools.partial(on, shape) for shape in split_along(example.dims, *along)[1:]]


def on_classes(split, how, scores, classes):
    """An example of cross entropy: the scores split along the classes, or along the batch and the targets with them."""

    def example(P_world):
        P_x = grid(P_world, [1, 2] if split else [2, 1])
        targets = classes if split else block_of(classes, grid(P_world, [2]))
        return dnn.DistributedCrossEntropyLoss(P_x, reduction=how), [block_of(scores, P_x), targets]

    return example


def two_layers():
    """A module of torch."""
    return torch.nn.Sequential(torch.nn.Linear(5, 3), torch.nn.ReLU(), torch.nn.Linear(3, 2))


def square(number):
    """An expert."""
    return torch.nn.Linear(5, 5)


def on_attention(split, method):
    """An example of attention: batch, heads or sequence split."""

    def example(P_world):
        P_x = grid(P_world, [2 if d == split else 1 for d in range(4)])
        layer = dnn.DistributedScaledDotProductAttention(P_x, is_causal=True, method=method)
        return layer, [block_of(values([2, 2, 4, 3]), P_x) for _ in range(3)]

    return example


def transposed(P_world):
    """An example of DistributedTranspose."""
    P_x, P_y = grid(P_world, [2, 1]), grid(P_world, [1, 2])
    return dnn.DistributedTranspose(P_x, P_y), [block_of(values([5, 3]), P_x)]


def transforms():
    """Examples of the functions of distdl.fft that exchange something, along each dimension."""

    def on(function, shape, P_world):
        P_x = grid(P_world, shape)
        return lambda x: function(x, P_x), [block_of(values([4, 5, 6], torch.float32), P_x)]

    return {
        f"fft.{name}": [functools.partial(on, getattr(distdl.fft, name), shape) for shape in split_along(3, 0, 1, 2)]
        for name in distdl.fft.__all__
        if not name.endswith("freq")
    }


def primitives():
    """Examples by names that are not Distributed...: the operators in all of their roles."""
    table = {}
    for name, make in CASES.items():
        operator = "".join(word.capitalize() for word in name.split("_"))
        kind = next(primitive for primitive in dnn.__all__ if operator.startswith(primitive.removesuffix("Exchange")))

        def example(P_world, make=make):
            case = make(P_world)
            return case.operator, [values(case.shape)]

        table.setdefault(kind, []).append(example)
    return table


EXAMPLES = examples()
NO_LAYERS = ("Layer", "Module", "SEQUENTIAL", "init")  # base classes, a table, and a module
LAYERS = [name for name in dnn.__all__ if name not in NO_LAYERS]
CALLS = [*LAYERS, *transforms()]
if TORCH < (2, 13):  # which has no class to make its example of
    CALLS.remove("DistributedLinearCrossEntropyLoss")


def counted():
    """Votes, which are messages of their own, and collectives that this process has called."""
    votes = process.observer_votes()
    return votes, sum(process.observer_calls(name.encode()) for name in COLLECTIVES)


def votes_of(layer, inputs):
    """[votes, other collectives] of a call with a gradient and of a call without, on the rank that has most."""
    counts = []
    for recorded in (True, False):
        x = [tensor.detach().requires_grad_(recorded and tensor.is_floating_point()) for tensor in inputs]
        layer(*x)  # sets up what is new to it
        before = counted()
        layer(*x)
        counts.append([after - earlier for after, earlier in zip(counted(), before, strict=True)])
    everyones = [call for calls in job.allgather(counts) for call in calls]
    return [max(numbers) for numbers in zip(*everyones, strict=True)]


@pytest.mark.parametrize("name", CALLS)
def test_at_most_one_vote(P_world, capsys, name):
    assert name in EXAMPLES, f"{name} has no example in {__file__}"
    counts = [votes_of(*example(P_world)) for example in EXAMPLES[name]]
    if job.rank == 0:
        with capsys.disabled():
            print(f"\n  {name}: {', '.join(f'{votes} + {others}' for votes, others in counts)}", end="")
    assert all(votes <= 1 for votes, _ in counts), f"votes and other collectives of each example of {name}: {counts}"

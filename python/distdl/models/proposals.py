"""Propose partitions for a model, by estimates of their costs."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from distdl.models.capture.recording import Recording
from distdl.models.capture.skeleton import Skeleton
from distdl.models.operations.placement import input_placement, ways_to_split
from distdl.models.plan.costs import MIB, cost
from distdl.models.plan.machine import MachineProfile, measure
from distdl.models.plan.planning import Plan
from distdl.models.rules.applied_layer import key_of_layer
from distdl.models.text_table import text_table
from distdl.modules.module import refuse_distributed
from distdl.nn.base.options import refuse_lazy
from distdl.partitions.comparison import gather_or_raise
from distdl.partitions.construction import PartitionLike, constructing, constructor
from distdl.partitions.grid import Grid
from distdl.partitions.partition import Partition

_TAILS = 4  # places in the model that are tried as the beginning of another split
_FIRST = 3  # the number of the best partitions that are tried with them
_DEEPEST = 3  # modules within modules

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Proposal:
    """A way to distribute a model: ``distdl.distribute(model, proposal.P_x, plan=proposal.plan)``.

    Attributes:
        P_x: how the inputs are split.
        plan: the partitions of modules that are split in another way.
        memory: estimated bytes on the fullest rank in a step of training: results, parameters, gradients.
        sent: estimated bytes that travel in a step, of all ranks.
        seconds: estimated time of a step.
    """

    P_x: Partition
    plan: Mapping[str, Partition]
    memory: int
    sent: int
    seconds: float

    def __str__(self) -> str:
        text = str([*map(int, self.P_x.shape)])
        for name, P in [*self.plan.items()][:1]:
            text += f", from {name} on {[*map(int, P.shape)]}"
        return text


class Proposals(tuple[Proposal, ...]):
    """Proposals, the fastest first. Printed, they are a table."""

    __slots__ = ()

    def __str__(self) -> str:
        table = [("ms a step", "MiB a rank", "MiB sent", "partition")]
        for proposal in self:
            sizes = (f"{proposal.memory / MIB:.1f}", f"{proposal.sent / MIB:.1f}")
            table.append((f"{proposal.seconds * 1e3:.1f}", *sizes, str(proposal)))
        return "\n".join(text_table(table, left=[3]))


@constructor
def plans(
    model: torch.nn.Module, P_world: PartitionLike, input_shape: Sequence[int] | Sequence[Sequence[int]], most: int = 10
) -> Proposals:
    """Ways to split a model over ranks, with the estimated costs of a step of training, the fastest first.

    All ways to split the input are tried with all ranks of P_world and with divisors of their number; the best of them
    also with the later modules split along the batch, or on one worker. Time is estimated from speeds of this machine,
    which are measured once for P_world, in about two seconds; memory is that of all results, parameters and gradients,
    as if a backward pass needed all of them, without what the optimizer keeps.

    Args:
        model: as for :func:`distdl.distribute`; also on the meta device, since values do not count.
        P_world: the ranks.
        input_shape: the shape of the whole input, or a list of the shapes of several inputs.
        most: the largest number of proposals.

    Raises:
        TypeError, ValueError: on all ranks, if an argument is not as described.
        NotImplementedError: on all ranks, if the model cannot be distributed; the message says why.

    Collective over the communicator that P_world comes from.
    """
    with constructing("plans", {"P_world": P_world}, {"input_shape": input_shape, "most": most}) as (grid,):
        if not isinstance(model, torch.nn.Module):
            raise TypeError(f"plans: the model is of type {type(model).__name__}; it has to be a torch.nn.Module")
        refuse_lazy("plans", model)
        refuse_distributed("plans", model)
        if isinstance(most, bool) or not isinstance(most, int) or most < 1:
            raise ValueError(f"plans: most={most!r}; it has to be a positive number")
        shapes = _shapes(input_shape)
    device = Partition.of_grid(grid, like=P_world).device
    profile = measure(grid, _dtype_of(model), device) if grid.active else None
    all_ranks = grid.constructing_ranks()

    def make() -> bytes:  # by one rank, so that all have the same
        if profile is None or grid.rank:
            return b""
        return json.dumps(_proposed(model, grid, shapes, profile)[:most]).encode()

    text = gather_or_raise("plans", all_ranks, make)[all_ranks.ranks.index(grid.ranks[0])]
    proposals = []
    for splits, ways, memory, sent, seconds in json.loads(text):
        P_x, *others = (
            Partition.of_grid(grid.related(grid.ranks[: math.prod(shape)], shape), like=P_world)
            for shape in (splits, *ways.values())
        )
        proposals.append(Proposal(P_x, dict(zip(ways, others, strict=True)), memory, sent, seconds))
    return Proposals(proposals)


Ways = dict[str, list[int]]
"""The number of blocks along each dimension, by names of modules, on the first ranks."""


def _proposed(
    model: torch.nn.Module, grid: Grid, shapes: Sequence[Shape], profile: MachineProfile
) -> list[tuple[list[int], Ways, int, int, float]]:
    """The splits of the input and of modules, and their costs, the fastest first."""
    skeleton = Skeleton(model, torch.device("cpu"))
    inputs = [(shape, _dtype_of(model)) for shape in shapes]
    call: object = tuple(torch.empty(shape, dtype=dtype, device="meta") for shape, dtype in inputs), {}
    recording = skeleton.record(call, inputs, key_of_layer)
    work = {node: skeleton.operations_of(node) for node in recording.nodes}

    def costs(splits: list[int], ways: Ways) -> tuple[list[int], Ways, int, int, float]:
        base = grid.related(grid.ranks[: math.prod(splits)], splits)
        placements = [input_placement(base.ranks, splits, shape) for shape in shapes]
        requested = {name: grid.related(grid.ranks[: math.prod(way)], way) for name, way in ways.items()}
        estimate = cost(Plan(recording, base, placements, requested=requested), profile, work)
        return splits, ways, estimate.memory, estimate.sent, estimate.seconds

    whole = [costs(splits, {}) for splits in _splits(grid.size, shapes[0])]
    fastest = sorted(whole, key=lambda proposal: proposal[-1])[:_FIRST]
    changed = [costs(splits, ways) for splits, *_ in fastest for ways in _tails(splits, recording, shapes[0])]
    return sorted(whole + changed, key=lambda proposal: proposal[-1])


def _splits(workers: int, shape: Shape) -> list[list[int]]:
    """All ways to split an input among all ranks, or among a divisor of their number."""
    counts = (count for count in range(workers, 0, -1) if workers % count == 0)
    return [[*splits] for splits in dict.fromkeys(splits for n in counts for splits in ways_to_split(n, shape))]


def _tails(splits: list[int], recording: Recording, shape: Shape) -> Iterator[Ways]:
    """Splits of the later modules: along the batch, or on one worker."""
    depth = 1
    while depth < _DEEPEST and len(names := _names(recording, depth)) < _TAILS:
        depth += 1
    workers = math.prod(splits)
    batch = [min(workers, shape[0])] + [1] * (len(shape) - 1)
    others = [other for other in (batch, [1] * len(shape)) if other != splits]
    for i in range(1, _TAILS):
        for other in others:
            yield dict.fromkeys(names[len(names) * i // _TAILS :], other)


def _names(recording: Recording, depth: int) -> list[str]:
    """The names of the modules at a depth in the model, in the order of their calls."""
    return list(dict.fromkeys(".".join(node.path.split(".")[:depth]) for node in recording.nodes if node.path))


def _dtype_of(model: torch.nn.Module) -> torch.dtype:
    return next((parameter.dtype for parameter in model.parameters()), torch.get_default_dtype())


def _shapes(shapes: object) -> list[Shape]:
    """The list of shapes in an argument that is a shape or a list of shapes."""
    several = shapes if isinstance(shapes, list | tuple) and shapes and not isinstance(shapes[0], int) else [shapes]
    checked = []
    for shape in several:
        if not isinstance(shape, list | tuple) or not shape or not all(type(n) is int and n >= 0 for n in shape):
            raise ValueError(f"plans: input_shape={shapes!r}; it has to be a shape, or a list of shapes")
        checked.append(tuple(shape))
    return checked

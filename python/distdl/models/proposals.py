"""Propose partitions for a model, by estimates of their costs."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import cast

import torch

from distdl.models.capture.recording import Recording
from distdl.models.operations.placement import ways_to_split
from distdl.models.plan.costs import cost
from distdl.models.plan.feature_words import feature_words
from distdl.models.plan.halo_choice import chain_where_faster
from distdl.models.plan.machine import Machine
from distdl.models.plan.measurement import measure
from distdl.models.plan.overlaps import HaloChains
from distdl.models.plan.requested import requested_splits
from distdl.models.plan.step_memory import StepMemory
from distdl.models.plan.training import Training
from distdl.models.planned_model import PlannedInputs, PlannedModel, Shape, first_of, inputs_of, refuse_unplanned
from distdl.models.proposal_table import Proposal, Proposals
from distdl.parameters.layout import OF_MODELS, current_kind
from distdl.partitions.comparison import gather_or_raise
from distdl.partitions.construction import PartitionLike, constructing, constructor, is_partition
from distdl.partitions.grid import Grid
from distdl.partitions.partition import Partition
from distdl.progress_bars import with_progress

_TAILS = 4  # places in the model that are tried as the beginning of another split
_FIRST = 3  # the number of the best partitions that are tried with them
_DEEPEST = 3  # modules within modules

Ways = dict[str, list[int] | str]
"""The number of blocks along each dimension on the first ranks, or words, by names of modules."""


@dataclass(frozen=True)
class _Costs:
    """Ways to split the input and modules, and their costs."""

    splits: list[int]
    ways: Ways
    parts: dict[str, int]
    sent: int
    seconds: float
    block: list[int]
    overlap: float

    @property
    def memory(self) -> int:
        return sum(self.parts.values())


@constructor
def plans(
    model: torch.nn.Module,
    P_world: PartitionLike | Sequence[int] | Sequence[object] | None = None,
    input_shape: Sequence[int] | Sequence[object] | None = None,
    most: int = 10,
    *,
    shape: Sequence[int] | Sequence[object] | None = None,
    ranks: int | None = None,
    machine: Machine | None = None,
    optimizer: str | float = "adam",
) -> Proposals:
    """Ways to split a model over ranks, with the estimated costs of a step of training, the fastest first.

    ``plans(model, shape, ranks=512)`` plans for ranks that need not exist, in one process; ``plans(model, P_world,
    shape)`` for the ranks of a job. All ways to split the input are tried with all ranks and with divisors of their
    number; the best of them also with the later modules split along the batch, or on one worker. The fastest and the
    smallest for each number of ranks are tried with features, heads, vocabularies and experts split too, and proposed
    so if that is faster or needs less memory. Partitions that need more memory than the machine has come last; of
    partitions with times within 5 % those with thicker blocks come first, since smaller parts of them are halos. On
    several nodes the best let convolutions exchange their halos at once where :func:`distdl.distribute` does.

    Memory is that of the fullest rank at the fullest moment: weights, gradients and the optimizer's state in the
    layout of the context (:func:`distdl.parameter_layout`), what autograd keeps, with activation checkpoints and in the
    dtypes of the context (``with torch.autocast("cpu", torch.bfloat16):``), halos and messages.

    Args:
        model: as for :func:`distdl.distribute`; also on the meta device, since values do not count.
        P_world: the ranks of a job; or, in the shorter form, the shape.
        input_shape, shape: the shape of the whole input, or a list of the shapes of several inputs. A tensor, such as
            ``torch.empty(8, 512, dtype=torch.long, device="meta")``, stands for its shape and its dtype.
        most: the largest number of proposals.
        ranks: the number of ranks, if there is no P_world.
        machine: its figures; by default those of this machine, which are measured once, in about two seconds.
        optimizer: "sgd", "momentum", "rmsprop", "adagrad", "lion", "adam" or "adamw", or the number of copies of the
            parameters that another optimizer keeps.

    Raises:
        TypeError, ValueError: on all ranks, if an argument is not as described.
        NotImplementedError: on all ranks, if the model cannot be distributed; the message says why.

    With P_world collective over the communicator that it comes from; with ``ranks`` not collective.

    Example:
        >>> found = distdl.plans(model, (1, 1, 512, 512, 512), ranks=64, machine=distdl.Machine(memory="40GiB"))
        >>> print(found)
        >>> found.picture("ranks.svg")
    """
    options: dict[str, object] = {
        "input_shape": input_shape, "most": most, "shape": shape, "ranks": ranks, "machine": machine,
        "optimizer": optimizer,
    }  # fmt: skip
    if not is_partition(P_world):
        if not isinstance(P_world, list | tuple | torch.Tensor | None):
            raise TypeError(
                f"plans: P_world is a {type(P_world).__name__}; it has to be a distdl.Partition or an mpi4py "
                "intracommunicator, or the shape of the input without P_world"
            )
        of = P_world if shape is None else shape
        inputs, training = _checked("shape", model, of, most, machine, optimizer)
        if ranks is None or isinstance(ranks, bool) or not isinstance(ranks, int) or ranks < 1:
            raise ValueError(f"plans: ranks={ranks!r}; without P_world it has to be a positive number")
        grid = Grid.imagined(ranks)
        known = machine or measure(Grid.alone(), _dtype_of(inputs, model), torch.device("cpu"))
        return _proposals(_proposed(model, grid, inputs, known, training), grid, grid, known, most)
    like = cast(PartitionLike, P_world)
    with constructing("plans", {"P_world": like}, options) as (grid,):
        of = input_shape if shape is None else shape
        inputs, training = _checked("input_shape", model, of, most, machine, optimizer)
        if ranks is not None:
            raise ValueError(f"plans: ranks={ranks}, and P_world; pass P_world or ranks")
    if machine is None and grid.active:
        machine = measure(grid, _dtype_of(inputs, model), Partition.of_grid(grid, like=like).device)
    all_ranks = grid.constructing_ranks()

    def make() -> bytes:  # by one rank, so that all have the same
        if machine is None or grid.rank:
            return b""
        listed = [asdict(costs) for costs in _proposed(model, grid, inputs, machine, training)]
        return json.dumps([asdict(replace(machine, speeds={})), listed]).encode()

    text = gather_or_raise("plans", all_ranks, make)[all_ranks.ranks.index(grid.ranks[0])]
    figures, listed = json.loads(text)
    return _proposals([_Costs(**costs) for costs in listed], grid, like, Machine(**figures), most)


def _checked(
    name: str, model: object, shapes: object, most: object, machine: object, optimizer: str | float
) -> tuple[PlannedInputs, Training]:
    refuse_unplanned("plans", model)
    assert isinstance(model, torch.nn.Module)
    if isinstance(most, bool) or not isinstance(most, int) or most < 1:
        raise ValueError(f"plans: most={most!r}; it has to be a positive number")
    if not isinstance(machine, Machine | None):
        raise TypeError(f"plans: machine is a {type(machine).__name__}; it has to be a distdl.Machine")
    return inputs_of(f"plans: {name}", model, shapes), Training.of("plans", current_kind(OF_MODELS), optimizer)


def _dtype_of(inputs: PlannedInputs, model: torch.nn.Module) -> torch.dtype:
    """The dtype of most computations: inputs may be indices."""
    dtypes = [*(dtype for _, dtype in inputs), *(parameter.dtype for parameter in model.parameters())]
    return next((dtype for dtype in dtypes if dtype.is_floating_point), torch.get_default_dtype())


def _proposals(listed: Sequence[_Costs], grid: Grid, like: PartitionLike, machine: Machine, most: int) -> Proposals:
    made = []
    for costs in listed:
        P_x = Partition.of_grid(first_of(grid, costs.splits), like=like)
        plan = {
            name: way if isinstance(way, str) else Partition.of_grid(first_of(grid, way), like=like)
            for name, way in costs.ways.items()
        }
        parts = StepMemory(**costs.parts)
        figures = parts.total, costs.sent, costs.seconds, parts, tuple(costs.block), costs.overlap
        made.append(Proposal(P_x, plan, *figures))
    return Proposals(made, machine, most)


def _proposed(
    model: torch.nn.Module, grid: Grid, inputs: PlannedInputs, machine: Machine, training: Training
) -> list[_Costs]:
    """The splits of the input and of modules, and their costs."""
    planned = PlannedModel(model, inputs)
    shape = inputs[0][0]

    def costs(splits: list[int], ways: Ways, chains: bool = True) -> _Costs:
        base = first_of(grid, splits)
        plan, works = planned.for_request(base, requested_splits(ways, model, base))
        if chains and base.size > machine.ranks_per_node:  # as distribute does between hosts
            chain_where_faster(plan, HaloChains(plan), machine, works)
        estimate, overlap = (
            cost(plan, machine, works, training),
            max((step.overlap for step in plan.steps), default=1.0),
        )
        block = [-(-n // p) for n, p in zip(shape, splits, strict=True)]
        return _Costs(splits, ways, asdict(estimate.memory), estimate.sent, estimate.seconds, block, overlap)

    is_first = grid.rank == 0
    whole = [costs(splits, {}, False) for splits in with_progress("plans", _splits(grid.size, shape), is_first)]
    fastest = sorted(whole, key=lambda costs: costs.seconds)[:_FIRST]
    best = {tuple(costs.splits) for costs in (*fastest, *_best_by_ranks(whole))}
    whole = [costs(each.splits, {}) if tuple(each.splits) in best else each for each in whole]
    tails = [(costs.splits, ways) for costs in fastest for ways in _tails(costs.splits, planned.recording, shape)]
    words = [
        (before, by_name)
        for before in _best_by_ranks(whole)
        for by_name in feature_words(model, planned.recording, math.prod(before.splits))
    ]
    tried = [*whole]
    for splits, ways in with_progress("plans", tails, is_first):
        with contextlib.suppress(ValueError):  # not every module can be split so
            tried.append(costs(splits, ways))
    for before, by_name in with_progress("plans", words, is_first):
        with contextlib.suppress(ValueError):
            by_words = costs(before.splits, {**by_name})
            if by_words.seconds < before.seconds or by_words.memory < before.memory:
                tried.append(by_words)
    return tried


def _best_by_ranks(tried: Sequence[_Costs]) -> list[_Costs]:
    """The fastest and the smallest for each number of ranks, but one."""
    best: dict[tuple[int, ...], _Costs] = {}
    for count in dict.fromkeys(math.prod(costs.splits) for costs in tried):
        among = [costs for costs in tried if math.prod(costs.splits) == count > 1]
        fastest = sorted(among, key=lambda costs: costs.seconds)[:1]
        smallest = sorted(among, key=lambda costs: costs.memory)[:1]
        best.update((tuple(costs.splits), costs) for costs in (*fastest, *smallest))
    return [*best.values()]


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

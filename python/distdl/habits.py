"""Habits of programs of one process that give other numbers on blocks, and what to use instead."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import torch

from distdl.called import calls_of, code_behind
from distdl.collective.construction import constructing
from distdl.collective.grid import Grid
from distdl.nn import SEQUENTIAL, Local, Module
from distdl.nn.coverage import problem_of
from distdl.nn.parametrized import problem_of_parametrizations
from distdl.partition import Partition

_OPTIMIZERS = {
    "LBFGS": "searches along a line of this rank's own parameters",
    "Adafactor": "takes means over the rows and columns of a block",
    "Muon": "makes each block orthogonal by itself",
}


class Finding(NamedTuple):
    """Something that gives other numbers on blocks than in one process.

    Attributes:
        where: the name of the module in the model, or of a function; "" for the whole model.
        what: what goes wrong there.
        instead: what to use.
    """

    where: str
    what: str
    instead: str

    def __str__(self) -> str:
        return f"{self.where or 'the model'}: {self.what}; {self.instead}"


def check(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer | None = None,
    inputs: torch.Tensor | Sequence[torch.Tensor] | None = None,
) -> list[Finding]:
    """List what will go wrong in a model that mixes layers over partitions with torch's own, and what to use instead.

    It looks at the modules of the model; at the code of their classes and of the module that calls this function, as
    far as it names functions of torch; at the values of the parameters; and at the seeds of the ranks. It computes
    nothing, and changes nothing. An empty list is no proof: see the page on habits for what it cannot see.

    Args:
        model: a model with layers over partitions.
        optimizer: the optimizer that trains it.
        inputs: what this rank passes to the model.

    Returns:
        What any rank has found, the same list on all ranks.

    Raises:
        TypeError: if ``model`` is no module. Only this rank hears of it, since it knows no ranks to tell.

    Collective over the communicator that the partitions of the model come from. Without such a layer it takes no
    communication.

    Example:
        >>> for finding in distdl.check(model, optimizer, inputs=x):
        ...     print(finding)
    """
    grids = [grid for one in model.modules() for grid in _grids_of(one)] if isinstance(model, torch.nn.Module) else []
    code = code_behind(model, depth=2)
    everyone = max(grids, key=lambda grid: len(grid.constructors), default=Grid.unknown()).constructing_ranks()
    mine: dict[str, object] = {}
    with constructing("check", {"ranks": everyone}, {}):
        if not isinstance(model, torch.nn.Module):
            raise TypeError(f"check: model is of type {type(model).__name__}; it has to be a torch.nn.Module")
        found = [*_in_modules(model), *_in_code(model, code), *_in_optimizer(optimizer)]
        mine = {"found": found, "random": _checksum(torch.get_rng_state()), "input": _first(inputs)}
        mine["blocks"] = dict(_blocks_of(model))
    texts = everyone.gather(json.dumps(mine).encode()) if everyone.active else [json.dumps(mine).encode()]
    ranks = everyone.ranks or (0,)
    views = dict(zip(ranks, map(json.loads, texts), strict=True))
    first = [tuple(one) for view in views.values() for one in view["found"]]
    return [Finding(*one) for one in dict.fromkeys([*first, *_among_ranks(views)])]


def _grids_of(module: torch.nn.Module) -> list[Grid]:
    grid = getattr(module, "grid", None) if isinstance(module, Module) else None
    return [grid] if isinstance(grid, Grid) and grid.known else []


def _partition_of(module: torch.nn.Module, names: Sequence[str]) -> Grid | None:
    found = (getattr(module, name, None) for name in names)
    return next((one.grid for one in found if isinstance(one, Partition) and one.grid.known), None)


# On this rank


def _in_modules(model: torch.nn.Module) -> Iterator[Finding]:
    """Modules of torch among ours, each judged on the result's partition of the layer that stands before it."""
    modules = list(model.named_modules())
    ours = [name for name, one in modules if isinstance(one, Module)]
    inside = tuple(f"{name}." if name else "" for name in ours)
    grid = next((grid for _, one in modules if (grid := _partition_of(one, ["P_x"])) is not None), None)
    for name, one in modules:
        if isinstance(one, Module):
            grid = _partition_of(one, ["P_y", "P_x"]) or grid
            for problem in problem_of_parametrizations(one):
                yield Finding(name, problem, "parametrize the weight of the whole, on one process, and load it")
        elif grid is not None and grid.size > 1 and not name.startswith(inside) and not _holds(one, Module):
            yield from _of_torch_module(name, one, grid.shape)


def _holds(module: torch.nn.Module, kind: type) -> bool:
    return any(isinstance(one, kind) for one in module.modules())


def _of_torch_module(name: str, module: torch.nn.Module, shape: Sequence[int]) -> Iterator[Finding]:
    own_class = type(module).__module__.startswith("torch.nn.")
    problem = problem_of(module, shape) if own_class else ""
    if problem:
        what, _, use = problem.partition("; use ")
        yield Finding(name, what, f"use {use}" if use else "repartition, so that the dimension is whole")
    elif next(module.parameters(recurse=False), None) is not None:
        what = f"{type(module).__name__} has parameters, whose gradients are those of this rank's block alone"
        yield Finding(name, what, f"use distdl.nn.Local(P_x, {type(module).__name__}(...)), or the layer of distdl.nn")


def _in_code(model: torch.nn.Module, code: Mapping[str, tuple[object, ...]]) -> Iterator[Finding]:
    ours = {type(one) for one in model.modules() if isinstance(one, Module) and not isinstance(one, Local)}
    if not ours:
        return
    twins = {kind: layer for kind, layer in SEQUENTIAL.items() if any(issubclass(one, layer) for one in ours)}
    for where, called in code.items():
        for one in dict.fromkeys(called):
            yield from (Finding(where, *text) for text in calls_of(one, called, twins))


def _in_optimizer(optimizer: torch.optim.Optimizer | None) -> Iterator[Finding]:
    name = type(optimizer).__name__
    if name in _OPTIMIZERS:
        use = "use one that treats each number by itself, such as Adam or SGD"
        yield Finding(f"torch.optim.{name}", f"{_OPTIMIZERS[name]}, as if it were the whole model", use)


def _checksum(tensor: torch.Tensor) -> int:
    """Of the values; 0 where they cannot tell one tensor from another: where there are fewer than two, or all equal."""
    if tensor.is_meta or tensor.layout != torch.strided or tensor.is_quantized or tensor.numel() < 2:
        return 0
    flat = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous().flatten()
    return 0 if bool((flat == flat[0]).all()) else zlib.crc32(flat.view(torch.uint8).numpy().tobytes())


def _first(inputs: torch.Tensor | Sequence[torch.Tensor] | None) -> list[object]:
    one = inputs if isinstance(inputs, torch.Tensor) else next(iter(inputs or ()), None)
    return [list(one.shape), _checksum(one)] if isinstance(one, torch.Tensor) else [[], 0]


def _blocks_of(model: torch.nn.Module) -> Iterator[tuple[str, tuple[object, int]]]:
    for prefix, module in model.named_modules():
        if isinstance(module, Module):
            own = dict(module.named_parameters())
            for name, layout in module.layouts.items():
                if name in own and layout.intervals is not None:
                    yield f"{prefix}.{name}".lstrip("."), (layout.intervals, _checksum(own[name]))


# Among the ranks


def _among_ranks(views: Mapping[int, Mapping[str, object]]) -> Iterator[Finding]:
    if len({str(view["random"]) for view in views.values()}) > 1:
        what = "the random number generators of the ranks are in different states, so that ranks draw different weights"
        yield Finding("", what, "call torch.manual_seed with the same seed on all ranks before the model is made")
    inputs = [view["input"] for view in views.values()]
    if len(views) > 1 and all(one == inputs[0] for one in inputs) and inputs[0][1]:  # type: ignore[index]
        what = f"every rank passes the same input of shape {inputs[0][0]}, as if it were the whole"  # type: ignore[index]
        yield Finding("", what, "pass each rank its block of the whole tensor")
    seen: dict[tuple[str, int], tuple[int, object]] = {}
    for rank, view in views.items():
        blocks: Mapping[str, tuple[object, int]] = view["blocks"]  # type: ignore[assignment]
        for name, (intervals, checksum) in blocks.items():
            other, theirs = seen.setdefault((name, checksum), (rank, intervals))
            if checksum and theirs != intervals:
                what = f"its blocks on ranks {other} and {rank} are copies of each other, as torch.nn.init makes them"
                yield Finding(name, what, "use distdl.nn.init, which fills the whole parameter")

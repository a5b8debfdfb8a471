"""Habits of programs of one process that give other numbers on blocks, and what to use instead."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence

import torch

from distdl.called import calls_of, code_behind
from distdl.collective.construction import constructing
from distdl.collective.grid import Grid
from distdl.nn import SEQUENTIAL, Local, Module
from distdl.nn.findings import Finding, blocks_of, checksum, copies, in_modules, other_draws, same_input

__all__ = ["Finding", "check"]

_OPTIMIZERS = {
    torch.optim.LBFGS: "searches along a line of this rank's own parameters",
    torch.optim.Adafactor: "takes means over the rows and columns of a block",
    torch.optim.Muon: "makes each block orthogonal by itself",
}


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
    everyone = max(grids, key=lambda grid: len(grid.constructors), default=Grid.unknown()).constructing_ranks()
    mine: dict[str, object] = {}
    with constructing("check", {"ranks": everyone}, {}):
        if not isinstance(model, torch.nn.Module):
            raise TypeError(f"check: model is of type {type(model).__name__}; it has to be a torch.nn.Module")
        code = _in_code(model, code_behind(model, depth=2))
        found = [*in_modules(model), *code, *_in_optimizer(optimizer)]
        mine = {"found": found, "random": checksum(torch.get_rng_state()), "input": _first(inputs)}
        mine["blocks"] = {name: (intervals, checksum(block)) for name, intervals, block in blocks_of(model)}
    texts = everyone.gather(json.dumps(mine).encode()) if everyone.active else [json.dumps(mine).encode()]
    ranks = everyone.ranks or (0,)
    views = dict(zip(ranks, map(json.loads, texts), strict=True))
    first = [tuple(one) for view in views.values() for one in view["found"]]
    return [Finding(*one) for one in dict.fromkeys([*first, *_among_ranks(views)])]


def _grids_of(module: torch.nn.Module) -> list[Grid]:
    grid = getattr(module, "grid", None) if isinstance(module, Module) else None
    return [grid] if isinstance(grid, Grid) and grid.known else []


# On this rank


def _in_code(model: torch.nn.Module, code: Mapping[str, tuple[object, ...]]) -> Iterator[Finding]:
    ours = {type(one) for one in model.modules() if isinstance(one, Module) and not isinstance(one, Local)}
    if not ours:
        return
    twins = {kind: layer for kind, layer in SEQUENTIAL.items() if any(issubclass(one, layer) for one in ours)}
    for where, called in code.items():
        for one in dict.fromkeys(called):
            yield from (Finding(where, *text) for text in calls_of(one, called, twins))


def _in_optimizer(optimizer: torch.optim.Optimizer | None) -> Iterator[Finding]:
    for kind, problem in _OPTIMIZERS.items():
        if isinstance(optimizer, kind):
            use = "use one that treats each number by itself, such as Adam or SGD"
            yield Finding(f"torch.optim.{kind.__name__}", f"{problem}, as if it were the whole model", use)


def _first(inputs: torch.Tensor | Sequence[torch.Tensor] | None) -> list[object]:
    one = inputs if isinstance(inputs, torch.Tensor) else next(iter(inputs or ()), None)
    return [list(one.shape), checksum(one)] if isinstance(one, torch.Tensor) else [[], 0]


# Among the ranks


def _among_ranks(views: Mapping[int, Mapping[str, object]]) -> Iterator[Finding]:
    if len({str(view["random"]) for view in views.values()}) > 1:
        yield other_draws()
    inputs = [view["input"] for view in views.values()]
    if len(views) > 1 and all(one == inputs[0] for one in inputs) and inputs[0][1]:  # type: ignore[index]
        yield same_input(inputs[0][0])  # type: ignore[index]
    yield from copies({rank: view["blocks"] for rank, view in views.items()})  # type: ignore[misc]

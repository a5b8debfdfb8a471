"""Detect habits of single-process programs that give other numbers on blocks."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence

import torch

from distdl.diagnostics.api_scan import advice_on, advice_on_loops, names_in_code
from distdl.diagnostics.detectors import (
    Finding,
    blocks_of,
    generators_differ,
    inputs_are_equal,
    repeated_blocks,
    unsafe_modules,
)
from distdl.models import DistributedModel, distribute
from distdl.modules.first_values import checksum
from distdl.nn import SEQUENTIAL, Module
from distdl.nn.wrapped_module import WrappedModule
from distdl.partitions.construction import constructing
from distdl.partitions.grid import Grid

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
    """List problems of a model that mixes layers over partitions with torch's layers, and their solutions.

    It looks at the modules of the model, the functions of torch that their code and the calling module name, the values
    of the parameters, and the seeds of the ranks. It changes nothing. An empty list is no proof: see
    the page on habits.

    Args:
        model: a model with layers over partitions.
        optimizer: the optimizer that trains it.
        inputs: this rank's inputs of the model.

    Returns:
        The findings of all ranks, the same list on each.

    Raises:
        TypeError: on this rank, if ``model`` is not a module.

    Collective over the communicator that the partitions of the model come from. Without layers over partitions it takes
    no communication.

    Example:
        >>> for finding in distdl.check(model, optimizer, inputs=x):
        ...     print(finding)
    """
    grids = [grid for m in model.modules() for grid in _grids_of(m)] if isinstance(model, torch.nn.Module) else []
    all_ranks = max(grids, key=lambda grid: len(grid.constructors), default=Grid.unknown()).constructing_ranks()
    view: dict[str, object] = {}
    with constructing("check", {"ranks": all_ranks}, {}):
        if not isinstance(model, torch.nn.Module):
            raise TypeError(f"check: model is of type {type(model).__name__}; it has to be a torch.nn.Module")
        code = _code_findings(model, names_in_code(model, depth=2))
        findings = [*unsafe_modules(model), *code, *_optimizer_findings(optimizer)]
        random = checksum(torch.get_rng_state()) if _needs_equal_seeds(model) else 0
        view = {"findings": findings, "random": random, "input": _first_tensor(inputs)}
        view["blocks"] = {name: (intervals, checksum(block)) for name, intervals, block in blocks_of(model)}
    text = json.dumps(view).encode()
    texts = all_ranks.gather(text) if all_ranks.active else [text]
    ranks = all_ranks.ranks or (0,)
    views = dict(zip(ranks, map(json.loads, texts), strict=True))
    local = [Finding(*finding) for view in views.values() for finding in view["findings"]]
    return list(dict.fromkeys([*local, *_rank_findings(views)]))


def _grids_of(module: torch.nn.Module) -> list[Grid]:
    grid = getattr(module, "grid", None) if isinstance(module, Module) else None
    return [grid] if isinstance(grid, Grid) and grid.known else []


# On this rank


def _needs_equal_seeds(model: torch.nn.Module) -> bool:
    """Whether weights or random numbers depend on the generators of all ranks, as those of most layers do."""
    return any(
        isinstance(module, Module) and (module.as_sequential if isinstance(module, DistributedModel) else True)
        for module in model.modules()
    )


def _code_findings(model: torch.nn.Module, code: Mapping[str, tuple[object, ...]]) -> Iterator[Finding]:
    ours = {type(m) for m in model.modules() if isinstance(m, Module) and not isinstance(m, WrappedModule)}
    if not ours:
        if any(isinstance(module, DistributedModel) for module in model.modules()):
            for where, called in code.items():
                yield from (Finding(where, *advice) for advice in advice_on_loops(called, distribute))
        return
    twins = {kind: layer for kind, layer in SEQUENTIAL.items() if any(issubclass(our, layer) for our in ours)}
    for where, called in code.items():
        for function in dict.fromkeys(called):
            yield from (Finding(where, *advice) for advice in advice_on(function, called, twins))


def _optimizer_findings(optimizer: torch.optim.Optimizer | None) -> Iterator[Finding]:
    for kind, problem in _OPTIMIZERS.items():
        if isinstance(optimizer, kind):
            use = "use an optimizer that treats each number by itself, such as Adam or SGD"
            yield Finding(f"torch.optim.{kind.__name__}", f"{problem}, as if it were the whole model", use)


def _first_tensor(inputs: torch.Tensor | Sequence[torch.Tensor] | None) -> list[object]:
    tensor = inputs if isinstance(inputs, torch.Tensor) else next(iter(inputs or ()), None)
    return [list(tensor.shape), checksum(tensor)] if isinstance(tensor, torch.Tensor) else [[], 0]


# Among the ranks


def _rank_findings(views: Mapping[int, Mapping[str, object]]) -> Iterator[Finding]:
    if len({str(view["random"]) for view in views.values()}) > 1:
        yield generators_differ()
    inputs = [view["input"] for view in views.values()]
    if len(views) > 1 and all(input == inputs[0] for input in inputs) and inputs[0][1]:  # type: ignore[index]
        yield inputs_are_equal(inputs[0][0])  # type: ignore[index]
    yield from repeated_blocks({rank: view["blocks"] for rank, view in views.items()})  # type: ignore[misc]

"""Grids and words that the user requests for modules of a model."""

from __future__ import annotations

import math
from collections.abc import Mapping
from fnmatch import fnmatchcase

import torch

from distdl.partitions.construction import grid_of
from distdl.partitions.grid import Grid
from distdl.partitions.partition import Partition

Request = Grid | str
"""How a module is split: a grid, or a word of the plans that models of transformers carry."""
COLUMNS = ("colwise", "colwise_gather_output", "colwise_rep", "embedding_colwise", "local_colwise", "packed_colwise",
           "local_packed_colwise")  # fmt: skip
ROWS = ("rowwise", "rowwise_rep", "rowwise_split_input", "embedding_rowwise", "local_rowwise", "packed_rowwise",
        "local_packed_rowwise")  # fmt: skip
EXPERTS = ("grouped_gemm",)
WHOLE = ("all_reduce", "ep_dispatch_experts", "ep_router", "gather", "local", "local_params", "mla_kv_a_proj",
         "moe_identity_expert", "moe_tp_experts", "replicate", "replicated_with_grad_allreduce",
         "sequence_parallel")  # fmt: skip
"""Words that split no parameter. Values move as the operations around them need it."""
WORDS = (*COLUMNS, *ROWS, *EXPERTS, *WHOLE)


def requested_splits(plan: object, model: torch.nn.Module, workers: Grid) -> dict[str, Request]:
    """The grids and words of the option `plan`, by patterns of the names of modules.

    Raises:
        TypeError, ValueError: if it is no dict of partitions of these workers, or words, by names of modules.
    """
    if not isinstance(plan, Mapping | None):
        raise TypeError(f"distribute: plan is a {type(plan).__name__}; it has to be a dict of partitions")
    modules = [name for name, _ in model.named_modules()]
    parameters = [name for name, _ in model.named_parameters(remove_duplicate=False)]
    own_plan = own_plan_of(model)
    requested: dict[str, Request] = {}
    for pattern, partition in (plan or {}).items():
        is_word = isinstance(partition, str)
        if is_word and partition not in WORDS:
            raise ValueError(f"distribute: plan[{pattern!r}]={partition!r}; the words are {', '.join(WORDS)}")
        if not any(fnmatchcase(name, str(pattern)) for name in (modules + parameters if is_word else modules)):
            if is_word and pattern in own_plan:  # it may name modules of other models of its kind
                continue
            raise ValueError(
                f"distribute: plan[{pattern!r}]: no module of the model has such a name; see named_modules()"
            )
        requested[str(pattern)] = partition if is_word else requested_grid(f"plan[{pattern!r}]", partition, workers)
    return requested


def own_plan_of(model: torch.nn.Module) -> Mapping[str, str]:
    """The plan that a model of transformers carries; other models have none."""
    return getattr(model, "tp_plan", None) or getattr(model, "_tp_plan", None) or {}


def is_grid(value: object) -> bool:
    """Whether a value of an option says a grid: a partition, or numbers of workers."""
    is_numbers = isinstance(value, list | tuple) and bool(value) and all(type(n) is int for n in value)
    return is_numbers or isinstance(value, Partition | Grid)


def requested_grid(name: str, value: object, workers: Grid) -> Grid:
    """The grid of a partition, or of the first workers for numbers of workers along each dimension.

    Raises:
        TypeError, ValueError: if it is neither, or has other ranks than these workers.
    """
    if not is_grid(value):
        raise TypeError(
            f"distribute: {name}={value!r}; it has to be a distdl.Partition, or the numbers of workers along each "
            "dimension"
        )
    if isinstance(value, list | tuple):
        count = math.prod(value)
        if workers.known and not (min(value) > 0 and count <= workers.size):
            raise ValueError(f"distribute: {name}={list(value)}; P_x has {workers.size} workers")
        return workers.related(workers.ranks[:count], value)
    grid = grid_of(value)
    if grid.known and workers.known and not set(grid.ranks) <= set(workers.ranks):
        raise ValueError(
            f"distribute: {name} has ranks {list(grid.ranks)}, and P_x {list(workers.ranks)}; the workers of a plan "
            "are workers of P_x"
        )
    return grid


def request_for(path: str, requested: Mapping[str, Request]) -> tuple[str, Request | None]:
    """The last pattern, and its request, for the innermost module around a call that any pattern names."""
    paths = [*(path.rsplit(".", i)[0] for i in range(path.count(".") + 1)), ""]
    patterns = [*requested.items()][::-1]
    matches = ((pattern, request) for inner in paths for pattern, request in patterns if fnmatchcase(inner, pattern))
    return next(matches, ("", None))

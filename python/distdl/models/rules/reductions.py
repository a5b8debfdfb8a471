"""Sums, means and what else is left of a dimension."""

from __future__ import annotations

import math

import torch

from distdl import operators
from distdl.models.capture import Node
from distdl.models.operation import Along, Operation, Reads, Run, Workers
from distdl.models.placement import Blocks
from distdl.models.rules.pointwise import elementwise
from distdl.models.table import argument, calling, rule, same


def _reduced(node: Node) -> tuple[list[int], bool]:
    """The dimensions that are reduced, and whether they are kept with size 1."""
    n = len(node.inputs[0].shape)
    position = 2 if node.key in ("norm", "vector_norm", "quantile") else 1
    given = argument(node, position, "dim", node.kwargs.get("axis"))
    if isinstance(given, torch.dtype) or given is None or (isinstance(given, list | tuple) and not given):
        dims = list(range(n))
    else:
        dims = sorted({d % n for d in (given if isinstance(given, list | tuple) else [given])} if n else set())
    kept = len(node.outputs[0].shape) == n and n > 0
    return dims, kept


def _result_reads(node: Node, dims: list[int], kept: bool) -> Reads:
    n = len(node.inputs[0].shape)
    left = [d for d in range(n) if kept or d not in dims]
    return tuple(None if d in dims else Along(left.index(d)) for d in range(n))


@rule("amax", "amin", "argmax", "argmin", "max", "min", "var", "std", "var_mean", "std_mean", "norm", "vector_norm",
      "prod", "all", "any", "logsumexp", "median", "nanmean", "nansum", "count_nonzero", "mode", "quantile",
      "aminmax")  # fmt: skip
def left_over(node: Node) -> Operation:
    """The dimensions that are left may be split."""
    if len(node.inputs) > 1:  # the larger one of two tensors
        return elementwise(node)
    dims, kept = _reduced(node)
    shape = node.outputs[0].shape
    call = calling(node)
    splittable = frozenset(d for d in range(len(shape)) if not kept or d not in dims)
    return Operation(shape, (_result_reads(node, dims, kept),), lambda workers: call, splittable)


@rule("sum", "mean")
def total(node: Node) -> Operation:
    """Any dimension may be split: the workers' sums are summed."""
    given = node.inputs[0]
    n = len(given.shape)
    dims, kept = _reduced(node)
    count = math.prod(given.shape[d] for d in dims)
    dtype = node.kwargs.get("dtype")
    is_mean = node.key == "mean"
    call = calling(node)

    def make(workers: Workers | None) -> Run:
        if workers is None:
            return call
        split = [d for d in dims if workers.grid.shape[d] > 1]
        if not split:
            return call
        add = operators.sum_reduce(workers.grid, workers.grid.first_along(split))
        member = workers.rank in _first(workers, split).ranks

        def run(x: torch.Tensor) -> torch.Tensor:
            part = add(torch.sum(x, dims, keepdim=True, dtype=dtype))
            if not member:
                return part
            if is_mean:
                part = part / count
            return part if kept else part.reshape([m for d, m in enumerate(part.shape) if d not in dims])

        return run

    def places(workers: Workers) -> Blocks:
        first = _first(workers, [d for d in dims if workers.grid.shape[d] > 1])
        cuts = [(1,) if d in dims else sizes for d, sizes in enumerate(first.cuts)]
        return Blocks(first.ranks, tuple(c for d, c in enumerate(cuts) if kept or d not in dims))

    return Operation(given.shape, (same(n),), make, frozenset(range(n)), places=places)


def _first(workers: Workers, split: list[int]) -> Blocks:
    grid = workers.grid.first_along(split)
    cuts = [(sum(sizes),) if d in split else sizes for d, sizes in enumerate(workers.blocks.cuts)]
    return Blocks(grid.ranks, tuple(cuts))

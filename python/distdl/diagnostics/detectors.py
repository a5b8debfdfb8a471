"""Detect module settings and parameter values whose results depend on how tensors are split."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import torch

from distdl.modules.module import Module
from distdl.modules.parametrized import problem_of_parametrizations
from distdl.nn.base.layer import Layer
from distdl.nn.base.split_checks import problem_of, shape_after
from distdl.partitions.partition import Partition
from distdl.torch_compat.parametrizations import may_compute_weights


class Finding(NamedTuple):
    """Code that gives a different result on blocks than in one process.

    Attributes:
        where: the name of a module in the model, or of a function; "" for the whole model.
        what: the problem.
        instead: the remedy.
    """

    where: str
    what: str
    instead: str

    def __str__(self) -> str:
        return f"{self.where or 'the model'}: {self.what}; {self.instead}"


# Modules of one model


def unsafe_modules(model: torch.nn.Module) -> Iterator[Finding]:
    """Find modules of torch whose results are wrong on the blocks that the module before them returns.

    Also parametrizations of layers over partitions that need the whole weight.
    """
    modules = list(model.named_modules())
    distdl_names = [name for name, part in modules if isinstance(part, Module)]
    inside = tuple(f"{name}." if name else "" for name in distdl_names)
    known = (workers for _, part in modules if (workers := _workers_of(part)) is not None)
    shape: Sequence[int] | None = next((inputs for inputs, _ in known), None)
    for name, part in modules:
        if isinstance(part, Module):
            workers = _workers_of(part)
            shape = shape if workers is None else workers[1]
            for problem in () if name.startswith(inside) and name else problem_of_parametrizations(part):
                yield Finding(name, problem, "parametrize the weight of the whole, on one process, and load it")
            if isinstance(part, Layer) and part.all_ranks.size > 1 and not may_compute_weights(part):
                yield from _undeclared_parameters(name, part)
        elif shape is not None and not name.startswith(inside) and not _contains(part):
            if math.prod(shape) > 1:
                yield from _findings_of_torch_module(name, part, shape, getattr(model, "sums_all_gradients", False))
            shape = shape_after(part, shape)


def _undeclared_parameters(name: str, layer: Layer) -> Iterator[Finding]:
    for key, parameter in layer.named_parameters(recurse=False):
        if key not in layer.layouts and parameter.requires_grad:
            what = f"nobody declared the parameter {key}, whose gradient is that of this rank's block alone"
            yield Finding(name or type(layer).__name__, what, "declare it in check_options() by declare_parameter()")


def _workers_of(module: torch.nn.Module) -> tuple[Sequence[int], Sequence[int] | None] | None:
    """The workers along each dimension of a module's input and of its result; None if unknown."""
    declared = getattr(module, "workers_of_blocks", None) if isinstance(module, Module) else None
    if declared is not None:
        return declared
    partitions = (getattr(module, name, None) for name in ("P_x", "P_y"))
    known = [P.grid.shape for P in partitions if isinstance(P, Partition) and P.grid.known]
    return (known[0], known[-1]) if known else None


def _contains(module: torch.nn.Module) -> bool:
    return type(module) is torch.nn.Sequential or any(isinstance(part, Module) for part in module.modules())


def _findings_of_torch_module(
    name: str, module: torch.nn.Module, shape: Sequence[int], gradients_are_summed: bool
) -> Iterator[Finding]:
    if isinstance(module, torch.nn.Flatten):  # blocks along its first dimension are blocks of the result
        shape = [1 if d == module.start_dim % len(shape) else extent for d, extent in enumerate(shape)]
    own_class = type(module).__module__.startswith("torch.nn.")
    problem = problem_of(module, shape) if own_class else ""
    if problem:
        what, _, use = problem.partition("; use ")
        yield Finding(name, what, f"use {use}" if use else "repartition, so that the dimension is whole")
    elif not gradients_are_summed and any(parameter.requires_grad for parameter in module.parameters(recurse=False)):
        what = f"{type(module).__name__} has parameters, whose gradients are those of this rank's block alone"
        yield Finding(name, what, f"use distdl.nn.Local(P_x, {type(module).__name__}(...)), or the layer of distdl.nn")


# Values on several ranks


BlockChecksum = tuple[object, int]
"""The intervals of a block in the whole tensor, and its checksum."""


def blocks_of(model: torch.nn.Module) -> Iterator[tuple[str, object, torch.Tensor]]:
    """The parameters in blocks of this rank: name, intervals in the whole, and block."""
    for prefix, module in model.named_modules():
        if isinstance(module, Module):
            parameters = dict(module.named_parameters())
            for name, layout in module.layouts.items():
                if name in parameters and layout.intervals is not None:
                    yield f"{prefix}.{name}".lstrip("."), layout.intervals, parameters[name]


def repeated_blocks(views: Mapping[int, Mapping[str, BlockChecksum]]) -> Iterator[Finding]:
    """Find blocks of a parameter that are copies of each other on different ranks."""
    seen: dict[tuple[str, int], tuple[int, object]] = {}
    for rank, blocks in views.items():
        for name, (intervals, checked) in blocks.items():
            other, other_intervals = seen.setdefault((name, checked), (rank, intervals))
            if checked and other_intervals != intervals:
                what = f"its blocks on ranks {other} and {rank} are copies of each other, as torch.nn.init makes them"
                yield Finding(name, what, "use distdl.nn.init, which fills the whole parameter")


def generators_differ(where: str = "") -> Finding:
    """Report weights drawn from generators in different states."""
    what = "the random number generators of the ranks are in different states, so that ranks draw different weights"
    return Finding(where, what, "call torch.manual_seed with the same seed on all ranks before the model is made")


def inputs_are_equal(shape: object, where: str = "") -> Finding:
    """Report equal inputs on all ranks."""
    what = f"every rank passes the same input of shape {shape}, as if it were the whole"
    return Finding(where, what, "pass each rank its block of the whole tensor")

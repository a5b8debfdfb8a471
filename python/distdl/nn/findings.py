"""Find module settings and parameter values that give other numbers on blocks than in one process."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import torch

from distdl.nn.coverage import problem_of, through
from distdl.nn.module import Module
from distdl.nn.parametrized import problem_of_parametrizations
from distdl.partition import Partition


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


# Modules of one model


def in_modules(model: torch.nn.Module) -> Iterator[Finding]:
    """Modules of torch among ours, each judged on the blocks that the module of ours before it gives."""
    modules = list(model.named_modules())
    ours = [name for name, one in modules if isinstance(one, Module)]
    inside = tuple(f"{name}." if name else "" for name in ours)
    shape: Sequence[int] | None = next(
        (found[0] for _, one in modules if (found := _workers_of(one)) is not None), None
    )
    for name, one in modules:
        if isinstance(one, Module):
            found = _workers_of(one)
            shape = shape if found is None else found[1]
            for problem in () if name.startswith(inside) and name else problem_of_parametrizations(one):
                yield Finding(name, problem, "parametrize the weight of the whole, on one process, and load it")
        elif shape is not None and not name.startswith(inside) and not _contains(one):
            if math.prod(shape) > 1:
                yield from _of_torch_module(name, one, shape, getattr(model, "sums_all_gradients", False))
            shape = through(one, shape)


def _workers_of(module: torch.nn.Module) -> tuple[Sequence[int], Sequence[int] | None] | None:
    """The workers along each dimension of a module's input and of its result; None where they are not known."""
    said = getattr(module, "workers_of_blocks", None) if isinstance(module, Module) else None
    if said is not None:
        return said
    named = (getattr(module, name, None) for name in ("P_x", "P_y"))
    known = [one.grid.shape for one in named if isinstance(one, Partition) and one.grid.known]
    return (known[0], known[-1]) if known else None


def _contains(module: torch.nn.Module) -> bool:
    """Whether a module is judged by what is in it: where it has layers of ours, or is a row of modules."""
    return type(module) is torch.nn.Sequential or any(isinstance(one, Module) for one in module.modules())


def _of_torch_module(
    name: str, module: torch.nn.Module, shape: Sequence[int], gradients_are_summed: bool
) -> Iterator[Finding]:
    if isinstance(module, torch.nn.Flatten):  # blocks along the first of its dimensions are blocks of the result
        shape = [1 if d == module.start_dim % len(shape) else extent for d, extent in enumerate(shape)]
    own_class = type(module).__module__.startswith("torch.nn.")
    problem = problem_of(module, shape) if own_class else ""
    if problem:
        what, _, use = problem.partition("; use ")
        yield Finding(name, what, f"use {use}" if use else "repartition, so that the dimension is whole")
    elif not gradients_are_summed and any(one.requires_grad for one in module.parameters(recurse=False)):
        what = f"{type(module).__name__} has parameters, whose gradients are those of this rank's block alone"
        yield Finding(name, what, f"use distdl.nn.Local(P_x, {type(module).__name__}(...)), or the layer of distdl.nn")


# Values on several ranks


def checksum(tensor: torch.Tensor, least: int = 2) -> int:
    """A checksum of the values; 0 where too few values, or equal ones, cannot tell tensors apart."""
    if tensor.is_meta or tensor.layout != torch.strided or tensor.is_quantized or tensor.numel() < least:
        return 0
    flat = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous().flatten()
    return 0 if bool((flat == flat[0]).all()) else zlib.crc32(flat.view(torch.uint8).numpy().tobytes())


Block = tuple[object, int]
"""The intervals of a block in the whole tensor, and its checksum."""


def blocks_of(model: torch.nn.Module) -> Iterator[tuple[str, object, torch.Tensor]]:
    """The parameters in blocks that this rank has: name, intervals in the whole, and the block."""
    for prefix, module in model.named_modules():
        if isinstance(module, Module):
            own = dict(module.named_parameters())
            for name, layout in module.layouts.items():
                if name in own and layout.intervals is not None:
                    yield f"{prefix}.{name}".lstrip("."), layout.intervals, own[name]


def copies(views: Mapping[int, Mapping[str, Block]]) -> Iterator[Finding]:
    """Blocks of one parameter on different ranks that are copies of each other."""
    seen: dict[tuple[str, int], tuple[int, object]] = {}
    for rank, blocks in views.items():
        for name, (intervals, found) in blocks.items():
            other, theirs = seen.setdefault((name, found), (rank, intervals))
            if found and theirs != intervals:
                what = f"its blocks on ranks {other} and {rank} are copies of each other, as torch.nn.init makes them"
                yield Finding(name, what, "use distdl.nn.init, which fills the whole parameter")


def other_draws(where: str = "") -> Finding:
    """Weights were drawn, or will be, from generators in different states."""
    what = "the random number generators of the ranks are in different states, so that ranks draw different weights"
    return Finding(where, what, "call torch.manual_seed with the same seed on all ranks before the model is made")


def same_input(shape: object, where: str = "") -> Finding:
    """All ranks pass equal values."""
    what = f"every rank passes the same input of shape {shape}, as if it were the whole"
    return Finding(where, what, "pass each rank its block of the whole tensor")

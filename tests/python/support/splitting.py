"""A small function or model of torch split in all ways, beside itself in one process."""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

import distdl
from support.blocks import grid
from support.ranks import job

P_world = distdl.Partition(job)


@functools.cache  # so that a recorded function finds a constant
def numbers(*shape: int, seed: int = 0) -> torch.Tensor:
    """Numbers that no operation maps to equal numbers."""
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def splits(dims: int) -> list[list[int]]:
    """Along each dimension over all ranks, the second to last over fewer, and two over all ranks together."""
    size = P_world.size
    shapes = [[size if d == i else 1 for i in range(dims)] for d in range(dims)]
    shapes.append([max(1, size - 1) if i == dims - 2 else 1 for i in range(dims)])
    if size == 4:
        shapes.append([2 if i in (dims - 3, dims - 2) else 1 for i in range(dims)] if dims > 2 else [2, 2])
    return shapes if size > 1 else shapes[:1]


def step(call: Callable[[torch.Tensor], Any], x: torch.Tensor) -> tuple[list[torch.Tensor], torch.Tensor | None]:
    """The tensors of a result, and a loss of them; None where it has no derivative."""
    leaves = [y for y in tree_leaves(call(x)) if isinstance(y, torch.Tensor)]
    terms = [torch.view_as_real(y.resolve_conj()) if y.is_complex() else y for y in leaves if y.requires_grad]
    terms = [(term * numbers(*term.shape, seed=i)).sum() for i, term in enumerate(terms)]
    return leaves, torch.stack(terms).sum() if terms else None


def wrong(ours: torch.Tensor | None, expected: torch.Tensor | None) -> str:
    """The error of a tensor: "" if it is as expected up to rounding."""
    if ours is None or expected is None:
        return "" if ours is expected else f"{ours}, not {expected}"
    if ours.shape != expected.shape or ours.dtype != expected.dtype:
        return f"{ours.dtype} {list(ours.shape)}, not {expected.dtype} {list(expected.shape)}"
    single = expected.dtype == torch.float32
    if torch.allclose(ours, expected, rtol=1e-5 if single else 1e-11, atol=1e-5 if single else 1e-12, equal_nan=True):
        return ""
    return f"off by {float((ours.double() - expected.double()).abs().max()):.1e}"


def off_when_split(
    make: Callable[[], torch.nn.Module], whole: torch.Tensor, split: list[int], derived: bool = True, **options: Any
) -> list[str]:
    """The errors of the results and gradients of a distributed model, on rank 0.

    Args:
        make: the model of torch, the same each time.
        whole: the whole input.
        derived: whether derivatives are compared.
        options: of ``distdl.distribute``.

    Collective.
    """
    sequential, x = make(), whole.detach().clone().requires_grad_()
    torch.manual_seed(1)
    expected, loss = step(sequential, x)
    loss = loss if derived else None
    if loss is not None:
        loss.backward()
    P_x = grid(P_world, split)
    ours = distdl.distribute(make(), P_x, **options)
    own = distdl.scatter(whole.detach(), P_x).detach().requires_grad_()
    torch.manual_seed(1)
    results = ours(own)
    gathered, own_loss = step(lambda results: distdl.gather(results, ours.output_partition), results)
    leaves = [leaf for leaf in tree_leaves(results) if isinstance(leaf, torch.Tensor)]
    problems = [
        f"{split}: {part.dtype} in place of {result.dtype}, on rank {job.rank}"
        for part, result in zip(leaves, expected, strict=True)
        if part.is_complex() != result.is_complex()
    ]
    if loss is not None:  # of the sequential model, so that all ranks decide alike
        own_loss.backward()
        gradient, gradients = distdl.gather(own.grad, P_x), distdl.sequential_gradients(ours)
    if job.rank == 0:
        problems += [f"{split}: result {text}" for text in map(wrong, gathered, expected) if text]
        if loss is not None:
            pairs = [("the input", gradient, x.grad)]
            pairs += [(key, gradients.get(key), parameter.grad) for key, parameter in sequential.named_parameters()]
            problems += [f"{split}: gradient of {key} {wrong(*two)}" for key, *two in pairs if wrong(*two)]
    return problems

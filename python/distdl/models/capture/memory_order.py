"""The order of tensors' elements in memory, in which the random numbers of one process fill them."""

from __future__ import annotations

import functools
import itertools
import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from distdl.torch_compat.fake import FakeTensor
from distdl.torch_compat.memory import is_view
from distdl.torch_compat.modes import without_functions, without_modes
from distdl.torch_compat.trees import tree_flatten, tree_leaves, tree_map_only, tree_unflatten


@dataclass(frozen=True)
class InMemory:
    """Facts of a call that decide in which order results are in memory.

    Attributes:
        orders: of the dimensions of each tensor of a call.
        asking: whether each of them asks for gradients, for which torch takes other kernels.
        records: whether gradients are recorded.
    """

    orders: list[list[int]]
    asking: list[bool]
    records: bool


def order_of(block: torch.Tensor) -> list[int]:
    """The dimensions of a tensor by descending strides.

    Dimensions of equal strides keep their order, but those of size 1 come last: so torch tells the order of channels.
    """
    if block.layout != torch.strided or any(s == 0 and n > 1 for s, n in zip(block.stride(), block.shape, strict=True)):
        return list(range(block.dim()))
    strides = block.stride()
    return sorted(range(block.dim()), key=lambda d: (-strides[d], block.shape[d] == 1))


def strides_in(order: Sequence[int], shape: Sequence[int]) -> tuple[int, ...]:
    """The strides of a tensor without gaps whose dimensions have this order in memory."""
    sizes = [max(1, shape[d]) for d in order]
    strides = [math.prod(sizes[i + 1 :]) for i in range(len(sizes))]
    return tuple(strides[list(order).index(d)] for d in range(len(shape)))


def most_informative_block(blocks: Sequence[Sequence[int]], whole: Sequence[int]) -> int:
    """The index of the block with the fewest dimensions of size 1, whose strides are arbitrary."""

    def single(block: Sequence[int]) -> int:
        return sum(n < 2 <= m for n, m in zip(block, whole, strict=True))

    return min(range(len(blocks)), key=lambda i: (single(blocks[i]), i))


def with_real_strides(
    target: Callable[..., object], run: Callable[..., object], args: object, kwargs: object, result: object
) -> object:
    """The result of a call of tensors without values, with the strides that tensors with values would have.

    Without values, torch has other rules for strides, above all of dimensions of size 1, and kernels choose by strides
    in which order they write. So the same call runs on zeros. If it raises, the result stays as it is.

    Args:
        target: the function, or the layer without values.
        run: calls it.
    """
    leaves = tree_leaves((args, kwargs))
    tensors = {id(leaf) for leaf in leaves if isinstance(leaf, torch.Tensor)}
    made, structure = tree_flatten(result)
    others = [isinstance(leaf, FakeTensor) and id(leaf) not in tensors for leaf in made]
    if not any(others) or not tensors or any(isinstance(leaf, torch.Generator) for leaf in leaves):
        return result
    try:
        real = tree_leaves(_really(target, run, args, kwargs))
    except Exception:  # for zeros; an error for other values as well is raised in the call
        return result
    pairs = zip(made, real, others, strict=True)
    return tree_unflatten([_restrided(leaf, as_it_is) if other else leaf for leaf, as_it_is, other in pairs], structure)


def _restrided(x: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """A tensor without values, with the strides of another tensor of its shape."""
    if x.layout != torch.strided or x.shape != like.shape or x.stride() == like.stride():
        return x
    if is_view(x):
        if is_view(like):
            return x.as_strided(like.shape, like.stride())
        x = x.clone()
    x.data = torch.empty_strided(like.shape, like.stride(), dtype=x.dtype, device=x.device)
    return x


def _really(target: Callable[..., object], run: Callable[..., object], args: object, kwargs: object) -> object:
    """The result of a call of zeros in place of tensors without values, also of a layer's parameters and buffers."""
    with without_functions(), without_modes(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the call itself warns
        zeros = functools.cache(_zeros)  # a tensor that is passed twice stays one
        own_args, own_kwargs = tree_map_only(FakeTensor, zeros, (args, kwargs))
        devices = {leaf.device for leaf in tree_leaves((own_args, own_kwargs)) if isinstance(leaf, torch.Tensor)}
        with torch.random.fork_rng(devices=[device for device in devices if device.type == "cuda"]):
            if not isinstance(target, torch.nn.Module):
                return run(*own_args, **own_kwargs)
            own = itertools.chain(target.named_parameters(), target.named_buffers())
            return torch.func.functional_call(
                target, {name: zeros(tensor) for name, tensor in own}, own_args, own_kwargs
            )


def _zeros(x: torch.Tensor) -> torch.Tensor:
    """A tensor of the same shape, strides and dtype that asks for gradients as this one does."""
    size = 1 + sum((n - 1) * stride for n, stride in zip(x.shape, x.stride(), strict=True)) if x.numel() else 0
    with torch.no_grad():
        zeros = torch.zeros(size, dtype=x.dtype, device=x.device).as_strided(x.shape, x.stride())
    return zeros.requires_grad_(x.requires_grad)

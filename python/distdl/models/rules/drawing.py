"""Random numbers, and dropout: those of the whole tensor, whatever its partition."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch

from distdl.models.operation import Draw, NoRuleError, Operation, Run
from distdl.models.recording import Node
from distdl.models.table import argument, calling, cut_out, local, rule, same
from distdl.nn.masks import random_choice, random_uniform
from distdl.parameters.layout import Interval

Uniform = Callable[[torch.Tensor], torch.Tensor]
"""From numbers that are uniform in (0, 1), of float64, to others."""


def _drawn(node: Node, of_uniform: Uniform) -> Operation:
    """Numbers that depend on nothing but their distribution."""
    if node.kwargs.get("generator") is not None:
        raise NoRuleError(f"{node.key} with a generator of its own; the numbers come from the default generator")
    if len(node.inputs) > 1:
        raise NoRuleError(f"{node.key} with a tensor of parameters")
    out = node.outputs[0]
    shape, dtype, call = out.shape, out.dtype, calling(node)

    def draw(key: int | None, intervals: Sequence[Interval], device: torch.device) -> torch.Tensor:
        if key is None:
            whole = call(*(torch.empty(one.shape, dtype=one.dtype, device=device) for one in node.inputs))
            assert isinstance(whole, torch.Tensor)
            return cut_out(whole, intervals)
        half = 2.0**-33  # of the distance of two numbers
        numbers = random_uniform(key, shape, intervals, half, 1.0 + half, dtype=torch.float64, device=device)
        return of_uniform(numbers).to(dtype)

    run: Run = lambda numbers, *_: numbers  # noqa: E731
    reads = [same(len(shape))] * len(node.inputs)
    return Operation(shape, tuple(reads), lambda workers: run, frozenset(range(len(shape))), draw=draw)


@rule("rand", "rand_like", "uniform")
def uniform(node: Node) -> Operation:
    """Any dimension. Numbers have as many bits as those of torch, so that none of them is rounded to 1."""
    lower, upper = (argument(node, 1, "from", 0.0), argument(node, 2, "to", 1.0)) if _fills(node) else (0.0, 1.0)
    steps = 2.0 / torch.finfo(node.outputs[0].dtype).eps
    return _drawn(node, lambda u: lower + (upper - lower) * ((u * steps).floor() / steps))


@rule("randn", "randn_like", "normal")
def normal(node: Node) -> Operation:
    """Any dimension; by the inverse of the distribution."""
    mean, deviation = 0.0, 1.0
    if node.key == "normal":
        first = int(_fills(node))
        mean, deviation = argument(node, first, "mean", 0.0), argument(node, first + 1, "std", 1.0)
        if not _fills(node) and node.inputs:
            raise NoRuleError("normal with tensors of means or deviations; scale what randn_like gives")
    return _drawn(node, lambda u: mean + deviation * torch.special.ndtri(u))


@rule("exponential")
def exponential(node: Node) -> Operation:
    """Any dimension."""
    rate = argument(node, 1, "lambd", 1.0)
    return _drawn(node, lambda u: -torch.log(u) / rate)


@rule("randint", "randint_like")
def integers(node: Node) -> Operation:
    """Any dimension."""
    first = 0 if node.key == "randint" else 1
    numbers = [one for one in node.args[first:] if isinstance(one, int) and not isinstance(one, bool)][:2]
    low = node.kwargs.get("low", numbers[0] if len(numbers) == 2 else 0)
    high = node.kwargs.get("high", numbers[-1] if numbers else None)
    if high is None:
        raise NoRuleError(f"{node.key} without a largest number")
    return _drawn(node, lambda u: (low + (high - low) * u).floor())


@rule("randperm")
def permutation(node: Node) -> Operation:
    """On each worker as a whole."""
    found = _drawn(node, lambda u: u.argsort())
    return Operation(found.shape, found.reads, found.make, frozenset(), draw=found.draw)


@rule("bernoulli")
def bernoulli(node: Node) -> Operation:
    """Any dimension; of one probability for all elements."""
    if not _fills(node):
        raise NoRuleError("bernoulli with a tensor of probabilities; compare it with rand_like")
    p = argument(node, 1, "p", 0.5)
    return _drawn(node, lambda u: u < p)


@rule("binomial", "cauchy", "fractional_max_pool2d", "fractional_max_pool2d_with_indices", "fractional_max_pool3d",
      "fractional_max_pool3d_with_indices", "geometric", "gumbel_softmax", "log_normal",
      "multi_head_attention_forward", "multinomial", "poisson", "random")  # fmt: skip
def refused(node: Node) -> Operation:
    """What draws random numbers, or may draw them, in another way."""
    raise NoRuleError(f"no rule for the random numbers of {node.key}")


def _fills(node: Node) -> bool:
    """Whether the call fills a tensor that is there."""
    return getattr(node.target, "__name__", "").endswith("_")


# Dropout


@rule("Dropout", "Dropout1d", "Dropout2d", "Dropout3d", "AlphaDropout", "FeatureAlphaDropout",
      "dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout")  # fmt: skip
def dropout(node: Node) -> Operation:
    """Any dimension: the mask is that of the whole tensor."""
    x = node.arguments[0]
    n = len(x.shape)
    name = node.key.lower().replace("_", "")
    is_alpha = "alpha" in name
    if isinstance(node.target, torch.nn.Module):
        p, training = node.module.p, node.module.training
    else:
        p, training = argument(node, 1, "p", 0.5), argument(node, 2, "training", not is_alpha)
    reads = [same(n)]
    if not training or p == 0.0 or 0 in x.shape:
        return local(node, reads, run=lambda x: x)
    if p == 1.0:
        return local(node, reads, run=lambda x: x * 0.0)
    dims = _drawn_dims(name, n)
    mask = mask_of([m if d < dims else 1 for d, m in enumerate(x.shape)], x.dtype, p, dims == n, is_alpha)
    run = _alpha(p) if is_alpha else torch.mul
    return Operation(
        x.shape, tuple(reads), lambda workers: lambda mask, x: run(x, mask), frozenset(range(n)), draw=mask
    )


def _drawn_dims(name: str, n: int) -> int:
    """How many dimensions, from the first on, the mask has."""
    if name in ("dropout", "alphadropout"):
        return n
    if name in ("dropout1d", "dropout3d") and n == int(name[-2]) + 1:
        return 1  # without a batch; torch takes an input of 3 dimensions of dropout2d for one with a batch
    return 2


def mask_of(shape: Sequence[int], dtype: torch.dtype, p: float, is_whole: bool, is_alpha: bool = False) -> Draw:
    """0 with probability p, and otherwise 1/(1-p), or 1 for alpha dropout."""
    kept = 1.0 if is_alpha else float(torch.ones((), dtype=dtype, device="cpu").div_(1 - p))

    def draw(key: int | None, intervals: Sequence[Interval], device: torch.device) -> torch.Tensor:
        intervals = [(0, 1) if n == 1 else one for n, one in zip(shape, intervals, strict=True)]
        if key is not None:
            return random_choice(key, shape, intervals, p, (0.0, kept), dtype=dtype, device=device)
        if is_whole and not is_alpha:  # on a GPU torch draws it in another way
            return cut_out(torch.nn.functional.dropout(torch.ones(shape, dtype=dtype, device=device), p), intervals)
        whole = torch.empty(shape, dtype=dtype, device=device)
        return cut_out(whole.bernoulli_(1 - p).mul_(kept), intervals)

    return draw


def _alpha(p: float) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    """As torch.nn.functional.alpha_dropout computes it."""
    alpha = 1.7580993408473766
    scale = 1 / math.sqrt((alpha * alpha * p + 1) * (1 - p))
    return lambda x, mask: x * (mask * scale) + (mask - 1) * (alpha * scale) + alpha * scale * p

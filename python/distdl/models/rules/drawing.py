"""Random numbers and dropout, the same for every partition of a tensor."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from distdl.models.capture.recording import Node, Run, Value
from distdl.models.operations.operation import Draw, Operation, RandomError
from distdl.models.operations.table import argument, broadcast_spec, cut_out, local, rule_for, same
from distdl.nn.base.random_numbers import random_choice, random_uniform
from distdl.parameters.transport import zero_of
from distdl.partitions.boxes import Interval

FromUniform = Callable[[torch.Tensor], torch.Tensor]
"""A function of numbers of float64 that are uniform in (0, 1)."""
Whole = Callable[[torch.device], torch.Tensor]
"""torch's numbers for a whole tensor on a device."""
_OF_ALL = "* input size generator names dtype layout device pin_memory memory_format requires_grad"
"""The common arguments of functions that draw."""


def _drawn(node: Node, of_uniform: FromUniform) -> Operation:
    """Numbers with parameters that are no tensors."""
    out, call = node.outputs[0], node.as_function()
    if len(node.inputs) > 1:
        raise RandomError(f"{node.key} with a tensor of parameters")

    def whole(device: torch.device) -> torch.Tensor:
        numbers = call(*(value.empty(device) for value in node.inputs))
        assert isinstance(numbers, torch.Tensor)
        return numbers

    draw = _numbers(node, out.shape, out.dtype, whole, of_uniform)
    if out.is_differentiable:  # such as what uniform_() has filled
        return _computed(node, draw, lambda numbers, *inputs: _without_derivative(numbers, inputs))
    return _computed(node, draw, lambda numbers, *_: numbers)


def _numbers(node: Node, shape: Sequence[int], dtype: torch.dtype, whole: Whole, of_uniform: FromUniform) -> Draw:
    """Random numbers of a shape.

    Args:
        whole: draws the numbers of one process.
        of_uniform: computes the numbers of a key.
    """
    if node.kwargs.get("generator") is not None:
        raise RandomError(f"{node.key} with a generator of its own; the numbers come from the default generator")

    def draw(key: int | None, intervals: Sequence[Interval], device: torch.device) -> torch.Tensor:
        if key is None:
            return cut_out(whole(device), intervals)
        half = 2.0**-33  # of the distance of two numbers
        numbers = random_uniform(key, shape, intervals, half, 1.0 + half, dtype=torch.float64, device=device)
        return of_uniform(numbers).to(dtype)

    return draw


def _computed(node: Node, draw: Draw, run: Run) -> Operation:
    """An operation that computes with each random number by itself, and with tensors that broadcast to them."""
    shape = node.outputs[0].shape
    specs = [broadcast_spec(value, shape) for value in node.inputs]
    return Operation(shape, tuple(specs), lambda workers: run, frozenset(range(len(shape))), draw=draw)


def _without_derivative(result: torch.Tensor, inputs: Sequence[torch.Tensor]) -> torch.Tensor:
    """A result with zero gradients by the inputs, as in torch for filled tensors and parameters of distributions."""
    return sum((zero_of(tensor) for tensor in inputs if tensor.requires_grad), start=result)


def whole_rows(draw: Draw, length: int) -> Draw:
    """The numbers of whole rows, for any part of the last dimension in a block."""
    return lambda key, intervals, device: draw(key, [*intervals[:-1], (0, length)], device)


@rule_for("rand", "rand_like", "uniform", takes=f"{_OF_ALL} from to")
def uniform(node: Node) -> Operation:
    """Any dimension. Numbers have as many bits as torch's numbers, so that none is rounded to 1."""
    lower, upper = (argument(node, 1, "from", 0.0), argument(node, 2, "to", 1.0)) if _fills(node) else (0.0, 1.0)
    steps = 2.0 / torch.finfo(node.outputs[0].dtype).eps
    return _drawn(node, lambda u: lower + (upper - lower) * ((u * steps).floor() / steps))


@rule_for("randn", "randn_like", "normal", takes=f"{_OF_ALL} mean std")
def normal(node: Node) -> Operation:
    """Any dimension; by the inverse of the distribution."""
    mean, deviation = 0.0, 1.0
    if node.key == "normal":
        first = int(_fills(node))
        mean, deviation = argument(node, first, "mean", 0.0), argument(node, first + 1, "std", 1.0)
        if not _fills(node) and node.inputs:
            return _scaled(node)
    return _drawn(node, lambda u: mean + deviation * torch.special.ndtri(u))


def _scaled(node: Node) -> Operation:
    """Normal numbers with tensors as means or deviations."""
    out = node.outputs[0]

    def whole(device: torch.device) -> torch.Tensor:
        if len(node.inputs) > 1:  # for two tensors torch draws in the order of rows
            return torch.randn(out.shape, dtype=out.dtype, device=device)
        return torch.randn_like(out.empty(device))

    parameters: Any = node.as_function(lambda mean=0.0, std=1.0, **_: (mean, std))

    def run(numbers: torch.Tensor, *inputs: torch.Tensor) -> torch.Tensor:
        mean, deviation = parameters(*(tensor.detach() for tensor in inputs))
        return _without_derivative(numbers * deviation + mean, inputs)

    return _computed(node, _numbers(node, out.shape, out.dtype, whole, torch.special.ndtri), run)


_DISTRIBUTIONS: dict[str, tuple[dict[str, float | None], Callable[..., torch.Tensor]]] = {
    "log_normal": ({"mean": 1.0, "std": 2.0}, lambda u, mean, std: torch.exp(mean + std * torch.special.ndtri(u))),
    "cauchy": ({"median": 0.0, "sigma": 1.0}, lambda u, median, sigma: median + sigma * torch.tan(math.pi * (u - 0.5))),
    "geometric": ({"p": None}, lambda u, p: (torch.log(u) / math.log1p(-p)).ceil()),
    "exponential": ({"lambd": 1.0}, lambda u, rate: -torch.log(u) / rate),
}
"""The parameters of distributions with their defaults, and functions of uniform numbers."""


@rule_for(*_DISTRIBUTIONS, takes="input mean std median sigma p lambd generator")
def distribution(node: Node) -> Operation:
    """Any dimension."""
    defaults, of_uniform = _DISTRIBUTIONS[node.key]
    parameters = [argument(node, i, name, default) for i, (name, default) in enumerate(defaults.items(), start=1)]
    return _drawn(node, lambda u: of_uniform(u, *parameters))


@rule_for("randint", "randint_like", "random", takes=f"{_OF_ALL} from to low high")
def drawn_integers(node: Node) -> Operation:
    """Any dimension."""
    first = 0 if node.key == "randint" else 1
    numbers = [bound for bound in node.args[first:] if isinstance(bound, int) and not isinstance(bound, bool)][:2]
    lowest, largest = ("from", "to") if node.key == "random" else ("low", "high")
    low = node.kwargs.get(lowest, numbers[0] if len(numbers) == 2 else 0)
    high = node.kwargs.get(largest, numbers[-1] if numbers else None)
    if high is None:
        raise RandomError(f"{node.key} without a largest number")
    return _drawn(node, lambda u: (low + (high - low) * u).floor())


@rule_for("randperm", takes=f"{_OF_ALL} n")
def permutation(node: Node) -> Operation:
    """No dimension: each worker draws the whole permutation."""
    return replace(_drawn(node, lambda u: u.argsort()), splittable=frozenset())


@rule_for("bernoulli", takes="input p generator")
def bernoulli(node: Node) -> Operation:
    """Any dimension."""
    p = argument(node, 1, "p", 0.5 if _fills(node) else node.inputs[0])
    if not isinstance(p, Value):
        return _drawn(node, lambda u: u < p)
    out, dtype = node.outputs[0], p.dtype
    whole = lambda device: torch.rand_like(out.empty(device), dtype=dtype)  # noqa: E731
    run: Run = lambda u, *inputs: _without_derivative((u < inputs[-1]).to(out.dtype), inputs)  # noqa: E731
    return _computed(node, _numbers(node, out.shape, torch.float64, whole, lambda u: u), run)


@rule_for("multinomial", takes="input num_samples replacement generator")
def multinomial(node: Node) -> Operation:
    """Rows. With replacement, any dimension of the result."""
    weights, out = node.inputs[0], node.outputs[0].shape
    count = out[-1]
    rows = (*same(len(out) - 1), None)
    if argument(node, 2, "replacement", False) and count > 1:
        whole = lambda device: torch.rand(out, dtype=torch.float64, device=device)  # noqa: E731
        operation = _computed(node, _numbers(node, out, torch.float64, whole, lambda u: u), _of_rows)
        return replace(operation, input_specs=(rows,))
    shape, dtype = weights.shape, weights.dtype
    whole = lambda device: torch.empty_like(weights.empty(device)).exponential_()  # noqa: E731
    draw = whole_rows(_numbers(node, shape, dtype, whole, lambda u: -torch.log(u)), shape[-1])
    run: Run = lambda numbers, p: (p.detach() / numbers).topk(count)[1]  # noqa: E731
    return local(node, [rows], [len(out) - 1], run, draw)


def _of_rows(u: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """The classes to which uniform numbers belong, as torch finds them on a CPU."""
    below = weights.detach().cumsum(-1)
    return torch.searchsorted((below / below[..., -1:]).double(), u)


@rule_for("binomial", "fractional_max_pool2d", "fractional_max_pool2d_with_indices", "fractional_max_pool3d",
          "fractional_max_pool3d_with_indices", "poisson")  # fmt: skip
def refused(node: Node) -> Operation:
    """Refuse functions that draw random numbers in another way."""
    raise RandomError(f"no rule for the random numbers of {node.key}")


def _fills(node: Node) -> bool:
    """Whether the call fills an existing tensor."""
    return bool(node.args) and node.args[0] in node.written and "out" not in node.kwargs


# Dropout


@rule_for("Dropout", "Dropout1d", "Dropout2d", "Dropout3d", "AlphaDropout", "FeatureAlphaDropout",
          "dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout",
          "feature_dropout", takes="input p training inplace train")  # fmt: skip
def dropout(node: Node) -> Operation:
    """Any dimension. The mask belongs to the whole tensor."""
    x = node.arguments[0]
    n = len(x.shape)
    is_alpha = node.key in _ALPHA
    if isinstance(node.target, torch.nn.Module):
        p, training = node.module.p, node.module.training
    else:
        p, training = argument(node, 1, "p", 0.5), argument(node, 2, "training", node.kwargs.get("train", not is_alpha))
    specs = [same(n)]
    if not training or p == 0.0 or 0 in x.shape:
        return local(node, specs, run=lambda x: x)
    if p == 1.0:
        return local(node, specs, run=lambda x: x * 0.0)
    dims = _drawn_dims(node.key, n)
    drawn = [m if d < dims else 1 for d, m in enumerate(x.shape)]
    mask = mask_of(drawn, x.dtype, p, dims == n, is_alpha, x if dims == n else None)
    run = _alpha(p) if is_alpha else torch.mul
    return Operation(
        x.shape, tuple(specs), lambda workers: lambda mask, x: run(x, mask), frozenset(range(n)), draw=mask
    )


_ALPHA = ("AlphaDropout", "alpha_dropout", "FeatureAlphaDropout", "feature_alpha_dropout")
_OF_ELEMENTS = ("Dropout", "dropout", "AlphaDropout", "alpha_dropout")
_WITHOUT_BATCH = {"Dropout1d": 2, "dropout1d": 2, "Dropout3d": 4, "dropout3d": 4}
"""The dimensions of an input without a batch. For dropout2d, torch takes 3 dimensions for a batch."""


def _drawn_dims(key: str, n: int) -> int:
    """The number of leading dimensions that the mask has."""
    if key in _OF_ELEMENTS:
        return n
    return 1 if n == _WITHOUT_BATCH.get(key) else 2


def mask_of(
    shape: Sequence[int],
    dtype: torch.dtype,
    p: float,
    is_whole: bool,
    is_alpha: bool = False,
    like: Value | None = None,
) -> Draw:
    """A mask of zeros with probability p, and of 1/(1-p) otherwise, or 1 for alpha dropout.

    Args:
        like: a tensor with the order in memory in which torch draws the mask; by default row-major.
    """
    kept = 1.0 if is_alpha else float(torch.ones((), dtype=dtype, device="cpu").div_(1 - p))

    def draw(key: int | None, intervals: Sequence[Interval], device: torch.device) -> torch.Tensor:
        intervals = [(0, 1) if n == 1 else interval for n, interval in zip(shape, intervals, strict=True)]
        if key is not None:
            return random_choice(key, shape, intervals, p, (0.0, kept), dtype=dtype, device=device)
        whole = torch.empty(shape, dtype=dtype, device=device) if like is None else torch.empty_like(like.empty(device))
        if is_whole and not is_alpha:  # on a GPU torch draws it in another way
            return cut_out(torch.nn.functional.dropout(whole.fill_(1.0), p), intervals)
        return cut_out(whole.bernoulli_(1 - p).mul_(kept), intervals)

    return draw


def _alpha(p: float) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    """The formula of torch.nn.functional.alpha_dropout."""
    alpha = 1.7580993408473766
    scale = 1 / math.sqrt((alpha * alpha * p + 1) * (1 - p))
    return lambda x, mask: x * (mask * scale) + (mask - 1) * (alpha * scale) + alpha * scale * p

"""Functions of torch that are recorded as several nodes, by the functions that they consist of."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from types import FunctionType
from typing import Any

import torch
import torch.nn.functional as F

from distdl.models.capture.composed_functions import COMPOSED, of_tensors
from distdl.models.capture.recording import Arguments, Function, Options
from distdl.models.capture.recurrent_layers import layer_by_layer
from distdl.models.capture.source_line import source_line
from distdl.torch_compat.operators import assert_async

INLINED = {"gumbel_softmax", "multi_head_attention_forward", "triplet_margin_with_distance_loss"}
"""Functions that are recorded by the functions, or by the layer, that they call."""


def inlined(function: Function) -> Function:
    """A function of torch.nn.functional without its first lines, which hand the call to a recorder."""
    assert isinstance(function, FunctionType)
    checks = ("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic")
    names = function.__globals__ | dict.fromkeys(checks, lambda *args: False)
    return FunctionType(function.__code__, names, function.__name__, function.__defaults__, function.__closure__)


SPLITTING = {"chunk", "split", "split_with_sizes", "tensor_split", "unbind"}
"""Functions that become a node for each part, so that each part has its own blocks."""


def split_calls(
    key: str, args: Arguments, kwargs: Options, parts: Sequence[torch.Tensor]
) -> Iterator[tuple[Function, torch.Tensor, Arguments]]:
    """For each part of a tensor, a function that takes this part alone, the part, and the arguments."""
    x, *rest = args
    if others := kwargs.keys() - _OF_PARTS:
        raise NotImplementedError(f"{key} with {', '.join(sorted(others))}")
    position = 0 if key == "unbind" else 1
    dim = (rest[position] if len(rest) > position else kwargs.get("dim", 0)) % x.dim()
    start = 0
    for i, part in enumerate(parts):
        if key == "unbind":
            yield torch.select, part, (x, dim, i)
        else:
            yield torch.narrow, part, (x, dim, start, part.shape[dim])
            start += part.shape[dim]


_OF_PARTS = {
    "chunks", "dim", "indices", "indices_or_sections", "sections", "split_size", "split_size_or_sections",
    "split_sizes", "tensor_indices_or_sections",
}  # fmt: skip
"""The names of the arguments of such functions."""


def with_values(x: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Replace the values of a tensor, and keep its derivative, as writing into it without gradients does."""
    x = x.clone()
    with torch.no_grad():
        return x.copy_(values)


def assign_data(x: torch.Tensor, values: torch.Tensor) -> None:
    """Write values into a parameter or buffer, as ``x.data = values`` does."""
    if not x.is_leaf or values.shape != x.shape or values.dtype != x.dtype:
        raise NotImplementedError(
            f"the data of a tensor is replaced, at {source_line()}; that is known of parameters and buffers, by a "
            "tensor of the same shape and dtype; use copy_() for others"
        )
    with torch.no_grad():
        x.copy_(values)


def meshgrid(*tensors: Any, indexing: str | None = None) -> tuple[torch.Tensor, ...]:
    """``torch.meshgrid`` by functions that have a single result each."""
    vectors = list(tensors[0]) if len(tensors) == 1 and isinstance(tensors[0], list | tuple) else list(tensors)
    swapped = indexing == "xy" and len(vectors) > 1
    if swapped:
        vectors[:2] = vectors[1::-1]
    shape = [vector.numel() for vector in vectors]
    single = [1] * len(vectors)
    grids = [x.reshape([*single[:d], -1, *single[d + 1 :]]).expand(shape) for d, x in enumerate(vectors)]
    if swapped:
        grids[:2] = grids[1::-1]
    return tuple(grids)


def broadcast_tensors(*tensors: Any) -> tuple[torch.Tensor, ...]:
    """``torch.broadcast_tensors`` by functions that have a single result each."""
    operands = tensors[0] if len(tensors) == 1 and isinstance(tensors[0], list | tuple) else tensors
    shape = torch.broadcast_shapes(*(tensor.shape for tensor in operands))
    return tuple(tensor.expand(shape) for tensor in operands)


def gaussian_nll_loss(
    input: torch.Tensor,
    target: torch.Tensor,
    var: torch.Tensor | float,
    full: bool = False,
    eps: float = 1e-6,
    reduction: str = "mean",
) -> torch.Tensor:
    """The loss of torch.nn.functional, with nan in place of an error for negative variances."""
    if isinstance(var, float):
        if var < 0:
            raise ValueError("var has negative entry/entries")
        var = input.new_full((), var).expand(input.shape)
    elif var.shape == input.shape[:-1]:
        var = var.unsqueeze(-1)
    others = [m for n, m in zip(input.shape, var.shape, strict=False) if n != m]
    if var.dim() != input.dim() or others not in ([], [1]):
        raise ValueError("var is of incorrect size")
    if reduction not in ("none", "mean", "sum"):
        raise ValueError(f"{reduction} is not valid")
    var = var.clone()  # in the order of memory in which it was
    with torch.no_grad():
        var.masked_fill_(var < 0, torch.nan).clamp_(min=eps)
    loss = 0.5 * (var.log() + (input - target) ** 2 / var)
    if full:
        loss = loss + 0.5 * math.log(2 * math.pi)
    return loss if reduction == "none" else loss.mean() if reduction == "mean" else loss.sum()


def cov(
    input: torch.Tensor,
    *,
    correction: int = 1,
    fweights: torch.Tensor | None = None,
    aweights: torch.Tensor | None = None,
) -> torch.Tensor:
    """``torch.cov`` without its check that no weight is negative."""
    x = input if input.dim() > 1 else input.reshape(1, -1)
    weightings = [weighting for weighting in (fweights, aweights) if weighting is not None]
    count: float | torch.Tensor = x.shape[1]
    if not weightings:
        centered = weighted = x - x.mean(1, keepdim=True)
        rest: float | torch.Tensor = max(0, count - correction)
    else:
        weights = math.prod(weightings[1:], start=weightings[0])
        count = weights.sum()
        centered = x - (x * weights).sum(1, keepdim=True) / count
        weighted = centered * weights
        lost = 1.0 if aweights is None else (weights * aweights).sum() / count
        rest = (count - correction * lost).clamp(min=0)
    return (centered @ weighted.mT.conj() / rest).squeeze()


def corrcoef(input: torch.Tensor) -> torch.Tensor:
    """``torch.corrcoef`` by :func:`cov`."""
    matrix = cov(input)
    if matrix.dim() == 0:
        return matrix / matrix
    deviations = matrix.diagonal().real.sqrt()
    matrix = matrix / deviations[:, None] / deviations
    if matrix.is_complex():
        return torch.complex(matrix.real.clip(-1, 1), matrix.imag.clip(-1, 1))
    return matrix.clip(-1, 1)


def masked_scatter(input: torch.Tensor, mask: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
    """``torch.masked_scatter`` by functions that take elements at numbers."""
    shape = torch.broadcast_shapes(input.shape, mask.shape)
    input, mask = input.expand(shape), mask.expand(shape)
    assert_async(mask.sum() <= source.numel(), "masked_scatter: the mask has more elements than the source")
    if not source.numel():
        return (input + source.sum(dtype=source.dtype)).contiguous()  # adds 0, so that source gets a gradient
    numbers = (mask.flatten().cumsum(0) - 1).clamp(0, source.numel() - 1)
    return torch.where(mask, source.flatten()[numbers].view(shape), input).contiguous()


def istft(
    input: torch.Tensor,
    n_fft: int,
    hop_length: int | None = None,
    win_length: int | None = None,
    window: torch.Tensor | None = None,
    center: bool = True,
    normalized: bool = False,
    onesided: bool | None = None,
    length: int | None = None,
    return_complex: bool = False,
) -> torch.Tensor:
    """``torch.istft`` of real signals: each frame is transformed, and the frames are added where they overlap."""
    if return_complex:
        raise NotImplementedError("istft with return_complex")
    hop, win_length = n_fft // 4 if hop_length is None else hop_length, n_fft if win_length is None else win_length
    bins, half = input.shape[-2], n_fft // 2 + 1
    is_window = window is None or (window.shape == (win_length,) and not window.is_complex())
    if not (input.is_complex() and 0 < hop <= win_length <= n_fft and is_window):
        raise RuntimeError(f"istft takes complex frames, 0 < {hop=} <= {win_length=} <= {n_fft=}, and a real window")
    if bins != (half if onesided or (onesided is None and bins != n_fft) else n_fft):
        raise RuntimeError(f"istft: {bins} frequencies do not fit {n_fft=} and {onesided=}")
    window = torch.ones(win_length, dtype=input.real.dtype, device=input.device) if window is None else window
    window = F.pad(window, ((n_fft - win_length) // 2, -((win_length - n_fft) // 2)))
    frames, norm = input.transpose(-1, -2), "ortho" if normalized else "backward"
    frames = torch.fft.irfft(frames[..., :half], n_fft, norm=norm)

    def added(parts: torch.Tensor) -> torch.Tensor:
        """The sum of frames (N, frames, n_fft), each of which begins a hop after the one before."""
        whole = n_fft + hop * (parts.shape[1] - 1)
        signal = F.fold(parts.transpose(1, 2), (1, whole), (1, n_fft), stride=(1, hop)).flatten(1)
        start = n_fft // 2 if center else 0
        end = whole - start if length is None else start + length
        return signal[:, start : min(end, whole)]

    batch, count = frames.shape[:-2], frames.shape[-2]
    weights = added((window * window).expand(1, count, n_fft))
    assert_async((weights.abs() > 1e-11).all(), "istft: the windows are zero at some place of the signal")
    signal = added((frames * window).reshape(-1, count, n_fft)) / weights
    return F.pad(signal, (0, max(0, (length or 0) - signal.shape[1]))).reshape(*batch, -1)


def embedding_bag(
    input: torch.Tensor,
    weight: torch.Tensor,
    offsets: torch.Tensor | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    mode: str = "mean",
    sparse: bool = False,
    per_sample_weights: torch.Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> torch.Tensor:
    """``torch.nn.functional.embedding_bag`` by an embedding, whose rows are reduced in each bag."""
    if mode not in ("sum", "mean", "max") or (input.dim() == 2) != (offsets is None):
        raise ValueError("embedding_bag takes bags (N, S), or (S) with offsets, and the mode sum, mean or max")
    if per_sample_weights is not None and mode != "sum":
        raise NotImplementedError("embedding_bag with per_sample_weights takes the mode sum")
    if per_sample_weights is not None and per_sample_weights.shape != input.shape:
        raise ValueError("embedding_bag takes per_sample_weights of the shape of the input")
    if padding_idx is not None and not -len(weight) <= padding_idx < len(weight):
        raise RuntimeError(f"embedding_bag: {padding_idx=} is no row of {len(weight)}")
    rows = F.embedding(input, weight, None, max_norm, norm_type, scale_grad_by_freq, sparse)
    counts = torch.ones_like(input) if padding_idx is None else (input != padding_idx % weight.shape[0]).long()
    counts = counts.unsqueeze(-1)
    if padding_idx is not None:
        rows = rows.masked_fill(counts == 0, -torch.inf if mode == "max" else 0.0)
    if per_sample_weights is not None:
        rows = rows * per_sample_weights.unsqueeze(-1)
    if offsets is None:
        reduced, numbers = rows.max(1).values if mode == "max" else rows.sum(1), counts.sum(1)
    else:
        bags = torch.searchsorted(offsets.long(), torch.arange(len(input), device=input.device), right=True) - 1
        size = len(offsets) - include_last_offset
        reduced, numbers = rows.new_zeros(size, weight.shape[1]), counts.new_zeros(size, 1).index_add(0, bags, counts)
        if mode == "max":
            index = bags.unsqueeze(1).expand(rows.shape)
            reduced = reduced.scatter_reduce(0, index, rows, "amax", include_self=False)
        else:
            reduced = reduced.index_add(0, bags, rows)
    return reduced / numbers.clamp(min=1) if mode == "mean" else torch.where(numbers > 0, reduced, 0.0)


DECOMPOSITIONS: dict[str, Function] = {
    "cov": cov,
    "corrcoef": corrcoef,
    "meshgrid": meshgrid,
    "broadcast_tensors": broadcast_tensors,
    "embedding_bag": embedding_bag,
    "gaussian_nll_loss": gaussian_nll_loss,
    "istft": istft,
    "masked_scatter": masked_scatter,
    **COMPOSED,
}
"""Replacements for functions that have several results of different tensors, or look at values."""


def decomposition(function: Function, key: str, args: Arguments) -> Function | None:
    """A function in place of one that has no rule, for these arguments; None for all others."""
    if function == torch.Tensor.data.__set__:
        return assign_data
    replacement = DECOMPOSITIONS.get(key)
    if replacement is None:
        return layer_by_layer(function, key, args) or of_tensors(key, args)
    if not function.__name__.endswith("_") or replacement.__name__.endswith("_"):
        return replacement
    return lambda x, *args, **kwargs: x.copy_(replacement(x, *args, **kwargs))

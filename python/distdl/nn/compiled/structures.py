"""The structure of a layer's results, as compilers are told: concluded on this rank, or asked by a call on zeros."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import torch
from torch.utils._python_dispatch import _disable_current_modes

from distdl import _core
from distdl.nn.compiled.arguments import Tensors, parsed
from distdl.nn.compiled.calls import called, called_by, in_place_of
from distdl.nn.compiled.registry import Described, Record, exported, layer_of, records
from distdl.nn.noticed import unnoticed

if TYPE_CHECKING:
    from distdl.nn.layer import Layer

WITH_VALUES = (torch.Tensor, torch.nn.Parameter)  # other tensors are those of compilers


def known_results(layer: Layer, call: str, tensors: tuple[Described, ...]) -> list[Described] | None:
    """The structure of the results for tensors of this structure, where it is known on this rank alone."""
    record = records.setdefault(layer, Record())
    symbolic = any(isinstance(size, torch.SymInt) for sizes, _ in tensors for size in sizes)
    found = None if symbolic else record.results.get((call, tensors))
    if found is None and record.guesses:
        for (other, given), results in record.results.items():
            if other == call and (found := _resized(given, results, tensors)) is not None:
                break
    return found


def _resized(
    given: Sequence[Described], results: Sequence[Described], tensors: Sequence[Described]
) -> list[Described] | None:
    """The results for tensors of other sizes, if each dimension that changed is one of the results as well."""
    if [(len(sizes), dtype) for sizes, dtype in given] != [(len(sizes), dtype) for sizes, dtype in tensors]:
        return None
    changed: dict[int, tuple[int, int]] = {}
    for (before, _), (now, _) in zip(given, tensors, strict=True):
        for d, (old, new) in enumerate(zip(before, now, strict=True)):
            differs = isinstance(new, torch.SymInt) or old != new
            if differs and changed.setdefault(d, (old, new)) != (old, new):
                return None
    resized = []
    for sizes, dtype in results:
        if sizes and any(d >= len(sizes) or sizes[d] != old for d, (old, _) in changed.items()):
            return None
        resized.append((tuple(changed[d][1] if d in changed else n for d, n in enumerate(sizes)), dtype))
    return resized


def _asked(layer: Layer, call: str, tensors: tuple[Described, ...]) -> list[Described]:
    """The structure of the results, by a call on zeros, of which nothing stays. Collective like a call."""
    zeros = [torch.zeros(sizes, dtype=dtype, device=_device_in(call)) for sizes, dtype in tensors]
    parameters = [_with_values(one) for one in layer.parameters()]
    buffers = [_with_values(one).clone() for one in layer.buffers()]
    by_compiler = called_by(layer, _core.Caller.compiler)
    with contextlib.ExitStack() as stack:
        for one in (torch.random.fork_rng(devices=[]), torch.no_grad(), by_compiler, unnoticed(layer)):
            stack.enter_context(one)
        stack.enter_context(in_place_of(layer, "buffers", buffers))
        results = called(layer, zeros, parameters, call)
    return [(tuple(one.shape), one.dtype) for one in results]


def _with_values(one: torch.Tensor) -> torch.Tensor:
    """A parameter or buffer; zeros where torch.export has put a tensor without values in its place."""
    return one if type(one) in WITH_VALUES else torch.zeros(one.shape, dtype=one.dtype, device=one.device)


def _device_in(call: str) -> str:
    return str(parsed(call)[1])


def described(key: int, call: str, tensors: Tensors) -> list[Described]:
    """The structure of the results, for a compiler."""
    layer = layer_of(key)
    if torch.compiler.is_exporting() and layer not in exported:
        exported.append(layer)
    symbolic = tuple((tuple(one.shape), one.dtype) for one in tensors)
    if (found := known_results(layer, call, symbolic)) is not None:
        return found
    structure = tuple((tuple(map(int, sizes)), dtype) for sizes, dtype in symbolic)
    found = known_results(layer, call, structure)
    if found is None:
        with _outside_of_compilers():
            found = _asked(layer, call, structure)
    records[layer].results[call, structure] = found
    return found


@contextlib.contextmanager
def _outside_of_compilers() -> Iterator[None]:
    flag = torch.compiler._is_compiling_flag
    torch.compiler._is_compiling_flag = False
    try:
        with _disable_current_modes():
            yield
    finally:
        torch.compiler._is_compiling_flag = flag

"""Structures of results for compilers: inferred on this rank, or from a call on zeros."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import torch

from distdl import _core
from distdl.modules.first_values import without_first_call_checks
from distdl.nn.base.compile.arguments import Tensors, parse_call
from distdl.nn.base.compile.calls import call_with, with_caller, with_tensors
from distdl.nn.base.compile.registry import Record, SizesAndDtype, TracedLayer, exported, records, registered_layer
from distdl.torch_compat.compilers import same_attributes_in_export
from distdl.torch_compat.modes import outside_of_compilers

WITH_VALUES = (torch.Tensor, torch.nn.Parameter)  # compilers use other classes


def known_results(layer: TracedLayer, call: str, tensors: tuple[SizesAndDtype, ...]) -> list[SizesAndDtype] | None:
    """The structure of the results for tensors of this structure, if this rank can infer it alone."""
    record = records.setdefault(layer, Record())
    symbolic = any(isinstance(size, torch.SymInt) for sizes, _ in tensors for size in sizes)
    structure = None if symbolic else record.results.get((call, tensors))
    if structure is None and record.guesses:
        for (other, known), results in record.results.items():
            if other == call and (structure := _resized(known, results, tensors)) is not None:
                break
    return structure


def _resized(
    known: Sequence[SizesAndDtype], results: Sequence[SizesAndDtype], tensors: Sequence[SizesAndDtype]
) -> list[SizesAndDtype] | None:
    """The results for tensors of other sizes, if each changed dimension is a dimension of the results, too."""
    if [(len(sizes), dtype) for sizes, dtype in known] != [(len(sizes), dtype) for sizes, dtype in tensors]:
        return None
    changed: dict[int, tuple[int, int]] = {}
    for (before, _), (now, _) in zip(known, tensors, strict=True):
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


def _structure_from_zeros(layer: TracedLayer, call: str, tensors: tuple[SizesAndDtype, ...]) -> list[SizesAndDtype]:
    """The structure of the results, by a call on zeros without side effects. Collective like a call."""
    zeros = [torch.zeros(sizes, dtype=dtype, device=_device_in(call)) for sizes, dtype in tensors]
    parameters = [_with_values(parameter) for parameter in layer.parameters()]
    buffers = [_with_values(buffer).clone() for buffer in layer.buffers()]
    by_compiler = with_caller(layer, _core.Caller.compiler)
    with contextlib.ExitStack() as stack:
        for context in (
            torch.random.fork_rng(devices=[]),
            torch.no_grad(),
            by_compiler,
            without_first_call_checks(layer),
        ):
            stack.enter_context(context)
        stack.enter_context(with_tensors(layer, "buffers", buffers))
        results = call_with(layer, zeros, parameters, call)
    return [(tuple(result.shape), result.dtype) for result in results]


def _with_values(x: torch.Tensor) -> torch.Tensor:
    """A parameter or buffer; zeros in place of a tensor of torch.export without values."""
    return x if type(x) in WITH_VALUES else torch.zeros(x.shape, dtype=x.dtype, device=x.device)


def _device_in(call: str) -> str:
    return str(parse_call(call)[1])


def result_structure(key: int, call: str, tensors: Tensors) -> list[SizesAndDtype]:
    """The structure of the results, for a compiler."""
    layer = registered_layer(key)
    if torch.compiler.is_exporting() and layer not in exported:
        exported.append(layer)
    symbolic = tuple((tuple(tensor.shape), tensor.dtype) for tensor in tensors)
    if (result := known_results(layer, call, symbolic)) is not None:
        return result
    structure = tuple((tuple(map(int, sizes)), dtype) for sizes, dtype in symbolic)
    result = known_results(layer, call, structure)
    if result is None:
        with outside_of_compilers(), same_attributes_in_export(layer):
            result = _structure_from_zeros(layer, call, structure)
    records[layer].results[call, structure] = result
    return result

"""Run a layer for a compiled program, or on fake tensors for a compiler."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Literal, cast

import torch

from distdl import _core
from distdl.nn.base.compile.arguments import (
    CallArguments,
    Tensors,
    fill_template,
    parse_call,
    result_form,
    result_tensors,
)
from distdl.nn.base.compile.registry import Record, SizesAndDtype, TracedLayer, records
from distdl.torch_compat.compilers import new_key


def call_with(layer: TracedLayer, tensors: Tensors, parameters: Tensors, call: str) -> list[torch.Tensor]:
    """Call a layer with these tensors in place of its arguments and parameters."""
    template, device, autocast = parse_call(call)
    args, kwargs = cast(CallArguments, fill_template(template, tensors))
    dtype = getattr(torch, autocast.removeprefix("torch.")) if autocast else None
    with with_tensors(layer, "parameters", parameters), torch.autocast(device, dtype, enabled=bool(autocast)):
        result = layer.call(*args, **kwargs)
    namedtuple_class = type(result) if hasattr(result, "_fields") else None
    records.setdefault(layer, Record()).forms.setdefault(call, (result_form(result), namedtuple_class))
    return result_tensors(result)


@contextlib.contextmanager
def with_tensors(layer: TracedLayer, kind: Literal["parameters", "buffers"], tensors: Tensors) -> Iterator[None]:
    """Let a layer use these tensors in place of its parameters or buffers; shared tensors count once."""
    places: list[tuple[dict[str, torch.Tensor | None], str, torch.Tensor]] = []
    for name, original in getattr(layer, f"named_{kind}")(remove_duplicate=False):
        places.append((*place_of(layer, kind, name), original))
    distinct = dict.fromkeys(id(original) for *_, original in places)
    replacements = dict(zip(distinct, tensors, strict=True))
    try:
        for holder, name, original in places:
            holder[name] = replacements[id(original)]
        yield
    finally:
        for holder, name, original in places:
            holder[name] = original


def place_of(
    module: torch.nn.Module, kind: Literal["parameters", "buffers"], name: str
) -> tuple[dict[str, torch.Tensor], str]:
    """The dict that holds a parameter or buffer of a submodule, and its name there."""
    path, _, leaf = name.rpartition(".")
    return vars(child_at(module, path))[f"_{kind}"], leaf


def child_at(module: torch.nn.Module, path: str) -> torch.nn.Module:
    """The submodule of this name, past attributes and ``__getattr__`` of its owner."""
    for name in filter(None, path.split(".")):
        module = vars(module)["_modules"][name]
    return module


@contextlib.contextmanager
def with_caller(
    layer: TracedLayer, caller: _core.Caller, promised: list[SizesAndDtype] | None = None
) -> Iterator[None]:
    """Note who calls a layer (a program, compiled code or a compiler), and which results compiled code expects."""
    agreement, record = layer.agreement, records.setdefault(layer, Record())
    if agreement is None:
        yield
        return
    agreement.set_caller(caller)
    record.promised = promised
    try:
        yield
    finally:
        agreement.set_caller(_core.Caller.program)
        record.promised = None


def check_sizes(layer: TracedLayer, result: object) -> None:
    """Raise on all ranks of a layer if results differ from the structure that a rank's program was compiled for.

    The layer then gets another key in graphs, which the guards of compiled code notice: all ranks compile anew at the
    next call. Collective over the layer's ranks.
    """
    record, problem = records.setdefault(layer, Record()), ""
    if record.promised is not None:
        structure = [(tuple(tensor.shape), tensor.dtype) for tensor in result_tensors(result)]
        if structure != record.promised:
            promised = _describe(record.promised)
            problem = f"gives results of {_describe(structure)}, and that rank's program was compiled for {promised}"
    group = layer.all_ranks
    for rank, text in zip(group.ranks, group.gather(problem.encode()), strict=True):
        if text:
            records[layer] = Record(guesses=False)
            layer.key_in_graphs = new_key(layer)
            raise RuntimeError(
                f"{type(layer).__name__}: on rank {rank} it {text.decode()}: an input of another rank "
                "changed its shape or dtype. The next call is compiled anew"
            )


def _describe(structures: Sequence[SizesAndDtype]) -> str:
    return ", ".join(f"{list(sizes)} of {dtype}" for sizes, dtype in structures)

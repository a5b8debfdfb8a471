"""The call of a layer in a compiled program, or for a compiler."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Literal, cast

import torch

from distdl import _core
from distdl.nn.compiled.arguments import Arguments, Tensors, filled, form_of, parsed, tensors_of
from distdl.nn.compiled.registry import Described, Record, new_key, records

if TYPE_CHECKING:
    from distdl.nn.layer import Layer


def called(layer: Layer, tensors: Tensors, parameters: Tensors, call: str) -> list[torch.Tensor]:
    """The results of a layer's call with these tensors in place of its arguments and parameters."""
    template, device, autocast = parsed(call)
    args, kwargs = cast(Arguments, filled(template, tensors))
    dtype = getattr(torch, autocast.removeprefix("torch.")) if autocast else None
    with in_place_of(layer, "parameters", parameters), torch.autocast(device, dtype, enabled=bool(autocast)):
        result = layer.call(*args, **kwargs)
    named = type(result) if hasattr(result, "_fields") else None
    records.setdefault(layer, Record()).forms.setdefault(call, (form_of(result), named))
    return tensors_of(result)


@contextlib.contextmanager
def in_place_of(layer: Layer, kind: Literal["parameters", "buffers"], tensors: Tensors) -> Iterator[None]:
    """Let a layer use these tensors in place of its parameters or buffers, of which one may have several names."""
    places: list[tuple[dict[str, torch.Tensor | None], str, torch.Tensor]] = []
    for name, before in getattr(layer, f"named_{kind}")(remove_duplicate=False):
        places.append((*place_of(layer, kind, name), before))
    distinct = dict.fromkeys(id(before) for *_, before in places)
    instead = dict(zip(distinct, tensors, strict=True))
    try:
        for held, name, before in places:
            held[name] = instead[id(before)]
        yield
    finally:
        for held, name, before in places:
            held[name] = before


def place_of(
    module: torch.nn.Module, kind: Literal["parameters", "buffers"], name: str
) -> tuple[dict[str, torch.Tensor], str]:
    """The dict in which a module within holds a parameter or a buffer, and the name there."""
    path, _, leaf = name.rpartition(".")
    return vars(child_at(module, path))[f"_{kind}"], leaf


def child_at(module: torch.nn.Module, path: str) -> torch.nn.Module:
    """The module of this name within a module, also of ``blocks`` and other names of what layers have themselves."""
    for name in filter(None, path.split(".")):
        module = vars(module)["_modules"][name]
    return module


@contextlib.contextmanager
def called_by(layer: Layer, caller: _core.Caller, promised: list[Described] | None = None) -> Iterator[None]:
    """Tell a layer who calls it, and for results of which structure a compiled program was made."""
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


def check_sizes(layer: Layer, result: object) -> None:
    """Raise on all ranks of a layer if any rank's compiled program relies on results of another structure.

    Then all of them compile anew at the next call, for a layer of another key. Collective over the layer's ranks.
    """
    record, problem = records.setdefault(layer, Record()), ""
    if record.promised is not None:
        found = [(tuple(one.shape), one.dtype) for one in tensors_of(result)]
        if found != record.promised:
            problem = (
                f"gives results of {_shown(found)}, and this rank's program was compiled for {_shown(record.promised)}"
            )
    everyone = layer.everyone
    for rank, said in zip(everyone.ranks, everyone.gather(problem.encode()), strict=True):
        if said:
            records[layer] = Record(guesses=False)
            layer.key_in_graphs = new_key(layer)
            raise RuntimeError(
                f"{type(layer).__name__}: on rank {rank} it {said.decode()}: tensors of other ranks have changed. "
                "The next call is compiled anew"
            )


def _shown(described: Sequence[Described]) -> str:
    return ", ".join(f"{list(sizes)} of {dtype}" for sizes, dtype in described)

"""Warn once, at a layer's first call, about single-process code that gives wrong results on several ranks.

The first call compares facts of the ranks in one exchange of small texts; later calls compare nothing. One rank warns.
If warnings are errors there, all ranks of the layer raise the error.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import warnings
import weakref
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves

from distdl.collective.comparison import HabitWarning, compare
from distdl.nn.findings import Finding, blocks_of, checksum, copies, in_modules, other_draws, same_input

if TYPE_CHECKING:
    from distdl.nn.layer import Layer

# The most elements to compare in each tensor; fewer than LEAST may be equal by chance.
MOST, LEAST = 4096, 16

_CALL = torch.nn.Module._call_impl.__code__
_LIBRARY_FOLDERS = tuple(f"{Path(module.__file__ or '').parent}{os.sep}" for module in (torch, sys.modules["distdl"]))

said: set[str] = set()
"""The kinds of habits that this rank has warned about."""
_checked_models: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()


class FirstValues(NamedTuple):
    """The checksum of the generator's state before parameters were drawn, and their versions afterwards."""

    drawn_from: int
    versions: list[int]


def random_state(layer: Layer) -> int:
    """A checksum of the generator's state before a layer's parameters are drawn; 0 without parameters."""
    return checksum(torch.get_rng_state()) if layer.layouts else 0


def versions(layer: Layer) -> list[int]:
    """The number of writes to each parameter."""
    return [getattr(parameter, "_version", 0) for parameter in layer.parameters()]


def forget_draws(module: torch.nn.Module) -> None:
    """Stop comparing the generators that drew parameters: the parameters were loaded from one rank."""
    for part in module.modules():
        if (first := getattr(part, "first_values", None)) is not None:
            part.first_values = FirstValues(0, first.versions)


@contextlib.contextmanager
def suppress_warnings(layer: Layer) -> Iterator[None]:
    """Suppress first-call warnings, for calls that a compiler makes."""
    layers = [part for part in layer.modules() if getattr(part, "first_values", None) is not None]
    values = [part.first_values for part in layers]
    try:
        for part in layers:
            part.first_values = None
        yield
    finally:
        for part, value in zip(layers, values, strict=True):
            part.first_values = value


def notice(layer: Layer, args: Sequence[object]) -> None:
    """Look for habits in the first call of a layer. Collective over the layer's ranks."""
    first, layer.first_values = layer.first_values, None
    group = layer.all_ranks
    if group.size < 2 or first is None:
        return
    warns = group.rank == 0
    facts: dict[str, object] = {}
    with contextlib.suppress(Exception), _disable_current_modes(), torch.no_grad():  # e.g. for a user's tensor class
        facts = _local_facts(layer, first, args, warns)
    views = {
        rank: json.loads(text) for rank, text in zip(group.ranks, group.gather(json.dumps(facts).encode()), strict=True)
    }
    known = views[group.ranks[0]].get("said", [])
    findings = {kind: finding for kind, finding in _findings(layer, views) if kind not in known}
    if not findings:
        return
    error: Exception | None = None
    try:
        for kind, finding in findings.items() if warns else ():
            said.add(kind)
            warnings.warn(f"{finding}. distdl.check(model) lists all it sees", HabitWarning, stacklevel=_stacklevel())
    except Exception as raised:
        error = raised
    compare("", f"first call of {type(layer).__name__}", group, error, {}, {})


def _local_facts(layer: Layer, first: FirstValues, args: Sequence[object], warns: bool) -> dict[str, object]:
    facts: dict[str, object] = {}
    model, where = _model_around(layer)
    if warns:
        facts = {"where": where, "said": sorted(said), "modules": []}
        if model is not None and model not in _checked_models:
            _checked_models.add(model)
            facts["modules"] = list(in_modules(model))
    x = next((leaf for leaf in tree_leaves(list(args)) if isinstance(leaf, torch.Tensor)), None)
    if layer.grid.active and x is not None and x.is_floating_point() and x.grad_fn is None:
        facts["input"] = [list(x.shape), checksum(_sample(x), LEAST)]
    if first.versions == versions(layer):
        facts["drawn_from"] = first.drawn_from
    else:
        blocks = blocks_of(layer)
        facts["blocks"] = {name: (intervals, checksum(_sample(block), LEAST)) for name, intervals, block in blocks}
    return facts


def _findings(layer: Layer, views: Mapping[int, Mapping[str, object]]) -> Iterator[tuple[str, Finding]]:
    """The habits, by kind; equal on all ranks."""
    speaker = next(iter(views.values()))
    where = str(speaker.get("where", ""))
    modules: Sequence[Sequence[str]] = speaker.get("modules", [])  # type: ignore[assignment]
    if modules:
        finding = Finding(*modules[0])
        others = f" (and {len(modules) - 1} more)" if len(modules) > 1 else ""
        yield f"modules: {finding}", Finding(finding.where, finding.what + others, finding.instead)
    if len({view["drawn_from"] for view in views.values() if "drawn_from" in view}) > 1:
        yield "seeds", other_draws(where)
    inputs: list[tuple[object, int]] = [views[rank].get("input", ((), 0)) for rank in layer.grid.ranks]  # type: ignore[misc]
    if len(inputs) > 1 and inputs[0][1] and all(value == inputs[0] for value in inputs):
        yield "whole", same_input(inputs[0][0], where)
    for finding in copies({rank: view.get("blocks", {}) for rank, view in views.items()}):  # type: ignore[misc]
        yield "copies", Finding(f"{where}.{finding.where}", finding.what, finding.instead)
        return


def _sample(x: torch.Tensor) -> torch.Tensor:
    """Some elements of a tensor, at places that depend only on its shape."""
    while x.numel() > MOST:
        d = max(range(x.dim()), key=lambda d: x.shape[d])
        x = x[(slice(None),) * d + (slice(None, None, 2),)]
    return x


def _model_around(layer: Layer) -> tuple[torch.nn.Module | None, str]:
    model, frame = None, sys._getframe(1)
    while frame is not None:
        if frame.f_code is _CALL:
            model = frame.f_locals.get("self")
        frame = frame.f_back  # type: ignore[assignment]
    if not isinstance(model, torch.nn.Module) or model is layer:
        return None, type(layer).__name__
    return model, next((name for name, part in model.named_modules() if part is layer), type(layer).__name__)


def _stacklevel() -> int:
    """The stacklevel of the first frame outside torch and distdl."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_LIBRARY_FOLDERS):
        frame, level = frame.f_back, level + 1
    return level

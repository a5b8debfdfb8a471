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

import torch

from distdl.diagnostics.detectors import (
    Finding,
    blocks_of,
    generators_differ,
    inputs_are_equal,
    repeated_blocks,
    unsafe_modules,
)
from distdl.modules.first_values import FirstValues, checksum, first_call_checks, versions
from distdl.nn.base.layer import Layer
from distdl.partitions.comparison import HabitWarning, compare
from distdl.torch_compat.layers import CODE_OF_CALL
from distdl.torch_compat.modes import without_modes
from distdl.torch_compat.trees import tree_leaves

# The most elements to compare in each tensor; fewer than LEAST may be equal by chance.
MOST, LEAST = 4096, 16

_CALL = CODE_OF_CALL
_LIBRARY_FOLDERS = tuple(f"{Path(module.__file__ or '').parent}{os.sep}" for module in (torch, sys.modules["distdl"]))

said: set[str] = set()
"""The kinds of habits that this rank has warned about."""
_checked_models: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()


def warn_of_habits(layer: Layer, first: FirstValues, args: Sequence[object]) -> None:
    """Look for habits in the first call of a layer. Collective over the layer's ranks."""
    group = layer.all_ranks
    if group.size < 2:
        return
    warns = group.rank == 0
    facts: dict[str, object] = {}
    with contextlib.suppress(Exception), without_modes(), torch.no_grad():  # e.g. for a user's tensor class
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
        checked: torch.nn.Module = layer if model is None else model
        if checked not in _checked_models:
            _checked_models.add(checked)
            facts["modules"] = list(unsafe_modules(checked))
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
        yield "seeds", generators_differ(where)
    inputs: list[tuple[object, int]] = [views[rank].get("input", ((), 0)) for rank in layer.grid.ranks]  # type: ignore[misc]
    if len(inputs) > 1 and inputs[0][1] and all(value == inputs[0] for value in inputs):
        yield "whole", inputs_are_equal(inputs[0][0], where)
    for finding in repeated_blocks({rank: view.get("blocks", {}) for rank, view in views.items()}):  # type: ignore[misc]
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


first_call_checks.append(warn_of_habits)

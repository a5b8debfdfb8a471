"""Habits of programs of one process that a layer notices in its first call, and says once, as a warning.

The first call compares what the ranks have in one exchange of small texts; later calls ask nothing. One rank warns. If
warnings are errors there, all ranks of the layer raise the error.
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

# Of each tensor no more elements are looked at; fewer than LEAST may be equal by chance.
MOST, LEAST = 4096, 16

_CALL = torch.nn.Module._call_impl.__code__
_LIBRARIES = tuple(f"{Path(module.__file__ or '').parent}{os.sep}" for module in (torch, sys.modules["distdl"]))

said: set[str] = set()
"""The kinds of habits that this rank has warned of."""
_looked_at: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()


class FirstValues(NamedTuple):
    """The checksum of the generator's state from which parameters were drawn, and their versions after that."""

    drawn_from: int
    versions: list[int]


def random_state(layer: Layer) -> int:
    """A checksum of the state from which a layer's parameters will be drawn; 0 where there are none."""
    return checksum(torch.get_rng_state()) if layer.layouts else 0


def versions(layer: Layer) -> list[int]:
    """How many times each parameter was written."""
    return [getattr(one, "_version", 0) for one in layer.parameters()]


def forget_draws(module: torch.nn.Module) -> None:
    """The values of one rank have replaced what the ranks had drawn, from whatever states of their generators."""
    for one in module.modules():
        if (first := getattr(one, "first_values", None)) is not None:
            one.first_values = FirstValues(0, first.versions)


@contextlib.contextmanager
def unnoticed(layer: Layer) -> Iterator[None]:
    """Make calls, such as those of compilers, of which nothing is noticed."""
    layers = [one for one in layer.modules() if getattr(one, "first_values", None) is not None]
    held = [one.first_values for one in layers]
    try:
        for one in layers:
            one.first_values = None
        yield
    finally:
        for one, before in zip(layers, held, strict=True):
            one.first_values = before


def notice(layer: Layer, args: Sequence[object]) -> None:
    """Look for habits in the first call of a layer. Collective over the layer's ranks."""
    first, layer.first_values = layer.first_values, None
    everyone = layer.everyone
    if everyone.size < 2 or first is None:
        return
    speaks = everyone.rank == 0
    mine: dict[str, object] = {}
    with contextlib.suppress(Exception), _disable_current_modes(), torch.no_grad():  # a tensor of the user's own class
        mine = _seen(layer, first, args, speaks)
    views = {
        rank: json.loads(text)
        for rank, text in zip(everyone.ranks, everyone.gather(json.dumps(mine).encode()), strict=True)
    }
    known = views[everyone.ranks[0]].get("said", [])
    news = {kind: one for kind, one in _found(layer, views) if kind not in known}
    if not news:
        return
    error: Exception | None = None
    try:
        for kind, finding in news.items() if speaks else ():
            said.add(kind)
            warnings.warn(f"{finding}. distdl.check(model) lists all it sees", HabitWarning, stacklevel=_level())
    except Exception as raised:
        error = raised
    compare("", f"first call of {type(layer).__name__}", everyone, error, {}, {})


def _seen(layer: Layer, first: FirstValues, args: Sequence[object], speaks: bool) -> dict[str, object]:
    """Collect the facts that this rank can see, for rank 0 to compare."""
    found: dict[str, object] = {}
    model, where = _model_around(layer)
    if speaks:
        found = {"where": where, "said": sorted(said), "modules": []}
        if model is not None and model not in _looked_at:
            _looked_at.add(model)
            found["modules"] = list(in_modules(model))
    x = next((one for one in tree_leaves(list(args)) if isinstance(one, torch.Tensor)), None)
    if layer.grid.active and x is not None and x.is_floating_point() and x.grad_fn is None:
        found["input"] = [list(x.shape), checksum(_sample(x), LEAST)]
    if first.versions == versions(layer):
        found["drawn_from"] = first.drawn_from
    else:
        blocks = blocks_of(layer)
        found["blocks"] = {name: (intervals, checksum(_sample(one), LEAST)) for name, intervals, one in blocks}
    return found


def _found(layer: Layer, views: Mapping[int, Mapping[str, object]]) -> Iterator[tuple[str, Finding]]:
    """The habits, by kind; the same on all ranks."""
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
    if len(inputs) > 1 and inputs[0][1] and all(one == inputs[0] for one in inputs):
        yield "whole", same_input(inputs[0][0], where)
    for finding in copies({rank: view.get("blocks", {}) for rank, view in views.items()}):  # type: ignore[misc]
        yield "copies", Finding(f"{where}.{finding.where}", finding.what, finding.instead)
        return


def _sample(x: torch.Tensor) -> torch.Tensor:
    """Some of the elements of a tensor, at places that depend on its shape alone."""
    while x.numel() > MOST:
        d = max(range(x.dim()), key=lambda d: x.shape[d])
        x = x[(slice(None),) * d + (slice(None, None, 2),)]
    return x


def _model_around(layer: Layer) -> tuple[torch.nn.Module | None, str]:
    """The outermost module whose call this is a part of, and the layer's name in it."""
    model, frame = None, sys._getframe(1)
    while frame is not None:
        if frame.f_code is _CALL:
            model = frame.f_locals.get("self")
        frame = frame.f_back  # type: ignore[assignment]
    if not isinstance(model, torch.nn.Module) or model is layer:
        return None, type(layer).__name__
    return model, next((name for name, one in model.named_modules() if one is layer), type(layer).__name__)


def _level() -> int:
    """How many calls the line of the user's program is away from the function that asks."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_LIBRARIES):
        frame, level = frame.f_back, level + 1
    return level

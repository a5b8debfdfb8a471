"""The layouts of a model's tensors, and the ranks that hold them."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Mapping, Sequence

import torch

from distdl.modules.module import Module
from distdl.modules.state import name_in_state, tensors_in_state
from distdl.parameters.layout import Layout
from distdl.partitions.comparison import gather_or_raise
from distdl.partitions.grid import Grid


def check_module(what: str, model: object) -> None:
    """Raise TypeError unless the model is a module."""
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"{what}: model is a {type(model).__name__}; it has to be a torch.nn.Module")


def layouts_of(model: torch.nn.Module) -> dict[str, Layout]:
    """The layouts of all parameters and buffers in blocks, by their names in the model's state_dict."""
    return {
        name_in_state(f"{prefix}.{name}" if prefix else name): layout
        for prefix, module in model.named_modules(remove_duplicate=False)
        if isinstance(module, Module)
        for name, layout in module.layouts.items()
    }


def ranks_of(layouts: Iterable[Layout]) -> Grid:
    """All ranks of the parent communicator of a model's partitions; unknown on ranks outside of it.

    If layers are on different bare communicators, the ranks of the largest one. Unknown without layouts.
    """
    widest = max((layout.grid for layout in layouts), key=lambda grid: len(grid.constructors), default=Grid.unknown())
    return widest.constructing_ranks()


def check_undeclared(what: str, model: torch.nn.Module, group: Grid, layouts: Mapping[str, Layout]) -> None:
    """Raise if tensors without a layout differ between ranks. Collective over the group.

    A tensor of torch's modules must have the same shape on all ranks. A tensor of a module over partitions must have
    the same values, too: if it is a block, the module must declare it.
    """
    named = model.named_modules(remove_duplicate=False)
    ours = [name_in_state(f"{prefix}.")[:-1] for prefix, module in named if isinstance(module, Module)]

    def seen() -> bytes:
        facts = {}
        for name, value in tensors_in_state(model).items():
            if name not in layouts:
                owner = name.rpartition(".")[0].partition("parametrizations.")[0].rstrip(".")
                facts[name] = [str(value.dtype), list(value.shape), bits_checksum(value) if owner in ours else 0]
        return json.dumps(facts).encode()

    views = [json.loads(view) for view in gather_or_raise(what, group, seen)]
    for name, here in views[0].items():
        other = next((rank for rank, view in zip(group.ranks, views, strict=True) if view[name] != here), None)
        if other is None:
            continue
        there = views[group.ranks.index(other)][name]
        differs = "shapes" if here[:2] != there[:2] else "values"
        raise ValueError(
            f"{what}: {name} has other {differs} on rank {other} (shape {there[1]}) than on rank {group.ranks[0]} "
            f"(shape {here[1]}), and no layout says how they make up a whole. A tensor in blocks has to be declared "
            "(distdl.nn.Module.declare_parameter). A parametrized parameter of a distributed layer cannot be declared"
        )


def sources_of_gradients(grads: Mapping[str, torch.Tensor], undeclared: Sequence[str], group: Grid) -> dict[str, int]:
    """The parameters with a gradient on any rank, and for each, the lowest rank that holds the whole gradient.

    Args:
        grads: the gradients of this rank.
        undeclared: the names of the parameters without a layout. Their gradients must be equal on all ranks, or nonzero
            on exactly one rank; otherwise all ranks raise ValueError.
        group: the ranks that compare. Collective over them.
    """

    def seen() -> bytes:
        checksums = {
            name: bits_checksum(gradient) if name in undeclared and bool(torch.count_nonzero(gradient)) else 0
            for name, gradient in grads.items()
        }
        return json.dumps(checksums).encode()

    views = [json.loads(view) for view in gather_or_raise("sequential_gradients", group, seen)]
    sources = {}
    for name in dict.fromkeys(name for view in views for name in view):
        sums = [view.get(name, 0) for view in views]
        nonzero = [rank for rank, checked in zip(group.ranks, sums, strict=True) if checked]
        sources[name] = nonzero[0] if nonzero else group.ranks[0]
        if len(nonzero) > 1 and len(set(sums)) > 1:
            raise ValueError(
                f"sequential_gradients: no layer declared {name}, its gradients differ among the ranks {nonzero}, and "
                "it is unknown whether they are parts of one. Make its layer by distdl.nn.Local, or declare it"
            )
    return sources


def bits_checksum(value: torch.Tensor) -> int:
    """A checksum of a tensor's bits."""
    flat = value.detach().resolve_conj().cpu().contiguous().reshape(-1)
    return zlib.crc32(flat.view(torch.uint8).numpy().tobytes()) if flat.numel() else 0

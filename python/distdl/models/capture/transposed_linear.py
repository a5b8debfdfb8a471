"""Linear layers with the transposed weight, which flatten their input first, as one call that keeps its dimensions.

Blocks of tokens of several samples are no blocks of the flattened tokens: those would have to travel.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import torch
import torch.nn.functional as F

from distdl.models.capture.recording import Node, Recording, Value
from distdl.torch_compat.trees import tree_leaves

_VIEWS = ("view", "reshape")


def transposed_linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """``x @ weight + bias`` for inputs with any number of dimensions."""
    return F.linear(x, weight.mT, bias)


def with_transposed_linear(recording: Recording) -> Recording:
    """The same computation, with :func:`transposed_linear` for ``addmm(bias, x.view(-1, n), weight).view(...)``."""
    makers = {value: node for node in recording.nodes for value in node.outputs}
    readers = {value: node for node in recording.nodes for value in node.inputs}
    uses = Counter(value for node in recording.nodes for value in node.inputs)
    others = (recording.results, dict(recording.written), [(at.args, dict(at.kwargs), at.results) for at in
              recording.boundaries])  # fmt: skip
    uses.update(leaf for leaf in tree_leaves(others) if isinstance(leaf, Value))
    instead: dict[Node, Node | None] = {}
    for node in recording.nodes:
        if node.key != "addmm" or node.kwargs or len(node.args) != 3 or len(node.inputs) != 3:
            continue
        bias, x, weight = node.inputs
        first, last = makers.get(x), readers.get(node.outputs[0])
        if first is None or last is None or not (uses[x] == uses[node.outputs[0]] == 1):
            continue
        is_between_views = first.key in _VIEWS and last.key in _VIEWS and node.checkpoint == first.checkpoint
        whole, y = first.inputs[0], last.outputs[0]
        keeps_dims = whole.shape[-1:] == x.shape[-1:] and y.shape == (*whole.shape[:-1], *weight.shape[1:])
        if is_between_views and keeps_dims and len(bias.shape) == 1 and whole.dtype == x.dtype:
            instead |= {first: None, node: None}
            instead[last] = replace(
                node, target=transposed_linear, key="transposed_linear", args=(whole, weight, bias), results=y
            )
    return _with(recording, instead) if instead else recording


def _with(recording: Recording, instead: dict[Node, Node | None]) -> Recording:
    """The recording with other nodes, or none, in place of some."""
    changed = Recording(
        recording.inputs, results=recording.results, looks=recording.looks, written=recording.written,
        tables=recording.tables, returned_objects=recording.returned_objects,
    )  # fmt: skip
    places = []
    for node in recording.nodes:
        places.append(len(changed.nodes))
        kept = instead.get(node, node)
        if kept is not None:
            changed.add(kept)
    places.append(len(changed.nodes))
    changed.boundaries = [replace(at, place=places[at.place]) for at in recording.boundaries]
    return changed

"""The work of recorded calls, as torch does them: operations of floating point, and what backward passes keep."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch.utils.flop_counter import FlopCounterMode

from distdl.models.capture.functions import KEEPING_SIZES, WITHOUT_VALUES
from distdl.models.capture.recording import Node, Recording, Value
from distdl.models.capture.unrecorded import storage_of
from distdl.torch_compat.fake import FakeTensor, FakeTensorMode, errors_of_missing_values
from distdl.torch_compat.trees import tree_leaves


@dataclass(frozen=True)
class Saved:
    """A tensor that a call keeps for its backward pass.

    Attributes:
        value: the input or result whose memory it shares; of a copy in another dtype, the input that was copied; None
            for a tensor of the call's own.
        nbytes: bytes of the whole tensor.
        is_own: whether it has memory of its own.
    """

    value: Value | None
    nbytes: int
    is_own: bool


@dataclass(frozen=True)
class NodeWork:
    """The work of a node for whole tensors.

    Attributes:
        operations: the number of floating-point operations in a forward pass.
        saved: what its backward pass needs; nothing if no backward pass reaches it.
        shares: for each result that shares the memory of an input, this input.
        dtypes: of the results, which autocast may change.
        differentiated: the inputs and results that get gradients in a step of training.
    """

    operations: float
    saved: tuple[Saved, ...]
    shares: dict[Value, Value]
    dtypes: dict[Value, torch.dtype]
    differentiated: frozenset[Value]


def works_of(
    recording: Recording, autocast: torch.dtype | None, known: Mapping[Node, NodeWork] | None = None
) -> dict[Node, NodeWork]:
    """The work of each node in a step of training in which parameters ask for gradients, and inputs do not.

    Args:
        autocast: the dtype of autocast around the step; None where it is off.
        known: the work of some of the nodes.
    """
    dtypes = {value: value.dtype for value in recording.inputs}
    asking: set[Value] = set()
    works: dict[Node, NodeWork] = {}
    for node in recording.nodes:
        asking.update(value for value in node.inputs if value.name and value.is_differentiable)
        if known is not None and node in known:
            works[node] = known[node]
            dtypes.update(works[node].dtypes)
            asking.update(works[node].differentiated.intersection(node.outputs))
            continue
        own = [*node.autocast.values()]
        dtype = next(filter(None, own), None) if own else autocast
        works[node] = _work_of(node, dtypes, asking, dtype)
    return works


def _work_of(
    node: Node, dtypes: dict[Value, torch.dtype], asking: set[Value], autocast: torch.dtype | None
) -> NodeWork:
    """The work of a node; notes the dtypes of its results, and which of them ask for gradients."""
    mode = _mode_of(node)
    packed: list[torch.Tensor] = []
    with contextlib.ExitStack() as modes:
        counter = modes.enter_context(FlopCounterMode(display=False))
        modes.enter_context(torch.autocast("cpu", autocast, enabled=autocast is not None, cache_enabled=False))
        modes.enter_context(torch.set_grad_enabled(node.records_gradients))
        modes.enter_context(mode)
        tensors = [_fake_tensor(value, dtypes.get(value, value.dtype), value in asking) for value in node.inputs]
        storages = {storage_of(tensor): value for tensor, value in zip(tensors, node.inputs, strict=True)}

        def pack(tensor: torch.Tensor) -> torch.Tensor:
            packed.append(tensor)
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            try:
                result = _call_of(node, tensors)
            except errors_of_missing_values():  # a size that is known only while the model is recorded
                result = [_fake_tensor(value, value.dtype, False) for value in node.outputs]
    results = [leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]
    if node.key == "setitem":
        results = tensors[:1]
    shares = {}
    for value, tensor in zip(node.outputs, results, strict=True):
        dtypes[value] = tensor.dtype
        if tensor.requires_grad:
            asking.add(value)
        if (shared := storages.get(storage_of(tensor))) is not None:
            shares[value] = shared
        storages.setdefault(storage_of(tensor), value)
    saved = tuple(_saved(packed, storages, node, dtypes))
    differentiated = asking.intersection((*node.inputs, *node.outputs)) if any(t.requires_grad for t in results) else ()
    of_results = {value: dtypes[value] for value in node.outputs}
    return NodeWork(float(counter.get_total_flops()), saved, shares, of_results, frozenset(differentiated))


def _saved(
    packed: list[torch.Tensor], storages: dict[int, Value], node: Node, dtypes: dict[Value, torch.dtype]
) -> Iterator[Saved]:
    """The tensors that were packed, each memory once."""
    seen: set[int] = set()
    for tensor in packed:
        storage = storage_of(tensor)
        if storage in seen:
            continue
        seen.add(storage)
        shared = storages.get(storage)
        nbytes = tensor.untyped_storage().nbytes()
        if shared is not None:
            yield Saved(shared, nbytes, is_own=False)
            continue
        alike = (value for value in node.inputs if value.shape == tensor.shape and dtypes.get(value) != tensor.dtype)
        yield Saved(next(alike, None), nbytes, is_own=True)


def _mode_of(node: Node) -> FakeTensorMode:
    """The mode of the layer's tensors without values; a new mode for a function."""
    if isinstance(node.target, torch.nn.Module):
        for tensor in itertools.chain(node.target.parameters(), node.target.buffers()):
            if isinstance(tensor, FakeTensor):
                return tensor.fake_mode
    return FakeTensorMode(allow_non_fake_inputs=True)


def _fake_tensor(value: Value, dtype: torch.dtype, asks: bool) -> torch.Tensor:
    """A tensor without values; no leaf, so that the call may write into it."""
    tensor = torch.empty(value.shape, dtype=dtype, device="cpu")
    if not asks:
        return tensor
    tensor.requires_grad_()
    return tensor if value.name else tensor.clone()


def _call_of(node: Node, tensors: list[torch.Tensor]) -> object:
    if not isinstance(node.target, torch.nn.Module):
        return node.as_function((WITHOUT_VALUES | KEEPING_SIZES).get(node.key))(*tensors)
    module, count = node.target, len(node.arguments)
    parameters = dict(zip(node.parameters, tensors[count:], strict=True))
    call = node.as_function(lambda *args, **kwargs: torch.func.functional_call(module, parameters, args, kwargs))
    return call(*tensors[:count])

"""List a recording as lines of text, which are equal on all ranks for equal computations."""

from __future__ import annotations

import hashlib
import re

import torch

from distdl.models.capture.recording import Node, Recording, Value, values_in

_OF_A_RANK = re.compile(r" at 0x[0-9a-f]+|(?<=cuda):\d+|(?<='cuda'), index=\d+")  # addresses and devices


def listing(recording: Recording) -> list[str]:
    """A line for each constant and call, for the results, and for the buffers that are written."""
    values = {value for node in recording.nodes for value in node.inputs}
    values.update(values_in(recording.results))
    lines = [
        line_of_constant(value)
        for value in sorted(values, key=lambda value: value.number)
        if value.constant is not None
    ]
    lines += [_of_node(node) for node in recording.nodes]
    lines += [
        f"{look.function.__name__}{look.args!r} {dict(look.kwargs)!r}: {look.outcome!r}" for look in recording.looks
    ]
    lines += [f"the results {recording.results!r}", f"for its buffers {recording.written!r}"]
    return [without_addresses(line).replace("\n", " ") for line in lines]


def without_addresses(text: str) -> str:
    """A text without what differs among ranks."""
    return _OF_A_RANK.sub("", text)


def line_of_constant(value: Value) -> str:
    """A line for a constant, with a digest of its values."""
    assert value.constant is not None
    return f"with a tensor {value!r} of {value.dtype} that is no parameter or buffer, {digest_of(value.constant)}"


def digest_of(x: torch.Tensor) -> str:
    """The shape of a tensor, and a digest of its values."""
    try:
        values = x.detach().cpu().resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8)
        digest = hashlib.sha256(values.numpy().tobytes()).hexdigest()[:16]
    except (NotImplementedError, RuntimeError, TypeError):  # no values, or not in a row
        digest = ""
    return f"of shape {list(x.shape)} and digest {digest}"


def _of_node(node: Node) -> str:
    names = [f"{value!r}={value.name}" for value in node.inputs if value.name]
    gradients = "" if node.records_gradients else " without gradients"
    call = f"{node.args!r} {dict(node.kwargs)!r} {names} -> {node.results!r}"
    options = f" of {node.module!r}" if isinstance(node.target, torch.nn.Module) else ""
    return f"{node.key}{call}{options}{gradients} in checkpoint {node.checkpoint} in {node.path or 'the model'}"

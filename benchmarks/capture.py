"""Compares three ways to capture what a model computes: torch.fx, torch.export, and the recording of distdl.distribute.

python benchmarks/capture.py

For ten models of torchvision and MONAI, in training: the seconds of processor time that the capture takes and the
number of its operations, or why it fails. Needs torchvision and MONAI, as benchmarks/models.py says.
"""

from __future__ import annotations

import logging
import time
import warnings
from collections.abc import Callable, Sequence

import torch
from zoo import entries

from distdl.models.capture.skeleton import Skeleton
from distdl.models.rules.applied_layer import key_of_layer

MODELS = ("resnet18", "densenet121", "googlenet", "swin_t", "vit_b_16", "efficientnet_b0", "fcn_resnet50", "raft_small",
          "fasterrcnn_resnet50_fpn", "MONAI SegResNet")  # fmt: skip
Inputs = Sequence[torch.Tensor]


def by_fx(model: torch.nn.Module, inputs: Inputs) -> int:
    """Symbolic tracing: layers of torch.nn are nodes, sizes are symbols."""
    return sum(node.op.startswith("call") for node in torch.fx.symbolic_trace(model).graph.nodes)


def by_export(model: torch.nn.Module, inputs: Inputs) -> int:
    """Operators of ATen."""
    graph = torch.export.export(model, tuple(inputs), strict=False).graph
    return sum(node.op == "call_function" for node in graph.nodes)


def by_recording(model: torch.nn.Module, inputs: Inputs) -> int:
    """Functions and layers, as they are called with these shapes."""
    shapes = [(x.shape, x.dtype) for x in inputs]
    return len(Skeleton(model, torch.device("cpu")).record((tuple(inputs), {}), shapes, key_of_layer).nodes)


WAYS: dict[str, Callable[[torch.nn.Module, Inputs], int]] = {
    "torch.fx": by_fx, "torch.export": by_export, "recording": by_recording,
}  # fmt: skip


def outcome(way: Callable[[torch.nn.Module, Inputs], int], model: torch.nn.Module, inputs: Inputs) -> str:
    """Operations and seconds, or the first words of the error."""
    start = time.process_time()
    try:
        count = way(model, inputs)
    except Exception as error:
        return f"{type(error).__name__}: {(str(error).strip() or '-').splitlines()[0][:50]}"
    return f"{count} in {time.process_time() - start:.1f} s"


def main() -> None:
    """Print the table."""
    warnings.simplefilter("ignore")
    logging.disable(logging.ERROR)
    named = {entry.name: entry for entry in entries(("torchvision", "monai"))}
    print("model", *WAYS, sep=" | ")
    for name in MODELS:
        inputs = [torch.randn(shape) for shape in named[name].shapes]
        print(name, *(outcome(way, named[name].make(), inputs) for way in WAYS.values()), sep=" | ", flush=True)


if __name__ == "__main__":
    main()

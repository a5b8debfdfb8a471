"""Buffers that a model makes in its calls, as caches, and that only ranks have which have called it before."""

from __future__ import annotations

import json

import torch

from distdl.models.capture.skeleton import Skeleton
from distdl.modules.state import tensors_in_state
from distdl.nn.wrapped_module import WrappedModule
from distdl.partitions.construction import constructing


def drop_own_caches(layer: WrappedModule, skeleton: Skeleton) -> None:
    """Remove buffers that are not in the state of the model and that other ranks do not have.

    Collective over the ranks that construct the model.
    """
    group, module = layer.grid.constructing_ranks(), layer.module
    if not group.known:
        return
    in_state = tensors_in_state(module)
    own = {name: value is not None for name, value in _buffers(module).items() if name not in in_state}
    with constructing("distribute", {"ranks": group}, {}):
        text = json.dumps(own).encode()
    of_ranks = [json.loads(text) for text in group.gather(text)]
    for name, is_there in own.items():
        if is_there and not all(of.get(name) for of in of_ranks):
            for model in (module, skeleton.model):
                path, _, leaf = name.rpartition(".")
                held = vars(model.get_submodule(path))["_buffers"]
                held[leaf] = None
                if not all(name in of for of in of_ranks):
                    del held[leaf]
            skeleton.buffer_shapes.pop(name, None)
    layer.prepare()


def _buffers(module: torch.nn.Module) -> dict[str, torch.Tensor | None]:
    """The buffers of a model by name, also those that are None."""
    named = ((path, vars(part)["_buffers"]) for path, part in module.named_modules())
    return {f"{path}.{leaf}".removeprefix("."): value for path, held in named for leaf, value in held.items()}

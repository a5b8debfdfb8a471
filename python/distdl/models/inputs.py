"""The tensors of a call of a distributed model: their blocks, and their order in memory."""

from __future__ import annotations

import json

import torch

from distdl.models.capture.memory_order import most_informative_block, order_of
from distdl.models.operations.placement import Blocks
from distdl.nn.base.layer import Layer
from distdl.torch_compat.trees import tree_flatten


def tensors_in(call: object) -> list[torch.Tensor]:
    """The tensors among the arguments of a call, in order."""
    return [leaf for leaf in tree_flatten(call)[0] if isinstance(leaf, torch.Tensor)]


def text_of_others(call: object) -> str:
    """The structure of a call, and its arguments that are no tensors, which all ranks have compared."""
    leaves, structure = tree_flatten(call)
    return f"{structure} {[leaf for leaf in leaves if not isinstance(leaf, torch.Tensor)]}"


def input_blocks(model: Layer, i: int) -> Blocks:
    """The blocks of a tensor of the call: a single one, of worker 0, if it has fewer dimensions than P_x.

    Raises:
        ValueError: if such a tensor has different shapes on the workers.
    """
    shapes = [tuple(shape) for shape, _ in model.structure(model.grid, i)]
    if any(len(shape) >= model.grid.dim for shape in shapes):
        return Blocks(model.grid.ranks, tuple(map(tuple, model.blocks(model.grid, i))))
    if len(set(shapes)) > 1:
        raise ValueError(
            f"distribute: tensor {i} of the call has fewer dimensions than P_x, so that each worker passes the "
            f"whole of it; its shapes are {[list(shape) for shape in shapes]}"
        )
    return Blocks(model.grid.ranks[:1], tuple((n,) for n in shapes[0]))


def memory_orders(model: Layer, call: object) -> list[list[int]]:
    """The orders of the inputs' dimensions in memory, as far as the workers' blocks show them. Collective."""
    tensors = tensors_in(call)
    all_ranks = model.grid.constructing_ranks()
    gathered = [json.loads(text) for text in all_ranks.gather(json.dumps([*map(order_of, tensors)]).encode())]
    by_worker = [gathered[all_ranks.ranks.index(rank)] for rank in model.grid.ranks]
    shapes = [[shape for shape, _ in model.structure(model.grid, i)] for i in range(len(tensors))]
    blocks = [most_informative_block(own, input_blocks(model, i).shape) for i, own in enumerate(shapes)]
    return [by_worker[block][i] for i, block in enumerate(blocks)]

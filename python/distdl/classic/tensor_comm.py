"""Exchanges of the structures of tensors among ranks."""

from __future__ import annotations

import json

import numpy as np
import torch

from distdl.classic.slicing import IntArray, along_axis
from distdl.classic.structure import TensorStructure
from distdl.partitions.comparison import agreed
from distdl.partitions.partition import Partition
from distdl.partitions.structure import TensorStructure as OwnStructure

Structure = TensorStructure | OwnStructure


def broadcast_tensor_structure(
    input_tensor_structure: Structure, P_send: Partition, P_recv: Partition
) -> TensorStructure:
    """The structure that the first worker of P_recv has.

    Args:
        input_tensor_structure: this rank's structure; read where this rank is the first worker of P_send.
        P_send: the workers to which this rank sends, itself first; inactive where it sends nothing.
        P_recv: the workers with which this rank receives, the sender first; inactive where it receives nothing.

    Returns:
        The structure; an unknown one where P_recv is inactive.

    Collective over both partitions, which ``create_broadcast_partition_to`` makes.
    """
    received = TensorStructure()
    # In the order of the senders, so that no two ranks wait for each other.
    known = {P.grid.ranks: P for P in (P_send, P_recv) if P.active}
    for ranks in sorted(known):
        grid, text = known[ranks].grid, ""
        with agreed("broadcast_tensor_structure", grid, lambda: ""):
            if grid.rank == 0:
                text = json.dumps(_to_plain(input_tensor_structure))
        everyone = grid.gather(text.encode())
        if P_recv.active and ranks == P_recv.grid.ranks:
            _fill(received, json.loads(everyone[0]))
    return received


def assemble_global_tensor_structure(
    local_tensor_structure: Structure, P_in: Partition, P_out: Partition | None = None
) -> TensorStructure:
    """The structure of a tensor of which each worker of P_in has a block.

    Args:
        local_tensor_structure: that of this worker's block.
        P_in: the partition of the tensor.
        P_out: further workers that are told; the workers of P_in by default.

    Returns:
        The structure of the whole tensor, on the workers of P_in and P_out; an unknown one on all other ranks.

    Collective over the workers of both partitions.
    """
    structure = TensorStructure()
    everyone = _told("assemble_global_tensor_structure", local_tensor_structure, P_in, P_out)
    if everyone:
        shapes = np.array([shape for shape, _, _ in everyone], dtype=np.int64).reshape(len(everyone), -1)
        blocks = shapes.reshape(*P_in.grid.shape, -1)
        whole = [int(along_axis(blocks, d).sum()) for d in range(P_in.dim)]
        _fill(structure, (whole, everyone[0][1], any(asks for _, _, asks in everyone)))
    return structure


def compute_subtensor_shapes_unbalanced(
    local_tensor_structure: Structure, P_in: Partition, P_out: Partition | None = None
) -> IntArray | None:
    """The shapes of all blocks of a tensor, as they are: an array of shape ``[*P_in.shape, dim]``.

    None on ranks that are in neither partition. Arguments as in :func:`assemble_global_tensor_structure`; collective
    likewise.
    """
    everyone = _told("compute_subtensor_shapes_unbalanced", local_tensor_structure, P_in, P_out)
    if not everyone:
        return None
    return np.array([shape for shape, _, _ in everyone], dtype=np.int64).reshape(*P_in.grid.shape, -1)


_Plain = tuple[list[int], str, bool]


def _told(what: str, structure: Structure, P_in: Partition, P_out: Partition | None) -> list[_Plain]:
    """The structure of each worker of P_in, on all workers of both partitions."""
    ranks = tuple(dict.fromkeys((*P_in.grid.ranks, *(() if P_out is None else P_out.grid.ranks))))
    everyone = P_in.grid.line(ranks)
    if not everyone.active:
        return []
    with agreed(what, everyone, lambda: ""):
        text = json.dumps(_to_plain(structure))
    texts = everyone.gather(text.encode())
    return [json.loads(text) for text in texts[: P_in.size]]


def _to_plain(structure: Structure) -> _Plain:
    shape = [] if structure.shape is None else [int(n) for n in structure.shape]
    return shape, str(structure.dtype).removeprefix("torch."), bool(structure.requires_grad)


def _fill(structure: TensorStructure, plain: _Plain) -> None:
    shape, dtype, requires_grad = plain
    structure.shape = torch.Size(shape)
    structure.dtype = getattr(torch, dtype, None) if dtype != "None" else None
    structure.requires_grad = requires_grad

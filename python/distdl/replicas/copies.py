"""Copying tensors of one replica to all replicas."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from distdl import operators
from distdl.operators.dispatch import Operator
from distdl.partitions.grid import Grid


class ReplicaCopies:
    """Copies tensors from one replica to the others.

    Args:
        line: the corresponding workers of all replicas, in a row.
        replica, replicas: the number of this replica, and of all.
    """

    def __init__(self, line: Grid, replica: int, replicas: int) -> None:
        self._line, self._replica, self._replicas = line, replica, replicas
        self._broadcasts: dict[int, Operator] = {}

    @torch.no_grad()
    def copy(self, tensors: Sequence[torch.Tensor], source: int) -> None:
        """Copy the values of the replica ``source``, as one message. Collective over the replicas."""
        nonempty = [tensor for tensor in tensors if tensor.numel()]
        if not nonempty or self._replicas == 1:
            return
        if source not in self._broadcasts:
            self._broadcasts[source] = operators.broadcast_among(self._line, source)
        sent = [tensor.contiguous().reshape(-1).view(torch.uint8) for tensor in nonempty]
        empty = torch.empty(0, dtype=torch.uint8, device=sent[0].device)
        received = self._broadcasts[source](torch.cat(sent) if self._replica == source else empty)
        if self._replica != source:
            for tensor, part in zip(nonempty, received.split([tensor.numel() for tensor in sent]), strict=True):
                tensor.copy_(part.clone().view(tensor.dtype).view(tensor.shape))

"""Facts about a call that all ranks of a layer know from their vote."""

from __future__ import annotations

import torch

from distdl.nn.base.declared_layer import DeclaredLayer
from distdl.partitions.boxes import box_shape, cut
from distdl.partitions.construction import PartitionLike, grid_of

Described = tuple[list[int], torch.dtype]
"""Shape and dtype of a worker's tensor."""


class VotedLayer(DeclaredLayer):
    """A layer that knows the structure of the tensors on all of its ranks, as of the last vote.

    Attributes:
        others: the arguments of ``compute`` after the tensors, at the last set-up; equal on all ranks.
        random_key: the key of the call's random numbers; equal on all ranks.
        key_in_graphs: the number of the layer in compiled programs.
    """

    others: tuple[object, ...]
    random_key: int
    key_in_graphs: int

    def check_balanced(self, dim: int, extent: int, name: str) -> None:
        """Raise unless an input is in balanced blocks along a dimension, as parameters are. For :meth:`set_up`.

        Args:
            dim: the dimension of the input.
            extent: its extent in the whole input.
            name: the option with this extent, for the message.

        Raises:
            ValueError: on all ranks. Otherwise torch might broadcast a block of 1 element.
        """
        sizes = self.blocks(self.grid)[dim]
        balanced = [*box_shape(cut(extent, len(sizes)))]
        if sizes != balanced:
            raise ValueError(
                f"{type(self).__name__}: the input comes in blocks of {sizes} in dimension {dim}; these must be the "
                f"balanced blocks of {name}={extent}, {balanced}"
            )

    def structure(self, P: PartitionLike, tensor: int = 0) -> list[Described]:
        """(shape, dtype) of a tensor of the call on each worker of a partition, as voted."""
        agreement = self.agreement
        described = [] if agreement is None else agreement.structure(tensor, list(grid_of(P).ranks))
        return [worker for worker in described if worker is not None]

    def blocks(self, P: PartitionLike, tensor: int = 0, name: str = "P_x") -> list[list[int]]:
        """The sizes of a tensor's blocks by dimension, as voted. Raises ValueError if they do not match."""
        if self.agreement is None:
            return []
        grid = grid_of(P)
        return self.agreement.blocks(tensor, name, list(grid.shape), list(grid.ranks))

    @property
    def autocast(self) -> torch.dtype | None:
        """The dtype of autocast, as voted; None if it is off."""
        return None if self.agreement is None else self.agreement.autocast

    @property
    def is_differentiated(self) -> bool:
        """Whether gradients are recorded, and a tensor or parameter of any rank requires them, as voted."""
        return self.agreement is not None and self.agreement.is_differentiated

    @property
    def has_tangent(self) -> bool:
        """Whether a tensor or parameter of any rank has forward derivatives, as voted.

        Autograd functions without a forward-mode rule raise, on these ranks only.
        """
        return self.agreement is not None and self.agreement.has_tangent

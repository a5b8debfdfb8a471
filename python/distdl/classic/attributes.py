"""Attributes that programs read from layers: partitions of parameters, and advice in place of what is not there."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, ClassVar

from distdl.modules.module import Module
from distdl.nn.base.layer import Layer
from distdl.partitions.grid import Grid
from distdl.partitions.partition import Partition

_HALOS = "the layer exchanges its halos by itself; distdl.nn.HaloExchange(P_x, halo) exchanges those of a tensor"
_BUFFERS = "messages take their memory when they are sent; leave this line out"
_PARAMETERS = (
    "weight and bias travel when they are used; layer.parameters_in_use(), which all ranks call together, has the "
    "blocks that this worker uses"
)
_DATA = "write distdl.nn.Broadcast(P_x, P_w) and distdl.nn.SumReduce(P_w, P_y)"
_SUMS = "the layer sums within; distdl.nn.AllSumReduce(P_x, axes) sums a tensor over workers"

_ADVICE = {
    **dict.fromkeys(("halo_layer", "pad_layer", "halo_shape", "needed_slices"), _HALOS),
    **dict.fromkeys(("recv_buffer_shape", "send_buffer_shape"), _HALOS),
    **dict.fromkeys(("in_buffers", "out_buffers", "recv_buffers", "send_buffers"), _BUFFERS),
    **dict.fromkeys(("w_broadcast", "b_broadcast", "broadcast", "weight_broadcast", "bias_broadcast"), _PARAMETERS),
    **dict.fromkeys(("all_gather", "allgather", "reduce_scatter"), _PARAMETERS),
    **dict.fromkeys(("x_broadcast", "y_sum_reduce"), _DATA),
    **dict.fromkeys(("sum_reduce", "all_sum_reduce", "all_reduce", "allreduce"), _SUMS),
}
"""Replacements for attributes that layers of this library do not have."""


class OldAttributes(Module):
    """A module whose AttributeErrors say what to write in place of an attribute that old programs know."""

    if not TYPE_CHECKING:  # attributes keep their types

        def __getattr__(self, name):
            try:
                return super().__getattr__(name)
            except AttributeError as error:
                if name not in _ADVICE:
                    raise
                raise AttributeError(f"{type(self).__name__} has no attribute {name!r}: {_ADVICE[name]}") from error


class PartitionsOfParameters(Layer):
    """A layer that says which workers have its weight and its bias.

    Attributes:
        old_names: the names of parameters, by their names in torch.nn. A name with a dot is that of a parameter of a
            layer within.
    """

    old_names: ClassVar[dict[str, str]] = {}

    def old_name(self, name: str) -> str:
        """The name of a parameter that has this name in torch.nn."""
        return self.old_names.get(name, name)

    def partition_of(self, grid: Grid) -> Partition:
        """A partition of these workers, of the type of P_x."""
        return type(self.P_x).of_grid(grid, self.P_x)

    def _stores(self, name: str) -> Partition:
        """The workers on which blocks of a parameter live; inactive on all ranks where there is no such parameter."""
        layout = self.layouts.get(self.old_name(name))
        if layout is None:
            return self.partition_of(Grid.unknown())
        grid = layout.owner_grid if layout.kind == "owner" else layout.grid
        return self.partition_of(grid.first_along(layout.first_of))

    def _applies(self, name: str) -> Partition:
        """The workers that use blocks of a parameter; as :meth:`_stores` otherwise."""
        layout = self.layouts.get(self.old_name(name))
        return self.partition_of(Grid.unknown() if layout is None else layout.grid.first_along(layout.first_of))

    @property
    def use_bias(self) -> bool:
        """Whether the layer has a bias."""
        return self.old_name("bias") in self.layouts

    @property
    def stores_bias(self) -> bool:
        """Whether this rank has a part of the bias."""
        return self.use_bias and math.prod(self.layouts[self.old_name("bias")].local_shape) > 0

    P_weight = P_store_weight = property(
        lambda self: self._stores("weight"), doc="The workers on which blocks of the weight live."
    )
    P_apply_weight = property(lambda self: self._applies("weight"), doc="The workers that use the weight.")
    P_bias = P_store_bias = property(
        lambda self: self._stores("bias"),
        doc="The workers on which blocks of the bias live; inactive on all ranks without bias.",
    )
    P_apply_bias = property(
        lambda self: self._applies("bias"), doc="The workers that use the bias; inactive on all ranks without bias."
    )

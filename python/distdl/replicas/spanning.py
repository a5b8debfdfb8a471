"""Layers over ranks of several replicas."""

from __future__ import annotations

import torch

from distdl.nn.base.layer import Layer
from distdl.partitions.grid import Grid


def spanning_layers(module: torch.nn.Module, replica: Grid, line: Grid) -> list[torch.nn.Module]:
    """The layers over ranks of several replicas, in the order of the model.

    Args:
        replica: the ranks of this replica.
        line: the ranks that have the same parameters, one rank of each replica.

    Raises:
        ValueError: if a rank of the line does not keep a parameter of such a layer.
    """
    replica_ranks, layers = set(replica.world_ranks()), list[torch.nn.Module]()
    for name, layer in module.named_modules():
        if not isinstance(layer, Layer) or not layer.grid.active or replica_ranks.issuperset(layer.grid.world_ranks()):
            continue
        for parameter in dict(layer.named_parameters(recurse=False)):
            layout = layer.layouts[parameter]
            keepers = {layout.grid.world[rank] for rank in layout.replica_ranks(layout.grid.place)}
            if layout.kind != "replicated" or not keepers.issuperset(line.world_ranks()):
                raise ValueError(
                    f"DataParallel: {name or type(layer).__name__} is a layer over ranks of several replicas, and each "
                    f'replica has to keep its {parameter}; construct it under distdl.parameter_layout("replicated"), '
                    "on a partition with the replicas along a dimension that does not split its parameters"
                )
        layers.append(layer)
    return layers

"""Images that are read at any places."""

from __future__ import annotations

import torch.nn.functional as F

from distdl.models.capture.recording import Node
from distdl.models.capture.replay import Run, as_function
from distdl.models.operations.operation import InputSpec, Operation, Sharded, Workers
from distdl.models.operations.table import argument, in_blocks, local, rule_for


@rule_for("grid_sample")
def grid_sample(node: Node) -> Operation:
    """Any dimension of the result; each worker reads the whole images of its batch and channels."""
    n = len(node.outputs[0].shape)
    image: InputSpec = (Sharded(0), Sharded(1), *[None] * (n - 2))
    places: InputSpec = (Sharded(0), *map(Sharded, range(2, n)), None)
    return local(node, [image, places])


@rule_for("affine_grid", takes="theta size align_corners")
def affine_grid(node: Node) -> Operation:
    """The batch."""
    shape = node.outputs[0].shape
    _, *size = argument(node, 1, "size")
    corners = argument(node, 2, "align_corners")

    def make(workers: Workers) -> Run:
        images = workers.local_shape[0]
        return lambda theta: F.affine_grid(theta, [images, *size], corners)

    return Operation(shape, ((Sharded(0), None, None),), in_blocks(make, as_function(node)), frozenset([0]))

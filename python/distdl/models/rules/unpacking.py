"""The parts of packed values, such as queries, keys and values of one product."""

from __future__ import annotations

from distdl.models.capture.packing import Packing
from distdl.models.capture.recording import Node, Run
from distdl.models.operations.operation import InputSpec, Operation, Sharded, Workers
from distdl.models.operations.table import rule_for


@rule_for("unpack")
def unpack(node: Node) -> Operation:
    """Any dimension; parts are cut as the packed parameters are."""
    packing: Packing = node.target.__self__  # type: ignore[attr-defined]
    shape, dim = node.outputs[0].shape, packing.dim
    spec: InputSpec = tuple(Sharded(d, span=packing.covering) if d == dim else Sharded(d) for d in range(len(shape)))

    def make(workers: Workers | None) -> Run:
        start, stop = (0, shape[dim]) if workers is None else workers.block[dim]
        return lambda x: packing.take(x, start, stop)

    return Operation(shape, (spec,), make, frozenset(range(len(shape))), {dim: packing.unit})

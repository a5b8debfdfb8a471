"""Products of groups of rows with a matrix each, as mixtures of experts compute them."""

from __future__ import annotations

from dataclasses import replace

import torch

from distdl.models.capture.recording import Node, Run
from distdl.models.operations.operation import NoRuleError, Operation, Sharded, Workers
from distdl.models.operations.table import in_blocks, options_of, rule_for
from distdl.models.rules.partial_sums import summed_over_last
from distdl.parameters.transport import zero_of
from distdl.partitions.boxes import Interval


@rule_for("grouped_mm", takes="mat_a mat_b offs bias out_dtype")
def grouped_mm(node: Node) -> Operation:
    """Rows; the batch, where each matrix has a batch of rows; groups, if their matrices are in blocks."""
    call = options_of(node, ["mat_a", "mat_b", "offs", "bias", "out_dtype"])
    rows, matrices, ends = call["mat_a"], call["mat_b"], call.get("offs")
    out, function = node.outputs[0].shape, node.as_function()
    if node.inputs == [rows, matrices] and len(rows.shape) == len(matrices.shape) == 3:
        specs = (Sharded(0), Sharded(1), None), (Sharded(0), None, None)
        return Operation(out, specs, lambda workers: function, frozenset((0, 1)))
    if node.inputs != [rows, matrices, ends] or (len(rows.shape), len(matrices.shape)) != (2, 3):
        raise NoRuleError(f"{node.key} of other tensors than rows, a matrix for each group, and the ends of groups")

    def of_rows(workers: Workers) -> Run:
        start, stop = workers.block[0]
        return lambda x, weights, ends: function(x, weights, (ends.clamp(start, stop) - start).to(ends.dtype))

    def of_groups(groups: Interval) -> Run:
        first, last = groups

        def run(x: torch.Tensor, weights: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
            if first == last:
                return x.new_zeros(out, dtype=node.outputs[0].dtype) + zero_of(weights)
            start, stop = int(ends[first - 1]) if first else 0, int(ends[last - 1])
            y = function(x[start:stop], weights, ends[first:last] - start)
            assert isinstance(y, torch.Tensor)
            return torch.cat([y.new_zeros(start, out[1]), y, y.new_zeros(out[0] - stop, out[1])])

        return run

    shared = (Sharded(0), None), (None, None, None), (None,)
    by_groups = summed_over_last(
        node, (out[0], matrices.shape[0]), [(None, None), (Sharded(1), None, None), (None,)], of_groups
    )
    by_groups = replace(by_groups, splittable=frozenset([1]))  # rows have to be known from the first on
    return Operation(out, shared, in_blocks(of_rows, function), frozenset([0]), summed=by_groups)

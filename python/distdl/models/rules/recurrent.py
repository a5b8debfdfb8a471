"""Recurrent layers: the batch may be split."""

from __future__ import annotations

from distdl.models.capture.recording import Node
from distdl.models.operations.operation import NoRuleError, Operation, Sharded, Workers
from distdl.models.operations.placement import Blocks
from distdl.models.operations.table import local, rule_for, whole

_NAMES = ("input", "hx", "params", "has_biases", "num_layers", "dropout", "train", "bidirectional", "batch_first")


@rule_for("lstm", "gru", "rnn_tanh", "rnn_relu")
def recurrent(node: Node) -> Operation:
    """The batch. torch.nn.LSTM, GRU and RNN call these functions."""
    arguments = dict(zip(_NAMES, node.args, strict=False)) | dict(node.kwargs)
    if not isinstance(arguments["has_biases"], bool) or "batch_first" not in arguments:
        raise NoRuleError(f"{node.key} of a packed sequence")
    batch = 0 if arguments["batch_first"] else 1
    states = len(arguments["hx"]) if isinstance(arguments["hx"], list | tuple) else 1
    of_input = tuple(Sharded(batch) if d == batch else None for d in range(3))
    of_state = (None, Sharded(batch), None)
    specs = [of_input, *[of_state] * states, *map(whole, node.inputs[1 + states :])]

    def placements(workers: Workers) -> list[Blocks]:
        blocks = workers.blocks
        placements = []
        for i, value in enumerate(node.outputs):
            d = 1 if i else batch
            block_sizes = tuple(blocks.block_sizes[batch] if e == d else (n,) for e, n in enumerate(value.shape))
            placements.append(Blocks(blocks.ranks, block_sizes))
        return placements

    call = node.as_function()
    return Operation(node.outputs[0].shape, (*specs,), lambda workers: call, frozenset([batch]), placements=placements)


@rule_for("lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell")
def cell(node: Node) -> Operation:
    """The batch, in one step of time."""
    states = len(node.outputs)
    specs = [(Sharded(0), None)] * (1 + states)
    return local(node, [*specs, *map(whole, node.inputs[1 + states :])], [1])

"""Recurrent networks with dropout between their layers, recorded layer by layer."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
import torch.nn.functional as F

from distdl.models.capture.recording import Arguments, Function

_FUNCTIONS = {"gru", "lstm", "rnn_relu", "rnn_tanh"}


def layer_by_layer(function: Function, key: str, args: Arguments) -> Function | None:
    """A function in place of one of several layers that drops out elements between them; None for others."""
    if key not in _FUNCTIONS or len(args) != 9 or not isinstance(args[3], bool):  # as of packed sequences
        return None
    num_layers, dropout, train = args[4:7]
    return partial(_layers, function) if num_layers > 1 and dropout and train else None


def _layers(
    function: Function,
    input: torch.Tensor,
    hx: torch.Tensor | Sequence[torch.Tensor],
    params: Sequence[torch.Tensor],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[torch.Tensor, ...]:
    """``torch.lstm``, ``torch.gru``, ``torch.rnn_tanh`` and ``torch.rnn_relu`` by such functions of one layer."""
    states = [hx] if isinstance(hx, torch.Tensor) else [*hx]
    directions, count = 1 + bidirectional, len(params) // num_layers
    last: list[tuple[torch.Tensor, ...]] = []
    for i in range(num_layers):
        own = [state[directions * i : directions * (i + 1)] for state in states]
        first = own[0] if isinstance(hx, torch.Tensor) else own
        weights = params[count * i : count * (i + 1)]
        input = F.dropout(input, dropout) if i else input
        results = function(input, first, weights, has_biases, 1, 0.0, train, bidirectional, batch_first)
        assert isinstance(results, tuple)
        input, *final = results
        last.append(tuple(final))
    return input, *map(torch.cat, zip(*last, strict=True))

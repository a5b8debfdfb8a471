"""What a rank returns that computes nothing: it keeps the rank in the graph of the others."""

from __future__ import annotations

import torch

from distdl.parameters.transport import zero_of


def tied(x: torch.Tensor, weight: torch.Tensor, *others: torch.Tensor) -> torch.Tensor:
    """x, connected with parameters as the result of a layer is that is linear in input and weight.

    Other ranks compute ``x`` times ``weight`` plus ``others``. This rank has no part of that, but it has to take part
    in the communication of their backward passes, also of derivatives of derivatives.
    """
    result = x + zero_of(x) * zero_of(weight)
    for other in others:
        result = result + zero_of(other)
    return result

"""Local takes any module, so that its examples are in tests/python/nn/test_local.py; here is its row of misuses."""

import torch

import distdl.nn as dnn
from support.families import Example
from support.misuses.table import Row, Wrong, grid_of, not_a_partition

EXAMPLES: dict[str, Example] = {}


def rows() -> dict[str, Row]:
    """By public name."""
    not_a_module = [Wrong(v, TypeError, "module") for v in (None, 3, "ReLU", torch.nn.ReLU, torch.ones(2))]
    outputs = [Wrong(v, TypeError, "outputs") for v in (None, 1.5, "a")] + [Wrong(0, ValueError, "outputs")]
    return {
        "nn.Local": Row(
            dnn.Local,
            lambda P: {"P_x": grid_of(P, 2), "module": torch.nn.ReLU()},
            {"P_x": not_a_partition(), "module": not_a_module, "outputs": outputs},
            {"module": torch.nn.GELU(), "outputs": 2},
        )
    }

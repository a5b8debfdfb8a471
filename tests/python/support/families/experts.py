"""A mixture of experts, which torch.nn does not have: tests/python/nn/test_experts.py compares it."""

import torch

import distdl.nn as dnn
from support.blocks import grid
from support.misuses.table import Row, Wrong, not_a_device, not_a_dtype, not_a_partition, not_an_int
from support.ranks import job

EXAMPLES = {}


def linear(number):
    """An expert."""
    return torch.nn.Linear(3, 3)


def tanh(number):
    """Another expert."""
    return torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Tanh())


def rows() -> dict[str, Row]:
    """In support/misuses/layers.py."""
    return {
        "nn.DistributedMixtureOfExperts": Row(
            dnn.DistributedMixtureOfExperts,
            lambda P: {"P_x": grid(P, (job.size, 1)), "features": 3, "num_experts": 3, "make_expert": linear},
            {
                "P_x": not_a_partition(),
                "features": [*not_an_int("features"), Wrong(0, ValueError, "features")],
                "num_experts": [*not_an_int("num_experts"), Wrong(0, ValueError, "num_experts")],
                "make_expert": [Wrong(v, TypeError, "make_expert") for v in (None, 3, int)],
                "top_k": [*not_an_int("top_k"), *(Wrong(v, ValueError, "top_k") for v in (0, 4))],
                "capacity_factor": [
                    *(Wrong(v, TypeError, "capacity_factor") for v in ("a", True)),
                    *(Wrong(v, ValueError, "positive") for v in (0, -1.0, float("inf"), float("nan"))),
                ],
                "normalize": [Wrong(v, TypeError, "normalize") for v in (None, 1)],
                "device": not_a_device(),
                "dtype": not_a_dtype(),
            },
            {
                "features": 4,
                "num_experts": 4,
                "make_expert": tanh,
                "top_k": 1,
                "capacity_factor": 2.0,
                "normalize": False,
                "dtype": torch.float64,
            },
            free=("device",),
        )
    }

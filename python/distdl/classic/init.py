"""The functions of ``torch.nn.init`` on whole parameters, as programs written for DistDL call them.

Four of them take the partition of the parameter first. The parameter knows its blocks: the partition is not needed.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable

import torch

from distdl.nn import init as nn_init
from distdl.nn.init import (
    calculate_gain,
    constant_,
    dirac_,
    eye_,
    normal_,
    ones_,
    trunc_normal_,
    uniform_,
    zeros_,
)
from distdl.partitions.construction import PartitionLike

__all__ = [
    "calculate_gain", "constant", "constant_", "dirac", "dirac_", "eye", "eye_", "kaiming_normal", "kaiming_normal_",
    "kaiming_uniform", "kaiming_uniform_", "normal", "normal_", "ones_", "trunc_normal_", "uniform", "uniform_",
    "xavier_normal", "xavier_normal_", "xavier_uniform", "xavier_uniform_", "zeros_",
]  # fmt: skip


Initializer = Callable[..., torch.Tensor]


def _after_partition(function: Initializer) -> Initializer:
    """The function, which takes the partition of the parameter first and leaves it alone."""

    @functools.wraps(function)
    def fill(P_tensor: PartitionLike, *args: object, **kwargs: object) -> torch.Tensor:
        return function(*args, **kwargs)

    own = inspect.signature(function)
    first = inspect.Parameter("P_tensor", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation="PartitionLike")
    fill.__signature__ = own.replace(parameters=[first, *own.parameters.values()])  # type: ignore[attr-defined]
    return fill


xavier_uniform_ = _after_partition(nn_init.xavier_uniform_)
xavier_normal_ = _after_partition(nn_init.xavier_normal_)
kaiming_uniform_ = _after_partition(nn_init.kaiming_uniform_)
kaiming_normal_ = _after_partition(nn_init.kaiming_normal_)

# Without the underscore, as torch had them before 0.4.
uniform, normal, constant, eye, dirac = uniform_, normal_, constant_, eye_, dirac_
xavier_uniform, xavier_normal = xavier_uniform_, xavier_normal_
kaiming_uniform, kaiming_normal = kaiming_uniform_, kaiming_normal_

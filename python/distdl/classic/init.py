"""The functions of ``torch.nn.init`` on whole parameters, as programs written for DistDL call them.

Four of them take the partition of the parameter first. The parameter knows its blocks: the partition is not needed.
"""

from __future__ import annotations

import torch

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
from distdl.nn.init import kaiming_normal_ as _kaiming_normal_of_whole
from distdl.nn.init import kaiming_uniform_ as _kaiming_uniform_of_whole
from distdl.nn.init import xavier_normal_ as _xavier_normal_of_whole
from distdl.nn.init import xavier_uniform_ as _xavier_uniform_of_whole
from distdl.partitions.construction import PartitionLike

__all__ = [
    "calculate_gain", "constant", "constant_", "dirac", "dirac_", "eye", "eye_", "kaiming_normal", "kaiming_normal_",
    "kaiming_uniform", "kaiming_uniform_", "normal", "normal_", "ones_", "trunc_normal_", "uniform", "uniform_",
    "xavier_normal", "xavier_normal_", "xavier_uniform", "xavier_uniform_", "zeros_",
]  # fmt: skip


def xavier_uniform_(P_tensor: PartitionLike, tensor: torch.Tensor, gain: float = 1.0) -> torch.Tensor:
    """Fill the whole parameter as ``torch.nn.init.xavier_uniform_`` does."""
    return _xavier_uniform_of_whole(tensor, gain)


def xavier_normal_(P_tensor: PartitionLike, tensor: torch.Tensor, gain: float = 1.0) -> torch.Tensor:
    """Fill the whole parameter as ``torch.nn.init.xavier_normal_`` does."""
    return _xavier_normal_of_whole(tensor, gain)


def kaiming_uniform_(
    P_tensor: PartitionLike,
    tensor: torch.Tensor,
    a: float = 0,
    mode: str = "fan_in",
    nonlinearity: str = "leaky_relu",
) -> torch.Tensor:
    """Fill the whole parameter as ``torch.nn.init.kaiming_uniform_`` does."""
    return _kaiming_uniform_of_whole(tensor, a, mode, nonlinearity)


def kaiming_normal_(
    P_tensor: PartitionLike,
    tensor: torch.Tensor,
    a: float = 0,
    mode: str = "fan_in",
    nonlinearity: str = "leaky_relu",
) -> torch.Tensor:
    """Fill the whole parameter as ``torch.nn.init.kaiming_normal_`` does."""
    return _kaiming_normal_of_whole(tensor, a, mode, nonlinearity)


# Without the underscore, as torch had them before 0.4.
uniform, normal, constant, eye, dirac = uniform_, normal_, constant_, eye_, dirac_
xavier_uniform, xavier_normal = xavier_uniform_, xavier_normal_
kaiming_uniform, kaiming_normal = kaiming_uniform_, kaiming_normal_

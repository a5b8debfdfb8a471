"""The functions of ``torch.nn.init`` for whole parameters in blocks.

Each takes a parameter or buffer of a layer of this package, and the further arguments of torch's function of the same
name. Together, the blocks equal the whole parameter as torch fills it. The same seed on all ranks gives the numbers of
the sequential model, for every partition and :func:`distdl.parameter_layout`. torch fills other tensors, such as
parameters of its layers.

They raise torch's exceptions for the whole parameter, and ValueError for a part of a parameter in blocks, such as
``layer.weight[0]``.

Every rank of the layer must call them, also ranks without a block, in the same order. No communication: each rank draws
the numbers of the whole parameter, in its memory for a moment.

Source: https://docs.pytorch.org/docs/stable/nn.init.html.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Concatenate, ParamSpec

import torch

from distdl.modules.layout_lookup import layout_of
from distdl.parameters.initial import fill

__all__ = [
    "calculate_gain",
    "constant_",
    "dirac_",
    "eye_",
    "kaiming_normal_",
    "kaiming_uniform_",
    "normal_",
    "ones_",
    "orthogonal_",
    "sparse_",
    "trunc_normal_",
    "uniform_",
    "xavier_normal_",
    "xavier_uniform_",
    "zeros_",
]

InitOptions = ParamSpec("InitOptions")

calculate_gain = torch.nn.init.calculate_gain


def _of_whole(
    function: Callable[Concatenate[torch.Tensor, InitOptions], torch.Tensor],
) -> Callable[Concatenate[torch.Tensor, InitOptions], torch.Tensor]:

    def filled(tensor: torch.Tensor, *args: InitOptions.args, **kwargs: InitOptions.kwargs) -> torch.Tensor:
        layout = layout_of(tensor)
        if layout is None:
            return function(tensor, *args, **kwargs)
        fill(tensor, layout, lambda whole: function(whole, *args, **kwargs))
        return tensor

    functools.update_wrapper(filled, function)
    filled.__doc__ = f"Fill the whole parameter as ``torch.nn.init.{function.__name__}`` does. Returns its block."
    return filled  # type: ignore[return-value]  # torch also accepts the first argument by name


constant_ = _of_whole(torch.nn.init.constant_)
dirac_ = _of_whole(torch.nn.init.dirac_)
eye_ = _of_whole(torch.nn.init.eye_)
kaiming_normal_ = _of_whole(torch.nn.init.kaiming_normal_)
kaiming_uniform_ = _of_whole(torch.nn.init.kaiming_uniform_)
normal_ = _of_whole(torch.nn.init.normal_)
ones_ = _of_whole(torch.nn.init.ones_)
orthogonal_ = _of_whole(torch.nn.init.orthogonal_)
sparse_ = _of_whole(torch.nn.init.sparse_)
trunc_normal_ = _of_whole(torch.nn.init.trunc_normal_)
uniform_ = _of_whole(torch.nn.init.uniform_)
xavier_normal_ = _of_whole(torch.nn.init.xavier_normal_)
xavier_uniform_ = _of_whole(torch.nn.init.xavier_uniform_)
zeros_ = _of_whole(torch.nn.init.zeros_)

"""The functions of ``torch.nn.init``, which fill a whole parameter of which each rank has a block.

Each takes a parameter or buffer of a layer of this package and the further arguments of the function of the same name
in ``torch.nn.init``. Put together, the blocks are what torch's function gives the whole parameter, with the fan of its
whole shape. With the same seed on all ranks they are the numbers of the sequential model, for every partition and
every :func:`distdl.parameter_layout`. Any other tensor, such as a parameter of a layer of torch, is filled by torch.

They raise what torch raises for the whole parameter, and ValueError for a part of a parameter in blocks, such as
``layer.weight[0]``.

Every rank of the layer calls them, ranks that have nothing of the parameter as well, and in the same order, so that the
ranks' generators stay in step. They take no communication. Random numbers are drawn for the whole parameter on each
rank, which takes its memory for a moment.

Source: https://docs.pytorch.org/docs/stable/nn.init.html.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Concatenate, ParamSpec

import torch

from distdl.nn.owners import layout_of
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

Options = ParamSpec("Options")

calculate_gain = torch.nn.init.calculate_gain


def _of_whole(
    function: Callable[Concatenate[torch.Tensor, Options], torch.Tensor],
) -> Callable[Concatenate[torch.Tensor, Options], torch.Tensor]:
    """A function of torch.nn.init as a function of the whole parameter that a block belongs to."""

    def filled(tensor: torch.Tensor, *args: Options.args, **kwargs: Options.kwargs) -> torch.Tensor:
        layout = layout_of(tensor)
        if layout is None:
            return function(tensor, *args, **kwargs)
        fill(tensor, layout, lambda whole: function(whole, *args, **kwargs))
        return tensor

    functools.update_wrapper(filled, function)
    filled.__doc__ = f"Fill the whole parameter as ``torch.nn.init.{function.__name__}`` does. Returns its block."
    return filled  # type: ignore[return-value]  # torch names the first argument, too


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

"""Distributed layers. Names, arguments and defaults are those of torch.nn, preceded by the partitions.

A family of layers is a module or a folder that lists its names in ``__all__``; here is the table of families.
"""

from distdl.nn import conv, linear, loss, pooling, primitives, resizing
from distdl.nn.conv import *  # noqa: F403
from distdl.nn.layer import Layer
from distdl.nn.linear import *  # noqa: F403
from distdl.nn.loss import *  # noqa: F403
from distdl.nn.module import Module
from distdl.nn.pooling import *  # noqa: F403
from distdl.nn.primitives import *  # noqa: F403
from distdl.nn.resizing import *  # noqa: F403
from distdl.nn.twins import twins

_FAMILIES = (conv, linear, loss, pooling, primitives, resizing)

SEQUENTIAL = twins(_FAMILIES)
"""The layer of this package for each class of torch.nn that has one."""

__all__ = ["SEQUENTIAL", "Layer", "Module", *(name for family in _FAMILIES for name in family.__all__)]

"""Distributed layers, with torch.nn's names, arguments and defaults after the partitions.

A family of layers is a module or folder that lists its names in ``__all__``. Its line here makes them public.
"""

from types import ModuleType

from distdl.modules.module import Module
from distdl.nn import init
from distdl.nn.activations import *  # noqa: F403
from distdl.nn.attention import *  # noqa: F403
from distdl.nn.base.equivalents import LAYERS_BY_CLASS, register
from distdl.nn.base.layer import Layer
from distdl.nn.conv import *  # noqa: F403
from distdl.nn.distances import *  # noqa: F403
from distdl.nn.dropout import *  # noqa: F403
from distdl.nn.embedding import *  # noqa: F403
from distdl.nn.experts import *  # noqa: F403
from distdl.nn.fourier import *  # noqa: F403
from distdl.nn.linear import *  # noqa: F403
from distdl.nn.local import *  # noqa: F403
from distdl.nn.loss import *  # noqa: F403
from distdl.nn.norm import *  # noqa: F403
from distdl.nn.pooling import *  # noqa: F403
from distdl.nn.primitives import *  # noqa: F403
from distdl.nn.rearranging import *  # noqa: F403
from distdl.nn.resizing import *  # noqa: F403
from distdl.nn.softmax import *  # noqa: F403

_FAMILIES = [value for value in [*vars().values()] if isinstance(value, ModuleType) and hasattr(value, "__all__")]
_FAMILIES.remove(init)
_FAMILIES.sort(key=lambda family: family.__name__)
register(_FAMILIES)

SEQUENTIAL = LAYERS_BY_CLASS
"""The layers of this package by class of torch.nn."""

__all__ = ["SEQUENTIAL", "Layer", "Module", "init", *(name for family in _FAMILIES for name in family.__all__)]

"""Losses of partitioned tensors: one number, on every rank."""

from distdl.nn.loss.classes import *  # noqa: F403
from distdl.nn.loss.classes import __all__ as _classes
from distdl.nn.loss.elementwise import *  # noqa: F403
from distdl.nn.loss.elementwise import __all__ as _elementwise
from distdl.nn.loss.features import *  # noqa: F403
from distdl.nn.loss.features import __all__ as _features

__all__ = [*_classes, *_elementwise, *_features]

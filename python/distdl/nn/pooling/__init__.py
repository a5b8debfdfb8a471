"""Pooling over blocks: maxima, averages, power averages, adaptive windows and random windows."""

from distdl.nn.pooling.adaptive import *  # noqa: F403
from distdl.nn.pooling.adaptive import __all__ as _adaptive
from distdl.nn.pooling.fractional import *  # noqa: F403
from distdl.nn.pooling.fractional import __all__ as _fractional
from distdl.nn.pooling.lp import *  # noqa: F403
from distdl.nn.pooling.lp import __all__ as _lp
from distdl.nn.pooling.sliding import *  # noqa: F403
from distdl.nn.pooling.sliding import __all__ as _sliding
from distdl.nn.pooling.unpooling import *  # noqa: F403
from distdl.nn.pooling.unpooling import __all__ as _unpooling

__all__ = [*_adaptive, *_fractional, *_lp, *_sliding, *_unpooling]

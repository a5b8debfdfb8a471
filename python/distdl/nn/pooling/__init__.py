"""Pooling over blocks: maxima, averages, power averages, and adaptive windows."""

from distdl.nn.pooling.adaptive import *  # noqa: F403
from distdl.nn.pooling.adaptive import __all__ as _adaptive
from distdl.nn.pooling.lp import *  # noqa: F403
from distdl.nn.pooling.lp import __all__ as _lp
from distdl.nn.pooling.sliding import *  # noqa: F403
from distdl.nn.pooling.sliding import __all__ as _sliding

__all__ = [*_adaptive, *_lp, *_sliding]

"""Layers that only move or sum elements: shuffles, flattening, and windows as columns."""

from distdl.nn.rearranging.columns import *  # noqa: F403
from distdl.nn.rearranging.columns import __all__ as _columns
from distdl.nn.rearranging.flatten import *  # noqa: F403
from distdl.nn.rearranging.flatten import __all__ as _flatten
from distdl.nn.rearranging.shuffle import *  # noqa: F403
from distdl.nn.rearranging.shuffle import __all__ as _shuffle

__all__ = [*_columns, *_flatten, *_shuffle]

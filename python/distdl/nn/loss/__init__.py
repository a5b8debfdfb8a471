"""Losses of partitioned tensors: one number, on every rank."""

from distdl.nn.loss.adaptive import *  # noqa: F403
from distdl.nn.loss.adaptive import __all__ as _adaptive
from distdl.nn.loss.classes import *  # noqa: F403
from distdl.nn.loss.classes import __all__ as _classes
from distdl.nn.loss.cross_entropy import *  # noqa: F403
from distdl.nn.loss.cross_entropy import __all__ as _cross_entropy
from distdl.nn.loss.ctc import *  # noqa: F403
from distdl.nn.loss.ctc import __all__ as _ctc
from distdl.nn.loss.elementwise import *  # noqa: F403
from distdl.nn.loss.elementwise import __all__ as _elementwise
from distdl.nn.loss.features import *  # noqa: F403
from distdl.nn.loss.features import __all__ as _features
from distdl.nn.loss.linear_cross_entropy import *  # noqa: F403
from distdl.nn.loss.linear_cross_entropy import __all__ as _linear_cross_entropy

__all__ = [*_adaptive, *_classes, *_cross_entropy, *_ctc, *_elementwise, *_features, *_linear_cross_entropy]

"""Linear and bilinear layers over blocks of features and all other dimensions."""

from distdl.nn.linear.bilinear import *  # noqa: F403
from distdl.nn.linear.bilinear import __all__ as _bilinear
from distdl.nn.linear.dense import *  # noqa: F403
from distdl.nn.linear.dense import __all__ as _dense
from distdl.nn.linear.parallel import *  # noqa: F403
from distdl.nn.linear.parallel import __all__ as _parallel

__all__ = [*_bilinear, *_dense, *_parallel]

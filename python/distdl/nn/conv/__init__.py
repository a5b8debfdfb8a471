"""Convolutions and transposed convolutions over blocks of batch, channels and space."""

from distdl.nn.conv.channel_parallel import *  # noqa: F403
from distdl.nn.conv.channel_parallel import __all__ as _forms
from distdl.nn.conv.conv import *  # noqa: F403
from distdl.nn.conv.conv import __all__ as _conv
from distdl.nn.conv.transposed import *  # noqa: F403
from distdl.nn.conv.transposed import __all__ as _transposed

__all__ = [*_conv, *_forms, *_transposed]

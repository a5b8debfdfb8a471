"""Fourier transforms of tensors in blocks, and the layers made of them."""

from distdl.nn.fourier.spectral import *  # noqa: F403
from distdl.nn.fourier.spectral import __all__ as __all__

"""Fourier transforms of tensors in blocks: torch.fft's functions, with the partition of the input behind it.

Put together, the blocks of the result are the result of torch.fft. Any dimensions may be split, transformed or not.
"""

from distdl.fft.frequencies import *  # noqa: F403
from distdl.fft.frequencies import __all__ as _frequencies
from distdl.fft.transforms import *  # noqa: F403
from distdl.fft.transforms import __all__ as _transforms

__all__ = [*_frequencies, *_transforms]

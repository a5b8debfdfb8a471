"""Fourier transforms of tensors in blocks: torch.fft's functions, with the partition of the input after it.

The blocks of the result form the result of torch.fft. Any dimension may be split, transformed or not.
"""

from distdl.fft.frequencies import *  # noqa: F403
from distdl.fft.frequencies import __all__ as _frequencies
from distdl.fft.transforms import *  # noqa: F403
from distdl.fft.transforms import __all__ as _transforms

__all__ = [*_frequencies, *_transforms]

"""Layers that change the size of a tensor in space: interpolation and padding."""

from distdl.nn.resizing.pad import DistributedPad
from distdl.nn.resizing.upsample import DistributedUpsample

__all__ = ["DistributedPad", "DistributedUpsample"]

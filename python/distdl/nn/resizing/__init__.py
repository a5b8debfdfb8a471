"""Layers that change the size of a tensor in space: interpolation and padding."""

from distdl.nn.resizing.pad import DistributedPad
from distdl.nn.resizing.upsample import DistributedUpsample
from distdl.nn.resizing.upsampling import DistributedUpsamplingBilinear2d, DistributedUpsamplingNearest2d

__all__ = [
    "DistributedPad",
    "DistributedUpsample",
    "DistributedUpsamplingBilinear2d",
    "DistributedUpsamplingNearest2d",
]

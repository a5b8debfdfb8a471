"""A U-Net on volumes that are split over the ranks, and its sequential twin.

Source: O. Cicek, A. Abdulkadir, S. Lienkamp, T. Brox, O. Ronneberger, "3D U-Net: Learning Dense Volumetric Segmentation
from Sparse Annotation" (2016).
"""

import itertools

import torch

import distdl.nn as dnn


def sequential_stage(before, channels):
    """Two convolutions with norms."""
    return torch.nn.Sequential(
        torch.nn.Conv3d(before, channels, 3, padding=1),
        torch.nn.BatchNorm3d(channels),
        torch.nn.ReLU(),
        torch.nn.Conv3d(channels, channels, 3, padding=1),
        torch.nn.GroupNorm(2, channels),
        torch.nn.ReLU(),
    )


class SequentialUNet3d(torch.nn.Module):
    """In one process."""

    def __init__(self, channels=16, classes=3, depth=2):
        super().__init__()
        widths = [channels * 2**i for i in range(depth + 1)]
        self.down = torch.nn.ModuleList([sequential_stage(1, widths[0])])
        self.down.extend(sequential_stage(a, b) for a, b in itertools.pairwise(widths))
        self.pool = torch.nn.MaxPool3d(2)
        self.raise_ = torch.nn.ModuleList(
            torch.nn.ConvTranspose3d(b, a, 2, stride=2) for a, b in itertools.pairwise(widths)
        )
        self.up = torch.nn.ModuleList(sequential_stage(2 * width, width) for width in widths[:-1])
        self.head = torch.nn.Conv3d(widths[0], classes, 1)

    def forward(self, x):
        kept = []
        for stage in self.down[:-1]:
            x = stage(x)
            kept.append(x)
            x = self.pool(x)
        x = self.down[-1](x)
        for raise_, stage in zip(reversed(self.raise_), reversed(self.up), strict=True):
            x = stage(torch.cat([kept.pop(), raise_(x)], 1))
        return self.head(x)


def stage(P_x, before, channels):
    """The same stage with volumes split over P_x."""
    return torch.nn.Sequential(
        dnn.DistributedConv3d(P_x, before, channels, 3, padding=1),
        dnn.DistributedBatchNorm3d(P_x, channels),
        torch.nn.ReLU(),
        dnn.DistributedConv3d(P_x, channels, channels, 3, padding=1),
        dnn.DistributedGroupNorm(P_x, 2, channels),
        torch.nn.ReLU(),
    )


class UNet3d(torch.nn.Module):
    """On P_x of shape [batch, 1, depth, height, width], which is the partition of the scores, too."""

    def __init__(self, P_x, channels=16, classes=3, depth=2):
        super().__init__()
        widths = [channels * 2**i for i in range(depth + 1)]
        self.down = torch.nn.ModuleList([stage(P_x, 1, widths[0])])
        self.down.extend(stage(P_x, a, b) for a, b in itertools.pairwise(widths))
        self.pool = dnn.DistributedMaxPool3d(P_x, 2)
        self.raise_ = torch.nn.ModuleList(
            dnn.DistributedConvTranspose3d(P_x, b, a, 2, stride=2) for a, b in itertools.pairwise(widths)
        )
        self.up = torch.nn.ModuleList(stage(P_x, 2 * width, width) for width in widths[:-1])
        self.head = dnn.DistributedConv3d(P_x, widths[0], classes, 1)

    def forward(self, x):
        kept = []
        for convolutions in self.down[:-1]:
            x = convolutions(x)
            kept.append(x)
            x = self.pool(x)
        x = self.down[-1](x)
        for raise_, convolutions in zip(reversed(self.raise_), reversed(self.up), strict=True):
            x = convolutions(torch.cat([kept.pop(), raise_(x)], 1))
        return self.head(x)

"""A U-Net of 3-d images, written for one process."""

import itertools

import torch


def stage(before, channels):
    """Two convolutions with norms."""
    return torch.nn.Sequential(
        torch.nn.Conv3d(before, channels, 3, padding=1),
        torch.nn.BatchNorm3d(channels),
        torch.nn.ReLU(),
        torch.nn.Conv3d(channels, channels, 3, padding=1),
        torch.nn.GroupNorm(2, channels),
        torch.nn.ReLU(),
    )


class UNet3d(torch.nn.Module):
    """A U-Net of 3-d images.

    Source: O. Cicek, A. Abdulkadir, S. Lienkamp, T. Brox, O. Ronneberger, "3D U-Net: Learning Dense Volumetric
    Segmentation from Sparse Annotation" (2016).
    """

    def __init__(self, channels, classes, depth=2):
        super().__init__()
        widths = [channels * 2**i for i in range(depth + 1)]
        self.down = torch.nn.ModuleList([stage(1, widths[0])])
        self.down.extend(stage(a, b) for a, b in itertools.pairwise(widths))
        self.pool = torch.nn.MaxPool3d(2)
        self.widen = torch.nn.ModuleList(
            torch.nn.ConvTranspose3d(b, a, 2, stride=2) for a, b in itertools.pairwise(widths)
        )
        self.up = torch.nn.ModuleList(stage(2 * width, width) for width in widths[:-1])
        self.head = torch.nn.Conv3d(widths[0], classes, 1)

    def forward(self, x):
        kept = []
        for stage_down in self.down[:-1]:
            x = stage_down(x)
            kept.append(x)
            x = self.pool(x)
        x = self.down[-1](x)
        for widen, stage_up in zip(reversed(self.widen), reversed(self.up), strict=True):
            x = stage_up(torch.cat([kept.pop(), widen(x)], 1))
        return self.head(x)

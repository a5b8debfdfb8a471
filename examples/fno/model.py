"""A Fourier neural operator, over blocks and in one process."""

import torch

import distdl.nn as dnn
from distdl.nn.fourier import sequential


class Operator(torch.nn.Module):
    """Lifts a field to channels, applies Fourier layers, and projects the channels on a field.

    Args:
        conv: makes a convolution of one point, from numbers of channels.
        spectral: makes a spectral convolution, likewise.
        width: the number of channels.
        depth: the number of Fourier layers.
    """

    def __init__(self, conv, spectral, width, depth):
        super().__init__()
        self.lift = conv(2, width)
        self.spectral = torch.nn.ModuleList(spectral(width, width) for _ in range(depth))
        self.skip = torch.nn.ModuleList(conv(width, width) for _ in range(depth))
        self.project = torch.nn.ModuleList([conv(width, 2 * width), conv(2 * width, 1)])

    def forward(self, x):
        """From vorticity and force (N, 2, rows, columns) to the vorticity later (N, 1, rows, columns)."""
        x = self.lift(x)
        for i, (spectral, skip) in enumerate(zip(self.spectral, self.skip, strict=True)):
            x = spectral(x) + skip(x)
            if i + 1 < len(self.spectral):
                x = torch.nn.functional.gelu(x)
        first, second = self.project
        return second(torch.nn.functional.gelu(first(x)))


def distributed(P_x, width=10, modes=10, depth=3):
    """On fields in blocks of P_x, [1, 1, rows, columns]."""
    return Operator(
        lambda m, n: dnn.DistributedConv2d(P_x, m, n, 1, dtype=torch.float64),
        lambda m, n: dnn.SpectralConv2d(P_x, m, n, modes, dtype=torch.float64),
        width,
        depth,
    )


def in_one_process(width=10, modes=10, depth=3):
    """The twin in plain torch, whose parameters have the same names."""
    return Operator(
        lambda m, n: torch.nn.Conv2d(m, n, 1, dtype=torch.float64),
        lambda m, n: sequential.SpectralConv2d(m, n, modes, dtype=torch.float64),
        width,
        depth,
    )

"""Spectral convolutions."""

import torch

from distdl.nn.fourier import sequential
from support.families import Example


def spectral(dims, space, modes, in_channels=3, out_channels=2, parts=1, **options):
    """Any dimension split."""
    name = f"SpectralConv{dims}d"

    def twin():
        torch.manual_seed(3)
        kind = getattr(sequential, name)
        return kind(in_channels, out_channels, modes, dtype=torch.float64, **options)

    def inputs():
        generator = torch.Generator().manual_seed(4)
        return (torch.randn(2, in_channels, *space, dtype=torch.float64, generator=generator),)

    cut = tuple(range(dims + 2))
    return Example(
        twin, inputs, dims + 2, (cut,), (cut,), balanced=(1,),
        kind=name, options={"parts": parts},
    )  # fmt: skip


EXAMPLES = {
    "SpectralConv1d": spectral(1, (9,), (6,)),
    "SpectralConv1d all modes": spectral(1, (8,), (8,), bias=False, norm="ortho"),
    "SpectralConv2d": spectral(2, (7, 8), (4, 5)),
    "SpectralConv2d in parts": spectral(2, (6, 6), (3, 6), parts=2, norm="backward"),
    "SpectralConv3d": spectral(3, (4, 5, 6), (3, 4, 2), 2, 3),
    "SpectralConv4d": spectral(4, (3, 4, 2, 5), (2, 1, 2, 4), 1, 2),
}

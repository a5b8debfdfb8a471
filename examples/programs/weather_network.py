"""A forecast by layers of Fourier coefficients, written for one process."""

import torch


class SpectralConv(torch.nn.Module):
    """A linear function of the lowest Fourier coefficients.

    Source: Z. Li, N. Kovachki, K. Azizzadenesheli et al., "Fourier Neural Operator for Parametric Partial Differential
    Equations" (2021).
    """

    def __init__(self, channels, modes):
        super().__init__()
        self.modes = modes
        self.weight = torch.nn.Parameter(torch.randn(channels, channels, modes, modes, 2) / channels)

    def forward(self, x):
        coefficients = torch.fft.rfft2(x.to(self.weight.dtype))
        result = torch.zeros_like(coefficients)
        low = (slice(None), slice(None), slice(self.modes), slice(self.modes))
        result[low] = torch.einsum("bixy,ioxy->boxy", coefficients[low], torch.view_as_complex(self.weight))
        return torch.fft.irfft2(result, s=x.shape[-2:])


class Forecast(torch.nn.Module):
    """The state after a step, from the state before it."""

    def __init__(self, fields, channels, modes, depth=3):
        super().__init__()
        self.lift, self.project = torch.nn.Conv2d(fields, channels, 1), torch.nn.Conv2d(channels, fields, 1)
        self.spectral = torch.nn.ModuleList(SpectralConv(channels, modes) for _ in range(depth))
        self.local = torch.nn.ModuleList(
            torch.nn.Conv2d(channels, channels, 3, padding=1, padding_mode="circular") for _ in range(depth)
        )

    def forward(self, x):
        y = self.lift(x)
        for spectral, local in zip(self.spectral, self.local, strict=True):
            y = torch.nn.functional.gelu(spectral(y) + local(y))
        return x + self.project(y)

"""Two-dimensional Navier-Stokes flow in vorticity form on the unit torus: the data of the example.

d w/dt + u . grad w = nu laplace w + f, solved by a pseudo-spectral method: Crank-Nicolson for the viscous term, Heun's
method for the others, and the highest third of the frequencies removed. Source: Z. Li et al., "Fourier Neural Operator
for Parametric Partial Differential Equations" (2021), section 5.3 and appendix A.3.3.
"""

import math

import torch


def frequencies(n):
    """The wave numbers of both dimensions, of half a spectrum."""
    along = torch.fft.fftfreq(n, 1 / n, dtype=torch.float64)
    half = torch.fft.rfftfreq(n, 1 / n, dtype=torch.float64)
    return 2 * math.pi * along[:, None], 2 * math.pi * half[None, :]


def random_vorticity(count, n, generator):
    """Samples of a Gaussian field of mean 0, smooth enough to be resolved."""
    k1, k2 = frequencies(n)
    spectrum = 7**1.5 * (k1**2 + k2**2 + 49) ** -1.25
    spectrum[0, 0] = 0
    noise = torch.randn(count, n, n, dtype=torch.float64, generator=generator)
    return torch.fft.irfft2(torch.fft.rfft2(noise) * spectrum * n, s=(n, n))


def forcing(n):
    """The force's curl, which is the same for all flows."""
    at = torch.arange(n, dtype=torch.float64) / n
    angle = 2 * math.pi * (at[:, None] + at[None, :])
    return 0.1 * (angle.sin() + angle.cos())


def solve(vorticity, seconds, step=0.01, viscosity=1e-3):
    """The vorticity after some seconds, of a batch of fields (count, n, n)."""
    n = vorticity.shape[-1]
    k1, k2 = frequencies(n)
    laplace = -(k1**2 + k2**2)
    inverse = torch.where(laplace == 0, 0.0, 1 / laplace.masked_fill(laplace == 0, 1))
    resolved = ((k1.abs() < 2 * math.pi * n / 3) & (k2.abs() < 2 * math.pi * n / 3)).double()
    force = torch.fft.rfft2(forcing(n))

    def change(w):
        stream = -inverse * w
        parts = (1j * k2 * stream, -1j * k1 * stream, 1j * k1 * w, 1j * k2 * w)
        u, v, w1, w2 = (torch.fft.irfft2(part, s=(n, n)) for part in parts)
        return force - resolved * torch.fft.rfft2(u * w1 + v * w2)

    w = torch.fft.rfft2(vorticity)
    old, new = 1 + step / 2 * viscosity * laplace, 1 - step / 2 * viscosity * laplace
    for _ in range(round(seconds / step)):
        first = change(w)
        guess = (old * w + step * first) / new
        w = (old * w + step / 2 * (first + change(guess))) / new
    return torch.fft.irfft2(w, s=(n, n))


def make(count, n, seconds, seed=0):
    """The vorticity at first and the force (count, 2, n, n), and the vorticity after some seconds (count, 1, n, n).

    A Fourier neural operator does not know where it is: it is told the force.
    """
    generator = torch.Generator().manual_seed(seed)
    first = random_vorticity(count, n, generator)
    return torch.stack([first, forcing(n).expand_as(first)], 1), solve(first, seconds)[:, None]

"""Functions of complex numbers, and Fourier transforms."""

import torch

from support.rules.functions import IMAGES
from support.splitting import numbers


def spectra(x):
    return torch.stft(x, 4, 1, window=torch.hann_window(4).double(), return_complex=True)


COMPLEX = {
    "view_as_complex": (lambda x: torch.view_as_complex(x.reshape(4, 4, 3, 5, 2)), IMAGES),
    "view_as_complex of others": (lambda x: torch.view_as_complex(torch.stack([x, x.exp()], -1)).angle(), IMAGES),
    "view_as_real": (lambda x: torch.view_as_real(torch.complex(x, x.sin()) * 1j), IMAGES),
    "polar": (lambda x: torch.polar(x.exp(), x), IMAGES),
    "magnitude of a sum": (lambda x: torch.complex(x, x.sin()).sum().abs(), IMAGES),
    "a sum as the phase": (lambda x: torch.polar(x.sum().exp(), x.mean()), IMAGES),
    "fft of few images": (lambda x: torch.fft.fft(x, dim=2).abs(), (2, 4, 6, 5)),
    "fft": (lambda x: torch.fft.fft(x, dim=2), IMAGES),
    "fft of the last": (lambda x: torch.fft.fft(x, 7, norm="ortho"), IMAGES),
    "fft and back": (lambda x: torch.fft.ifft(torch.fft.fft(x, dim=1) * numbers(4, 1, 1), dim=1).real, IMAGES),
    "rfft and back": (lambda x: torch.fft.irfft(torch.fft.rfft(x, dim=2), 6, 2), IMAGES),
    "hfft": (lambda x: torch.fft.hfft(torch.complex(x, x.sin())), IMAGES),
    "fft2": (lambda x: torch.fft.fft2(x), IMAGES),
    "ifft2 of others": (lambda x: torch.fft.ifft2(x, dim=(0, 2)), IMAGES),
    "fftn": (lambda x: torch.fft.fftn(x), IMAGES),
    "ifftn of a size": (lambda x: torch.fft.ifftn(x, (4,)), IMAGES),
    "rfft2 and back": (lambda x: torch.fft.irfft2(torch.fft.rfft2(x), (6, 5)), IMAGES),
    "rfftn and back": (lambda x: torch.fft.irfftn(torch.fft.rfftn(x, dim=[1, 2]), dim=(1, 2)), IMAGES),
    "fftshift": (lambda x: torch.fft.fftshift(x, 2), IMAGES),
    "ifftshift": (lambda x: torch.fft.ifftshift(x), IMAGES),
    "fftfreq": (lambda x: x * torch.fft.fftfreq(5) + torch.fft.rfftfreq(9), IMAGES),
    "fft of two dimensions one by one": (lambda x: torch.fft.fft(torch.fft.fft(x, dim=2), dim=3).abs(), IMAGES),
    "stft": (lambda x: torch.stft(x, 4, window=torch.hann_window(4).double(), return_complex=True), (4, 16)),
    "istft": (lambda x: torch.istft(spectra(x), 4, window=torch.hann_window(4).double(), length=16), (4, 16)),
    "istft of a row": (lambda x: torch.istft(spectra(x[0]), 4, 1, window=torch.ones(4).double(), length=12), (4, 16)),
    "istft of two sides": (lambda x: torch.istft(
        torch.complex(x, x.sin()).transpose(0, 1), 6, 2, window=torch.ones(6).double()), (4, 6)),
    "istft of part of a frame": (lambda x: torch.istft(
        torch.stft(x, 7, 2, 3, torch.hamming_window(3).double(), True, "constant", True, False, return_complex=True),
        7, 2, 3, torch.hamming_window(3).double(), normalized=True), (4, 16)),
}  # fmt: skip

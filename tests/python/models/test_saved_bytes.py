"""What a rank keeps for the backward pass, beside its share of what one process keeps."""

import pytest
import torch

import distdl
from distdl.nn.fourier.sequential import SpectralConv2d
from support.blocks import grid
from support.ranks import job, together

P_world = distdl.Partition(job)


def saved_bytes(call):
    """The bytes of the different memories that a call keeps for its backward pass."""
    sizes = {}

    def pack(saved):
        memory = saved.untyped_storage()
        sizes[memory.data_ptr()] = memory.nbytes(), saved  # which keeps the address from other tensors
        return saved

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda saved: saved):
        result = call()
    del result
    return sum(nbytes for nbytes, _ in sizes.values())


class OneByOne(SpectralConv2d):
    """Transforms a dimension after the other."""

    def __init__(self):
        super().__init__(8, 8, (6, 4))


class AtOnce(torch.nn.Module):
    """Transforms both dimensions in one call, and writes the kept frequencies into zeros."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(8, 8, 6, 6, 2) / 8)

    def forward(self, x):
        spectrum = torch.fft.rfft2(x)[..., :6, :6]
        y = torch.einsum("bixy,ioxy->boxy", spectrum, torch.view_as_complex(self.weight))
        zeros = torch.zeros(*x.shape[:-1], x.shape[-1] // 2 + 1, dtype=y.dtype)
        zeros[..., :6, :6] = y
        return torch.fft.irfft2(zeros, x.shape[-2:])


class Fourier(torch.nn.Module):
    """Layers of a Fourier neural operator."""

    def __init__(self, spectral):
        super().__init__()
        self.spectral = torch.nn.ModuleList(spectral() for _ in range(3))
        self.skip = torch.nn.ModuleList(torch.nn.Conv2d(8, 8, 1) for _ in range(3))

    def forward(self, x):
        for spectral, skip in zip(self.spectral, self.skip, strict=True):
            x = torch.nn.functional.gelu(spectral(x) + skip(x))
        return x


def encoder():
    layer = torch.nn.TransformerEncoderLayer(64, 4, 256, dropout=0.0, batch_first=True)
    return torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


FIELDS = (1, 8, 128, 128)
MODELS = {
    "fourier": (lambda: Fourier(OneByOne), FIELDS, 2),
    "fourier at once": (lambda: Fourier(AtOnce), FIELDS, 2),
    "encoder": (encoder, (2, 256, 64), 1),
}
"""The model, the shape of its input, and the dimension that is split."""


@pytest.mark.ranks(2)
@pytest.mark.parametrize("name", MODELS)
def test_a_rank_keeps_its_share(name):
    make, shape, d = MODELS[name]
    model, whole = make(), torch.rand(shape)
    weights = sum(parameter.nbytes for parameter in model.parameters())
    of_one = saved_bytes(lambda: model(whole))
    P_x = grid(P_world, [job.size if i == d else 1 for i in range(len(shape))])
    ours, block = distdl.distribute(model, P_x), distdl.scatter(whole, P_x)
    ours(block).sum().backward()  # sets up
    of_ranks = together(saved_bytes(lambda: ours(block)))
    assert max(of_ranks) <= 1.1 * of_one / job.size + weights, (of_ranks, of_one, weights)


def test_fields_stay_in_their_blocks_beside_transforms():
    """Only frequencies travel, 3 of 65 columns, and parameters."""
    P_x = [1, 1, 2, 1]
    report = distdl.report(Fourier(OneByOne), P_x=P_x, shape=FIELDS)
    fields = [row for row in report.rows if row.operation in ("fft_irfft", "add", "gelu", "Conv2d")]
    assert {tuple(row.splits) for row in fields} == {tuple(P_x)}
    field = 4 * 8 * 128 * 128
    assert report.sent < field

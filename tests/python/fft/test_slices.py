"""Large blocks are transformed slice by slice: any slices, strides and dimensions, beside torch.fft."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import distdl
from distdl.nn.fourier.kinds import resolve_transform
from distdl.nn.kernels import fourier_slices as slices
from support.blocks import grid
from support.ranks import draws

pytestmark = pytest.mark.ranks(1)
ROUNDINGS = 100


@pytest.fixture
def small_is_large(monkeypatch):
    """Everything is transformed in slices of a few elements."""
    for name, value in (("_LARGE_BYTES", 1), ("_LARGE_ACROSS", 1), ("_SLICE", 160)):
        monkeypatch.setattr(slices, name, value)


@draws(60)
@given(data=st.data())
def test_any_slices(small_is_large, data):
    """Values and layout, of contiguous, permuted, cut and expanded blocks."""
    count = data.draw(st.integers(1, 4))
    shape = data.draw(st.lists(st.integers(1, 6), min_size=count, max_size=count))
    order = data.draw(st.permutations(range(count)))
    function = data.draw(st.sampled_from(("fftn", "ifftn", "rfftn", "irfftn", "hfftn", "ihfftn")))
    dims = data.draw(st.permutations(range(count)))[: data.draw(st.integers(1, count))]
    sizes = [data.draw(st.integers(1, 7)) for _ in dims]
    dtype = torch.float64 if function in ("rfftn", "ihfftn") else torch.complex128
    x = torch.randn([2 * shape[d] for d in order], dtype=dtype)[tuple(slice(None, None, 2) for _ in order)]
    x = x.permute([order.index(d) for d in range(count)])
    if data.draw(st.booleans()):
        x = x.narrow(0, 0, 1).expand(shape)
    x = x.conj() if data.draw(st.booleans()) else x
    transform = resolve_transform(function, shape, dtype, sizes, dims, None)
    expected = getattr(torch.fft, function)(x, sizes, dims)
    for contiguous in (False, True):
        y = transform(x, dims, contiguous=contiguous)
        assert y.shape == expected.shape
        assert y.dtype == expected.dtype
        assert not contiguous or y.is_contiguous()
        error = (y - expected).abs().max()
        assert error <= ROUNDINGS * torch.finfo(dtype).eps * max(float(expected.abs().max()), 1e-3)


def test_parts_are_joined(small_is_large):
    """As torch.cat joins them, with and without gradients; a single part is not copied."""
    parts = [torch.randn(2, n, 3, dtype=torch.complex64).conj() for n in (2, 0, 1)]
    assert torch.equal(slices.concatenated(parts, 1), torch.cat(parts, 1))
    assert slices.concatenated(parts[:1], 1) is parts[0]
    parts[1].requires_grad_()
    assert slices.concatenated(parts, 1).requires_grad


def test_what_is_recorded_is_not_sliced(small_is_large, P_world, monkeypatch):
    """Gradients and forward-mode derivatives see torch's own transforms."""
    monkeypatch.setattr(slices, "_write", lambda *_: pytest.fail("a slice was written"))
    P_x = grid(P_world, [1, 1])
    x = torch.randn(4, 6, dtype=torch.complex128, requires_grad=True)
    assert torch.autograd.gradgradcheck(lambda x: distdl.fft.fft2(x, P_x), x)
    transform = resolve_transform("fft2", (4, 6), x.dtype, None, (0, 1), None)
    assert torch.func.vmap(lambda x: transform(x, (0, 1)))(x.detach().expand(2, 4, 6)).shape == (2, 4, 6)


def test_large_blocks_are_sliced(P_world, monkeypatch):
    """With the program's own sizes: a block of 32 MiB, and a block of 8 MiB along its first dimension."""
    written = []
    write = slices._write_slice
    monkeypatch.setattr(slices, "_write_slice", lambda *args: written.append(args[1].shape) or write(*args))
    P_x = grid(P_world, [1, 1])
    x = torch.randn(2048, 2048, dtype=torch.complex64)
    for dim in (0, 1):
        written.clear()
        y = distdl.fft.fft(x, P_x, dim=dim)
        assert len(written) > 1
        expected = torch.fft.fft(x, dim=dim)
        assert float((y - expected).abs().max()) <= ROUNDINGS * torch.finfo(y.dtype).eps * float(expected.abs().max())
    written.clear()
    distdl.fft.fft(x[:1000], P_x, dim=1)
    assert not written

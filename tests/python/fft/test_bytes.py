"""What transforms send, counted by the operators: as little as the way through pencils allows."""

import pytest
import torch

import distdl
import distdl.nn as dnn
from support.blocks import grid
from support.ranks import job, together

COMPLEX = 16  # bytes of a number in double precision
pytestmark = pytest.mark.ranks(2, 4)


def sent(call):
    """(calls, bytes that all ranks sent) of all operators in a call, behind a first one that sets up."""
    call()
    distdl.reset_comm_stats()
    call()
    stats = distdl.comm_stats().values()
    return sum(row.calls for row in stats), sum(together(sum(row.bytes_sent for row in stats)))


def elsewhere(elements):
    """Of elements that go from everyone to everyone, those that change their worker."""
    return elements * (job.size - 1) // job.size


@pytest.mark.parametrize("split", [0, 1])
def test_a_spectrum_goes_there_and_back(P_world, split):
    """16 columns are 9 frequencies, which travel and not the rows that they come from."""
    P_x = grid(P_world, [job.size, 1] if split == 0 else [1, job.size])
    x = torch.rand(16 // P_x.shape[0], 16 // P_x.shape[1], dtype=torch.float64)
    _, pencil = distdl.fft.rfft2(x, P_x, out="pencil")
    both = sent(lambda: distdl.fft.rfft2(x, P_x))
    single = sent(lambda: distdl.fft.rfft2(x, P_x, out="pencil"))
    spectrum = 16 * 9 * COMPLEX
    if split == 0:  # blocks of 9 frequencies differ in size, and so do the parts that stay
        assert single == (1, sum_of_moved(16, 9, COMPLEX))
        assert both == (2, 2 * single[1])
        assert list(pencil.shape) == [1, job.size]
    else:  # the real numbers travel first
        assert single == (1, elsewhere(16 * 16 * COMPLEX // 2))
        assert both == (2, single[1] + sum_of_moved(16, 9, COMPLEX))
    assert single[1] < spectrum


def sum_of_moved(rows, columns, size):
    """Bytes that travel when rows in blocks become columns in blocks."""
    blocks = [(columns // job.size) + (i < columns % job.size) for i in range(job.size)]
    return size * sum((rows - rows // job.size) * width for width in blocks)


def test_a_pencil_spares_two_exchanges(P_world):
    P_x = grid(P_world, [1, 1, job.size, 1])
    x = torch.rand(2, 4, 8 // job.size, 8, dtype=torch.complex128)

    def there_and_back(out):
        if out is None:
            return distdl.fft.ifft2(distdl.fft.fft2(x, P_x), P_x)
        y, P_y = distdl.fft.fft2(x, P_x, out=out)
        return distdl.fft.ifft2(y, P_y, out=P_x)

    assert torch.allclose(there_and_back("pencil"), x)
    moved = elsewhere(2 * 4 * 8 * 8 * COMPLEX)
    assert sent(lambda: there_and_back(None)) == (4, 4 * moved)
    assert sent(lambda: there_and_back("pencil")) == (2, 2 * moved)


def test_cropped_elements_stay(P_world):
    """Of 16 rows 4 are read."""
    P_x = grid(P_world, [job.size, 1])
    x = torch.rand(16 // job.size, 8, dtype=torch.complex128)
    calls, moved = sent(lambda: distdl.fft.fft2(x, P_x, s=(4, 8), out="pencil"))
    assert calls == 1
    assert moved == elsewhere(4 * 8 * COMPLEX)


@pytest.mark.parametrize("split", [[2], [3], [2, 3]])
def test_only_kept_modes_travel(P_world, split):
    """Of 12 x 16 elements 4 x 3 modes: summed on their way there, gathered on their way back."""
    if job.size % 2 ** (len(split) - 1):
        return
    extents = [job.size // 2, 2] if len(split) == 2 else [job.size]
    shape = [1, 1, 1, 1]
    for d, p in zip(split, extents, strict=True):
        shape[d] = p
    P_x = grid(P_world, shape)
    layer = dnn.SpectralConv2d(P_x, 3, 5, (4, 4), dtype=torch.float64)
    x = torch.rand(2, 3, 12 // shape[2], 16 // shape[3], dtype=torch.float64)
    calls, moved = sent(lambda: layer(x))
    modes = 4 * 3 * COMPLEX
    bias = (job.size - 1) * 5 * 8  # from its owner to the others; weights stay where the modes are
    assert calls == 3
    assert moved == (job.size - 1) * (2 * 3 * modes + 2 * 5 * modes) + bias

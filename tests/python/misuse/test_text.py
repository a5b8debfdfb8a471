"""Arguments that raise when they are asked for their text: on one rank alone, the others would wait."""

import pytest
import torch

import distdl
import distdl.nn as dnn
from support.blocks import grid
from support.ranks import job, raises_everywhere

pytestmark = pytest.mark.ranks(2)


class Mute:
    """An object without text."""

    def __repr__(self):
        raise OSError("no text")


def by_rank(rank_0, rank_1):
    """This rank's argument."""
    return rank_1 if job.rank else rank_0


def test_in_constructors(P_world):
    P_x = grid(P_world, [1, 1, 2])
    raises_everywhere(Exception, "DistributedPad", lambda: dnn.DistributedPad(P_x, (1, 1), by_rank("constant", Mute())))
    raises_everywhere(Exception, "Conv1d", lambda: dnn.DistributedConv1d(P_x, 1, 1, by_rank(3, Mute())))
    raises_everywhere(Exception, "Broadcast", lambda: dnn.Broadcast(P_x, P_x, by_rank(False, Mute())))


def test_in_calls(P_world):
    """Also of what stands in a structure beside tensors."""
    P_x, x = grid(P_world, [1, 1, 2]), torch.ones(1, 1, 3)
    conv = dnn.DistributedConvTranspose1d(P_x, 1, 1, 1)
    raises_everywhere(Exception, "ConvTranspose1d", lambda: conv(x, by_rank(None, Mute())))

    class Passes(torch.nn.Module):
        def forward(self, x, other):
            return x * 1

    local = dnn.Local(P_x, Passes())
    raises_everywhere(ValueError, "whose repr raises OSError", lambda: local(x, by_rank([1], [Mute()])))
    assert torch.equal(local(x, [1]), x)


def test_in_functions(P_world):
    """Functions keep a layer by its options."""
    P_x, x = grid(P_world, [2, 1]), torch.ones(2, 3)
    expected = distdl.fft.fft(x, P_x)
    raises_everywhere(Exception, "FourierTransform|fft", lambda: distdl.fft.fft(x, P_x, norm=by_rank(None, Mute())))
    assert torch.equal(distdl.fft.fft(x, P_x), expected)

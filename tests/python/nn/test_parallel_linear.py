"""The column and the row form of linear layers as a pair, with the tokens split along one axis or along two."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import distdl
from distdl.nn import DistributedLinear, DistributedLinearAllGather, DistributedLinearReduceScatter
from support.blocks import balanced, grid, grid_shapes
from support.ranks import job, on_all_ranks, raises_everywhere, total
from support.sequential import joined, parameter_slices
from support.tensors import values

double = torch.float64


def pair(P, sequence_dim, hidden, bias):
    """The two layers of a transformer's feed-forward block, and their sequential twins."""
    torch.manual_seed(3)
    twin = [torch.nn.Linear(5, hidden, bias, dtype=double), torch.nn.Linear(hidden, 5, bias, dtype=double)]
    kinds = (DistributedLinearAllGather, DistributedLinearReduceScatter)
    return twin, [
        kind.from_sequential(module, P, sequence_dim=sequence_dim) for kind, module in zip(kinds, twin, strict=True)
    ]


def slices_of(P, shape, sequence_dim, sizes):
    """This worker's block, whose tokens may be cut along their own axis and then along the last."""
    slices = []
    for d, n in enumerate(shape):
        place, workers = int(P.index[d]), int(P.shape[d])
        if d == sequence_dim:
            last, at = int(P.shape[-1]), int(P.index[-1])
            outer = sum(sizes[:place]), sum(sizes[: place + 1])
            inner = balanced(outer[1] - outer[0], last, at)
            slices.append(slice(outer[0] + inner[0], outer[0] + inner[1]))
        elif d == len(shape) - 1:
            whole = sequence_dim is not None
            slices.append(slice(0, n) if whole else slice(*balanced(n, workers, place)))
        else:
            slices.append(slice(*balanced(n, workers, place)))
    return tuple(slices)


@given(st.data())
@on_all_ranks
def test_a_pair(P_world, data):
    """The output is in the blocks of the input."""
    shape = data.draw(st.sampled_from(grid_shapes(3, job.size)))
    sequence_dim = data.draw(st.sampled_from([None, 0, 1]))
    extents = data.draw(st.tuples(st.integers(1, 4), st.integers(1, 7)))
    P = grid(P_world, shape)
    twin, layers = pair(P, sequence_dim, data.draw(st.integers(1, 6)), data.draw(st.booleans()))
    along = shape[sequence_dim] if sequence_dim is not None else 1
    n = extents[sequence_dim] if sequence_dim is not None else 0
    cuts = sorted(data.draw(st.lists(st.integers(0, n), min_size=along - 1, max_size=along - 1)))
    sizes = [b - a for a, b in zip([0, *cuts], [*cuts, n], strict=True)]

    x = values((*extents, 5)) / 4
    at = slices_of(P, x.shape, sequence_dim, sizes) if P.active else None
    own = (x[at].clone() if at is not None else distdl.zero_volume_tensor(dtype=double)).requires_grad_()
    x.requires_grad_()
    expected = twin[1](torch.tanh(twin[0](x)))
    y = layers[1](torch.tanh(layers[0](own)))
    assert torch.allclose(joined(y, x.shape, at), expected, rtol=0, atol=1e-12)
    expected.square().sum().backward()
    y.square().sum().backward()
    assert torch.allclose(joined(own.grad, x.shape, at), x.grad, rtol=0, atol=1e-11)
    for layer, module in zip(layers, twin, strict=True):
        for name, whole in module.named_parameters():
            where = parameter_slices(layer.layouts[name])
            gradient = layer.get_parameter(name).grad
            assembled = joined(torch.zeros(0) if where is None else gradient, whole.shape, where)
            assert torch.allclose(assembled, whole.grad, rtol=0, atol=1e-11), name
    assert total(sum(p.numel() for p in layers[0].parameters())) == sum(p.numel() for p in twin[0].parameters())


@pytest.mark.ranks(2)
@pytest.mark.parametrize("sequence_dim", [None, 0])
def test_blocks_that_do_not_fit(P_world, sequence_dim):
    P = grid(P_world, (1, 2))
    with_tokens = sequence_dim is not None
    first = DistributedLinearAllGather(P, 5, 4, sequence_dim=sequence_dim)
    second = DistributedLinearReduceScatter(P, 5, 4, sequence_dim=sequence_dim)
    features = 5 if with_tokens else (3, 2)[job.rank]
    good = torch.ones(2, features)
    assert first(good).shape == ((4, 2) if with_tokens else (2, 2))
    assert second(torch.ones(2, (3, 2)[job.rank])).shape == ((1, 4) if with_tokens else (2, 2))
    wrong = torch.ones(2, 4) if with_tokens else torch.ones(2, (3, 3)[job.rank])
    raises_everywhere(ValueError, "in_features=5", lambda: first(wrong))
    raises_everywhere(ValueError, "balanced blocks of in_features=5", lambda: second(torch.ones(2, (2, 3)[job.rank])))
    raises_everywhere(RuntimeError, "the input is torch.float64", lambda: first(good.double()))
    assert torch.equal(first(good), first(good))


@pytest.mark.ranks(2)
def test_the_same_first_values(P_world):
    """With the same seed as torch.nn.Linear's, and in the dtype that is asked for."""
    for kind in (DistributedLinear, DistributedLinearAllGather, DistributedLinearReduceScatter):
        P = grid(P_world, (2, 1) if kind is DistributedLinear else (1, 2))
        torch.manual_seed(7)
        layer = kind(P, 5, 3, dtype=torch.bfloat16)
        torch.manual_seed(7)
        twin = torch.nn.Linear(5, 3, dtype=torch.bfloat16)
        state = distdl.sequential_state_dict(layer)
        if job.rank == 0:
            assert all(torch.equal(state[name], tensor) for name, tensor in twin.state_dict().items())

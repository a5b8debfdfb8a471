"""Halos against the padded global tensor."""

import pytest
import torch

import distdl.nn as dnn
from support.blocks import assemble, block_of, block_slices, grid
from support.ranks import job, raises_everywhere
from support.tensors import same_bits, values


def padded_slice(whole, P, halo, periodic, fill):
    """The expected result of this worker, by indexing the global tensor element by element."""
    result = whole
    for d, (left, right) in enumerate(halo):
        n = whole.shape[d]
        own = block_slices(P, whole.shape)[d]
        wanted = torch.arange(own.start - left, own.stop + right)
        outside = (wanted < 0) | (wanted >= n)
        picked = result.index_select(d, wanted % n)
        if not periodic[d]:
            picked = picked.index_fill(d, outside.nonzero().flatten(), fill)
        result = picked
    return result


@pytest.mark.parametrize("periodic", [(False, False), (True, True), (False, True)], ids=str)
@pytest.mark.parametrize("halo", [((1, 1), (1, 1)), ((0, 2), (3, 0)), ((4, 5), (6, 7)), ((-1, 1), (0, -1))], ids=str)
@pytest.mark.parametrize("axis", [0, 1])
def test_against_the_global_tensor(P_world, halo, periodic, axis):
    P = grid(P_world, [job.size, 1] if axis == 0 else [1, job.size])
    whole = values((2 * job.size + 1, 2 * job.size + 2))
    layer = dnn.HaloExchange(P, halo, periodic=periodic, fill_value=-7.0)
    assert same_bits(layer(block_of(whole, P)), padded_slice(whole, P, halo, periodic, -7.0))


@pytest.mark.mpi(min_size=12)
def test_corners_of_a_grid(P_world):
    P = grid(P_world, [3, 2, 2])
    whole = values((7, 5, 4))
    layer = dnn.HaloExchange(P, 2, periodic=[False, True, False])
    y = layer(block_of(whole, P))
    if P.active:
        assert same_bits(y, padded_slice(whole, P, [(2, 2)] * 3, [False, True, False], 0.0))


def test_each_worker_its_own_widths(P_world):
    P = grid(P_world, [job.size])
    whole = values((3 * job.size,))
    widths = [(job.rank % 3, (job.rank + 1) % 2)]
    y = dnn.HaloExchange(P, widths)(block_of(whole, P))
    assert same_bits(y, padded_slice(whole, P, widths, [False], 0.0))


def test_empty_blocks_have_halos_too(P_world):
    """Fewer elements than workers."""
    P = grid(P_world, [job.size])
    whole = values((1,))
    y = dnn.HaloExchange(P, [(1, 1)])(block_of(whole, P))
    assert same_bits(y, padded_slice(whole, P, [(1, 1)], [False], 0.0))


def test_fill_values_of_every_kind(P_world):
    P = grid(P_world, [job.size])
    for dtype, lowest in (
        (torch.float32, -torch.inf),
        (torch.int16, -(2**15)),
        (torch.uint8, 0),
        (torch.int64, -(2**63)),
    ):
        y = dnn.HaloExchange(P, [(1, 0)], fill_value=-torch.inf)(torch.ones(2, dtype=dtype))
        assert y[0] == (lowest if job.rank == 0 else 1)


def test_a_halo_of_nothing_is_a_copy(P_world):
    x = values((3, 2), seed=job.rank)
    y = dnn.HaloExchange(grid(P_world, [job.size, 1]), 0)(x)
    assert same_bits(x, y)
    assert x.data_ptr() != y.data_ptr()


def test_tensor_with_room(P_world):
    """The four-argument form: the room at the edges of the tensor keeps what is in it."""
    P = grid(P_world, [1, job.size])
    whole = values((2, 3 * job.size + 1))
    first, last = job.rank == 0, job.rank == job.size - 1
    room = [[0, 0], [1, 2]]
    received = [[0, 0], [0 if first else 1, 0 if last else 2]]
    sent = [[0, 0], [0 if first else 2, 0 if last else 1]]
    block = block_of(whole, P)
    x = torch.nn.functional.pad(block, (1, 2), value=9.0).requires_grad_()
    layer = dnn.HaloExchange(P, room, received, sent)
    y = layer(x)
    assert same_bits(y, padded_slice(whole, P, [(0, 0), (1, 2)], [False, False], 9.0))

    # The adjoint: a halo's gradient goes to its owner, and the room it was received in keeps none.
    y.sum().backward()
    seen = assemble(x.grad[:, 1:-2], P, whole.shape)
    expected = torch.ones(whole.shape, dtype=torch.float64)
    for edge in torch.tensor([block_slices(P, whole.shape)[1].start] * 1).new_tensor(
        [start for start in job.allgather(block_slices(P, whole.shape)[1].start) if start > 0]
    ):
        expected[:, edge - 1] += 1  # received on the left of the worker that starts here
        expected[:, edge : edge + 2] += 1  # received on the right of the worker before
    assert torch.equal(seen, expected)
    assert torch.equal(x.grad[:, :1], torch.full((2, 1), float(first), dtype=torch.float64))
    assert torch.equal(x.grad[:, -2:], torch.full((2, 2), float(last), dtype=torch.float64))


def test_room_that_does_not_fit_raises_everywhere(P_world):
    P = grid(P_world, [job.size])
    raises_everywhere(ValueError, "at most the room", lambda: dnn.HaloExchange(P, [[1, 1]], [[2, 1]], [[1, 1]]))
    if job.size > 1:
        wrong = lambda: dnn.HaloExchange(P, [[1, 1]], [[0, 0]], [[0, 1 if job.rank == 0 else 0]])  # noqa: E731
        raises_everywhere(ValueError, "worker 0 sends 1 elements to its right neighbor", wrong)


@pytest.mark.parametrize("halo", [[1, 1], [(1, 2, 3)], [(1, 1), (1, 1)]], ids=str)
def test_bad_widths_on_one_rank_raise_everywhere(P_world, halo):
    P = grid(P_world, [job.size])
    wrong = lambda: dnn.HaloExchange(P, halo if job.rank == job.size - 1 else 1)  # noqa: E731
    raises_everywhere(ValueError, "a pair \\(left, right\\)", wrong)


def test_bad_periodic_raises_everywhere(P_world):
    P = grid(P_world, [job.size])
    raises_everywhere(ValueError, "P_x has 1 dimensions", lambda: dnn.HaloExchange(P, 1, periodic=[True, False]))


def test_cutting_away_more_than_there_is_raises_everywhere(P_world):
    layer = dnn.HaloExchange(grid(P_world, [job.size]), [(-2, -1)])
    assert layer(torch.ones(4)).shape == (1,)
    short = torch.ones(2 if job.rank == job.size - 1 else 4)
    raises_everywhere(ValueError, "cuts away more than there is", lambda: layer(short))

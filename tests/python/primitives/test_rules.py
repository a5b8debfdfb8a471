"""The numbered examples of the specification of SumReduce and Repartition, on as many ranks as each of them needs."""

import pytest
import torch

import distdl.nn as dnn
from distdl import _core, zero_volume_tensor
from support.blocks import assemble, block_of, grid
from support.ranks import job, raises_everywhere
from support.tensors import same_bits, values


def check_sum_reduce(P, x_shape, y_shape, members, **options):
    """Worker w of P_x holds the number 2^w: the sum tells exactly who contributed."""
    P_x, P_y = grid(P, x_shape), grid(P, y_shape)
    layer = dnn.SumReduce(P_x, P_y, **options)
    x = torch.full((2, 3), 2.0**P_x.rank, dtype=torch.float64) if P_x.active else zero_volume_tensor()
    y = layer(x)
    if P_y.active:
        assert torch.equal(y, torch.full((2, 3), float(sum(2**w for w in members(P_y.rank))), dtype=torch.float64))
    else:
        assert tuple(y.shape) == ((2, 0) if P_x.active else (0,))
    assert y.data_ptr() != x.data_ptr() or y.numel() == 0


@pytest.mark.mpi(min_size=4)
def test_sum_reduce_example_1(P_world):
    check_sum_reduce(P_world, [4], [1], lambda y: range(4))


@pytest.mark.mpi(min_size=6)
def test_sum_reduce_example_2(P_world):
    check_sum_reduce(P_world, [2, 3], [1], lambda y: range(6))


@pytest.mark.mpi(min_size=12)
def test_sum_reduce_example_3(P_world):
    check_sum_reduce(P_world, [3, 4], [3, 1], lambda y: range(4 * y, 4 * y + 4))


def test_sum_reduce_example_4():
    """4 x 4 x 3 workers are 48 ranks; the rule needs none."""
    for y in range(3):
        assert _core.matched_ranks([1, 1, 3], [4, 4, 3], y) == list(range(y, 48, 3))


@pytest.mark.mpi(min_size=18)
def test_sum_reduce_example_4_smaller(P_world):
    check_sum_reduce(P_world, [2, 3, 3], [1, 1, 3], lambda y: range(y, 18, 3))


@pytest.mark.mpi(min_size=18)
def test_sum_reduce_example_5_does_not_reduce(P_world):
    P_x, P_y = grid(P_world, [3, 3, 2]), grid(P_world, [1, 1, 3])
    text = raises_everywhere(ValueError, "in dimension 2", lambda: dnn.SumReduce(P_x, P_y), seconds=5)
    assert "[3, 3, 2]" in text
    assert "[1, 1, 3]" in text


@pytest.mark.mpi(min_size=3)
def test_sum_reduce_example_6_does_not_reduce(P_world):
    P_x, P_y = grid(P_world, [1, 3]), grid(P_world, [3, 1])
    text = raises_everywhere(ValueError, "in dimension 0", lambda: dnn.SumReduce(P_x, P_y))
    assert "[1, 3]" in text
    assert "[3, 1]" in text
    raises_everywhere(ValueError, "in dimension 1", lambda: dnn.Broadcast(P_x, P_y))


@pytest.mark.mpi(min_size=3)
@pytest.mark.parametrize("option", ["transpose_src", "transpose_dest"])
def test_sum_reduce_example_6_transposed(P_world, option):
    check_sum_reduce(P_world, [1, 3], [3, 1], lambda y: [y], **{option: True})


@pytest.mark.mpi(min_size=12)
def test_sum_reduce_example_7(P_world):
    check_sum_reduce(P_world, [3, 4], [1, 3], lambda y: range(4 * y, 4 * y + 4), transpose_src=True)


@pytest.mark.mpi(min_size=12)
def test_sum_reduce_example_8(P_world):
    check_sum_reduce(P_world, [3, 4], [4, 1], lambda y: range(y, 12, 4), transpose_dest=True)


@pytest.mark.mpi(min_size=12)
def test_sum_reduce_code_example(P_world):
    """4 x 3 onto 1 x 3: each subtensor of y is the sum of 4 subtensors of x."""
    P_x = P_world.create_partition_inclusive(range(12)).create_cartesian_topology_partition([4, 3])
    P_y = P_world.create_partition_inclusive(range(3)).create_cartesian_topology_partition([1, 3])
    layer = dnn.SumReduce(P_x, P_y, preserve_batch=False)
    x = values((7, 5), seed=P_x.rank) if P_x.active else zero_volume_tensor()
    y = layer(x)
    if P_y.active:
        assert torch.equal(y, sum(values((7, 5), seed=P_y.rank + 3 * row) for row in range(4)))
    else:
        assert y.shape == (0,)


@pytest.mark.mpi(min_size=12)
def test_broadcast_is_the_way_back(P_world):
    """The same examples, from the roots to the many."""
    for roots, many, members, options in (
        ([1], [2, 3], lambda w: 0, {}),
        ([3, 1], [3, 4], lambda w: w // 4, {}),
        ([1, 3], [3, 4], lambda w: w // 4, {"transpose_dest": True}),
        ([4, 1], [3, 4], lambda w: w % 4, {"transpose_src": True}),
    ):
        P_x, P_y = grid(P_world, roots), grid(P_world, many)
        y = dnn.Broadcast(P_x, P_y, **options)(
            torch.full((2, 1 + P_x.rank), float(P_x.rank)) if P_x.active else zero_volume_tensor()
        )
        if P_y.active:
            source = members(P_y.rank)
            assert torch.equal(y, torch.full((2, 1 + source), float(source)))
        else:
            assert y.numel() == 0


def check_repartition(P, x_shape, y_shape, tensor_shape, x_ranks=None, y_ranks=None):
    P_x, P_y = grid(P, x_shape, x_ranks), grid(P, y_shape, y_ranks)
    whole = values(tensor_shape)
    y = dnn.Repartition(P_x, P_y)(block_of(whole, P_x))
    assert same_bits(assemble(y, P_y, tensor_shape), whole)
    assert same_bits(assemble(dnn.Repartition(P_y, P_x)(y), P_x, tensor_shape), whole)


@pytest.mark.mpi(min_size=5)
def test_repartition_example_1(P_world):
    check_repartition(P_world, [5], [3], (17,))


@pytest.mark.mpi(min_size=12)
def test_repartition_example_2(P_world):
    check_repartition(P_world, [3, 4], [4, 2], (11, 9))


@pytest.mark.mpi(min_size=12)
def test_repartition_example_3(P_world):
    check_repartition(P_world, [3, 2, 2], [1, 2, 3], (5, 7, 4))


@pytest.mark.mpi(min_size=6)
def test_repartition_example_4_scatter(P_world):
    check_repartition(P_world, [1, 1, 1], [1, 3, 2], (3, 7, 5))


@pytest.mark.mpi(min_size=7)
def test_repartition_example_5_gather(P_world):
    check_repartition(P_world, [1, 3, 2], [1, 1, 1], (3, 7, 5), range(1, 7))


@pytest.mark.mpi(min_size=16)
def test_repartition_3x3_to_4x4(P_world):
    check_repartition(P_world, [3, 3], [4, 4], (13, 10))


def test_alltoall_of_sixteen(P_world):
    """A 4 x 4 matrix in rows becomes the same matrix in columns."""
    check_repartition(P_world, [job.size, 1], [1, job.size], (4, 4))


@pytest.mark.parametrize("preserve_batch", [True, False])
def test_roles(P_world, preserve_batch):
    """The results of ranks that are active in both partitions, in one of them, in none."""
    P_x, P_y = grid(P_world, [1], [0]), grid(P_world, [1], [min(1, job.size - 1)])
    for primitive in (dnn.Broadcast, dnn.SumReduce, dnn.Repartition):
        layer = primitive(P_x, P_y, preserve_batch=preserve_batch)
        x = torch.arange(3.0).requires_grad_() if P_x.active else zero_volume_tensor(5)
        y = layer(x)
        if P_y.active:
            assert torch.equal(y, torch.arange(3.0))
        elif P_x.active:
            assert tuple(y.shape) == ((3, 0) if preserve_batch else (0,))
        else:  # a clone of what came in
            assert tuple(y.shape) == (5, 0)
        if P_x.active or P_y.active:
            y.backward(torch.full_like(y, 2.0))
        if P_x.active:
            assert torch.equal(x.grad, torch.full((3,), 2.0))


def test_unbalanced_input_is_balanced(P_world):
    P = grid(P_world, [job.size])
    sizes = [3 if i == job.size - 1 else 1 for i in range(job.size)]
    whole = values((sum(sizes),))
    y = dnn.Repartition(P, P)(block_of(whole, P, [sizes]))
    assert same_bits(y, block_of(whole, P))


def test_repartition_needs_equal_dimensions(P_world):
    raises_everywhere(
        ValueError, "same number of dimensions", lambda: dnn.Repartition(grid(P_world, [1]), grid(P_world, [1, 1]))
    )

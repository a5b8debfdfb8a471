"""Partitions: what they know, how they are made, and that bad arguments raise everywhere."""

import pickle

import numpy as np
import pytest
import torch
from mpi4py import MPI

import distdl
import distdl.nn as dnn
from support.blocks import grid
from support.ranks import job, raises_everywhere


def test_world(P_world):
    assert P_world.active
    assert (P_world.size, P_world.rank, P_world.dim) == (job.size, job.rank, 1)
    assert P_world.shape.tolist() == [job.size]
    assert P_world.index.tolist() == [job.rank]
    assert P_world.comm == MPI.COMM_WORLD
    assert P_world._comm == P_world.comm


def test_inclusive_keeps_the_order(P_world):
    ranks = list(range(job.size - 1, -1, -2))
    P = P_world.create_partition_inclusive(np.array(ranks))
    assert P.shape.tolist() == [len(ranks)]
    assert P.active == (job.rank in ranks)
    if P.active:
        assert P.rank == ranks.index(job.rank)
        assert P.comm.Get_rank() == P.rank
        assert P.comm.allgather(job.rank) == ranks
    else:
        assert P.rank == MPI.PROC_NULL
        assert P.index is None
        assert P.comm == MPI.COMM_NULL


def test_grids_are_row_major_and_known_everywhere(P_world):
    P = P_world.create_cartesian_topology_partition([1, job.size, 1])
    assert P.shape.tolist() == [1, job.size, 1]
    assert P.index.tolist() == [0, job.rank, 0]
    assert isinstance(P.comm, MPI.Cartcomm)
    assert list(P.comm.dims) == [1, job.size, 1]
    assert [P.cartesian_index(r).tolist() for r in range(job.size)] == [[0, r, 0] for r in range(job.size)]
    P_single = P.create_cartesian_topology_partition([1, 1])
    assert P_single.shape.tolist() == [1, 1]
    assert P_single.active == (job.rank == 0)
    assert P_single.dim == 2
    P_empty = P.create_cartesian_topology_partition([])
    assert P_empty.dim == 0
    assert P_empty.size == 1


def test_shapes_are_values(P_world):
    shape = P_world.shape
    shape[0] = 17
    assert P_world.shape.tolist() == [job.size]
    assert (P_world.shape == [job.size]).all()


def test_neighbors(P_world):
    P = grid(P_world, [1, job.size])
    for rank in range(job.size):
        left = rank - 1 if rank > 0 else MPI.PROC_NULL
        right = rank + 1 if rank < job.size - 1 else MPI.PROC_NULL
        assert P.neighbor_ranks(rank) == [(MPI.PROC_NULL, MPI.PROC_NULL), (left, right)]


def test_subtopology(P_world):
    P = grid(P_world, [1, job.size])
    line = P.create_cartesian_subtopology_partition([False, True])
    assert line.shape.tolist() == [job.size]
    assert line.active
    point = P.create_cartesian_subtopology_partition([True, False])
    assert point.shape.tolist() == [1]
    assert point.ranks == (job.rank,)


@pytest.mark.parametrize("shape", [[2, 2], [4, 1]])
def test_subgrids_of_a_grid(P_world, shape):
    if job.size < 4:
        shape = [1, job.size]
    P = grid(P_world, shape)
    rows = P.create_cartesian_subtopology_partition([False, True])
    if P.active:
        assert rows.ranks == tuple(r for r in range(P.size) if P.cartesian_index(r)[0] == P.index[0])
        assert rows.rank == P.index[1]


def test_union_of_what_does_not_belong_together_raises_everywhere(P_world):
    comm = MPI.COMM_WORLD.Dup()
    other = distdl.Partition(comm) if job.rank == job.size - 1 else P_world
    raises_everywhere(ValueError, "the same communicator", lambda: P_world.create_partition_union(other))
    raises_everywhere(ValueError, "the same communicator", lambda: P_world.create_partition_union(comm))
    comm.Free()


def test_union_of_a_subgrid_with_workers_of_others_raises_everywhere(P_world):
    """Each worker has a sub-grid of its own, and knows nothing of the others'."""
    P = grid(P_world, [1, job.size])
    column = P.create_cartesian_subtopology_partition([True, False])
    if job.size > 1:
        with pytest.raises(
            ValueError, match=r"create_partition_union: .* is a sub-grid, of which only its workers know"
        ):
            column.create_partition_union(P_world)
    assert column.create_partition_union(column).ranks == (job.rank,)
    assert P_world.create_partition_union(column).ranks == P_world.ranks
    line = P.create_cartesian_subtopology_partition([False, True])
    assert line.create_partition_union(P_world).ranks == P_world.ranks


def test_union(P_world):
    first, last = grid(P_world, [1], [0]), grid(P_world, [1], [job.size - 1])
    P = last.create_partition_union(first)
    assert P.ranks == tuple(dict.fromkeys([job.size - 1, 0]))
    if P.active:
        assert P.comm.Get_size() == P.size


def test_equality_and_text(P_world):
    P = grid(P_world, [1, job.size])
    assert grid(P_world, [1, job.size]) == P
    assert hash(grid(P_world, [1, job.size])) == hash(P)
    assert distdl.Partition() == P_world
    assert grid(P_world, [job.size]) != P
    if job.size > 1:
        assert grid(P_world, [1, job.size], range(job.size - 1, -1, -1)) != P
    expected = (
        f"Partition(shape=[1, {job.size}], ranks={list(range(job.size))}, rank={job.rank}, index=[0, {job.rank}])"
    )
    assert repr(P) == expected
    assert "inactive" in repr(distdl.Partition(MPI.COMM_NULL))


def test_null_communicator_is_inactive():
    P = distdl.Partition(MPI.COMM_NULL)
    assert not P.active
    assert P.rank == MPI.PROC_NULL
    assert P.index is None
    assert P.device == torch.device("cpu")
    assert not P.create_partition_inclusive([0]).active
    assert P.create_cartesian_topology_partition([2, 1]).shape.tolist() == [2, 1]


def test_cartesian_communicators_bring_their_shape():
    comm = MPI.COMM_WORLD.Create_cart([job.size, 1])
    P = distdl.Partition(comm)
    assert P.shape.tolist() == [job.size, 1]
    assert P.index.tolist() == list(comm.coords)
    comm.Free()


@pytest.mark.parametrize("ranks", [[0, 0], [-1], [10**6], []], ids=str)
def test_bad_ranks_raise_everywhere(P_world, ranks):
    raises_everywhere(ValueError, "distinct numbers from 0", lambda: P_world.create_partition_inclusive(ranks))


@pytest.mark.parametrize("bad", [[0, 0], [10**6], "x"], ids=str)
def test_bad_ranks_on_one_rank_raise_everywhere(P_world, bad):
    ranks = bad if job.rank == job.size - 1 else [0]
    kind, match = (ValueError, TypeError), "distinct|cannot be interpreted as an integer"
    raises_everywhere(kind, match, lambda: P_world.create_partition_inclusive(ranks))
    assert P_world.create_partition_inclusive([0]).size == 1


def test_different_ranks_raise_everywhere(P_world):
    if job.size == 1:
        return
    action = lambda: P_world.create_partition_inclusive([0] if job.rank == 0 else [1])  # noqa: E731
    text = raises_everywhere(ValueError, "ask for different things", action)
    assert "ranks [0]" in text
    assert "ranks [1]" in text


@pytest.mark.parametrize("shape", [[0], [10**6], [-1, -1]], ids=str)
def test_bad_shapes_raise_everywhere(P_world, shape):
    wrong = lambda: P_world.create_cartesian_topology_partition(shape if job.rank == 0 else [1])  # noqa: E731
    raises_everywhere(ValueError, "every extent must be at least 1", wrong)


def test_bad_keep_raises_everywhere(P_world):
    wrong = lambda: P_world.create_cartesian_subtopology_partition([True, True])  # noqa: E731
    raises_everywhere(ValueError, "the partition has 1 dimensions", wrong)


def test_what_is_no_communicator_raises():
    with pytest.raises(TypeError, match="int"):
        distdl.Partition(3)


def test_data(P_world):
    P = grid(P_world, [job.size])
    assert [a.tolist() for a in P.allgather_data([job.rank, 7])] == [[r, 7] for r in range(job.size)]
    assert P.allreduce_data(np.array([1.0, job.rank])).tolist() == [job.size, sum(range(job.size))]
    assert int(P.allreduce_data(job.rank, op=MPI.MAX)) == job.size - 1
    last = job.size - 1
    shared = P.broadcast_data(np.arange(3) + job.rank if job.rank == last else None, root=last)
    assert shared.tolist() == [last, last + 1, last + 2]
    source = grid(P_world, [1], [last])
    assert P.broadcast_data([5.5] if source.active else None, root=0, P_data=source).tolist() == [5.5]


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint64])
def test_sums_of_integers_wrap_around(P_world, dtype):
    largest = np.full(100, np.iinfo(dtype).max, dtype)  # vector instructions, which saturate, need as many
    result = P_world.allreduce_data(largest)
    assert result.dtype == dtype
    assert result.tolist() == (largest * np.array(job.size, dtype)).tolist()


def test_data_outside_is_nothing(P_world):
    P = grid(P_world, [1])
    gathered = P.allgather_data(3)
    assert (len(gathered) == 1) == P.active
    assert (P.broadcast_data(3) is None) != P.active


MISTAKES_IN_DATA = {
    "objects gathered": ("Object arrays", lambda P, last: P.allgather_data([object()] if last else [1])),
    "objects shared": ("Object arrays", lambda P, last: P.broadcast_data([object()], root=job.size - 1)),
    "objects reduced": ("no array of numbers", lambda P, last: P.allreduce_data(object() if last else 1)),
    "an unknown sender": ("worker 99", lambda P, last: P.broadcast_data(1, root=99 if last else 0)),
    "two senders": ("from rank 1", lambda P, last: P.broadcast_data(1, root=1 if last else 0)),
    "two shapes": ("of shape", lambda P, last: P.allreduce_data([1, 2] if last else 1)),
    "two operations": ("PROD", lambda P, last: P.allreduce_data(1, op=MPI.PROD if last else MPI.SUM)),
    "two calls": ("print_sequential", lambda P, last: P.print_sequential("") if last else P.allgather_data(1)),
}


@pytest.mark.parametrize(("match", "action"), MISTAKES_IN_DATA.values(), ids=MISTAKES_IN_DATA)
def test_mistakes_in_data_raise_everywhere(P_world, match, action):
    """The last rank does something else."""
    if job.size == 1 and match in ("from rank 1", "of shape", "PROD", "print_sequential"):
        return
    raises_everywhere(ValueError, match, lambda: action(P_world, job.rank == job.size - 1))
    assert int(P_world.allreduce_data(1)) == job.size


def test_print_sequential(P_world, capsys):
    P_world.print_sequential(f"I am {job.rank}")
    printed = capsys.readouterr().out
    assert printed == ("".join(f"I am {r}\n" for r in range(job.size)) if job.rank == 0 else "")


def test_deactivate(P_world):
    """Layers that were made before keep what they know."""
    P = grid(P_world, [1, job.size])
    with P:
        layer = dnn.AllSumReduce(P, [1])
        assert P.active
    assert not P.active
    assert P.shape.tolist() == [1, job.size]
    assert layer(torch.ones(2)).tolist() == [job.size] * 2
    assert dnn.AllSumReduce(P, [1])(torch.ones(2)).tolist() == [1, 1]


def test_partitions_are_not_pickled(P_world):
    for what in (P_world, dnn.DistributedConv1d(grid(P_world, [1, 1, job.size]), 1, 1, 1)):
        with pytest.raises(TypeError, match=r"save a model's state_dict"):
            pickle.dumps(what)

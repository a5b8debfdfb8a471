"""Calls of partitions, and of what their ranks tell each other."""

import numpy as np
import torch
from mpi4py import MPI

import distdl
from support.ranks import job


def partitions(P_world):
    from distdl.backends.mpi.partition import MPICartesianPartition, MPIPartition

    assert not MPIPartition().active
    group = MPI.COMM_WORLD.Get_group()
    whole = MPIPartition(MPI.COMM_WORLD, group, MPI.COMM_WORLD)
    group.Free()
    assert (whole.active, whole.size, whole.rank, whole.index) == (True, job.size, job.rank, job.rank)
    assert whole == P_world
    assert P_world._group.Get_size() == job.size
    first = P_world.create_partition_inclusive([0])
    assert first.active == (job.rank == 0)
    assert first.create_partition_union(P_world).size == job.size
    grid = P_world.create_cartesian_topology_partition([1, job.size])
    assert isinstance(grid, MPICartesianPartition)
    assert isinstance(grid.index, np.ndarray)
    assert grid.index.tolist() == [0, job.rank]
    assert grid.cartesian_index(0).tolist() == [0, 0]
    assert grid.neighbor_ranks(0)[0] == (MPI.PROC_NULL, MPI.PROC_NULL)
    line = grid.create_cartesian_subtopology_partition([False, True])
    assert (line.size, line.index.tolist()) == (job.size, [job.rank])
    assert isinstance(line, MPICartesianPartition)
    again = MPICartesianPartition(P_world._comm, P_world._group, P_world._comm, [job.size, 1], None)
    assert again.index.tolist() == [job.rank, 0]
    assert again.device == torch.device("cpu")
    assert whole.set_device("cpu") == whole.device
    whole.initialize_backend_comm()
    whole.deactivate()
    assert not whole.active
    P_world.print_sequential("")


def data(P_world):
    assert P_world.broadcast_data(np.array([job.rank + 3]), root=0).tolist() == [3]
    assert [one.tolist() for one in P_world.allgather_data(np.array([job.rank]))] == [[r] for r in range(job.size)]
    assert P_world.allreduce_data(np.array([job.rank]), op="max").tolist() == [job.size - 1]
    assert P_world.allreduce_data(np.array([1]), op=MPI.SUM).tolist() == [job.size]


def groups(P_world):
    first = P_world.create_partition_inclusive([0]).create_cartesian_topology_partition([1, 1])
    grid = P_world.create_cartesian_topology_partition([1, job.size])
    send, receive = first.create_broadcast_partition_to(grid)
    assert send.active == (job.rank == 0)
    assert receive.active
    assert receive.ranks == tuple(range(job.size))
    send, receive = grid.create_reduction_partition_to(first)
    assert (send.active, receive.active) == (True, job.rank == 0)
    assert send.ranks == tuple(range(job.size))
    assert grid.create_allreduction_partition([1]).size == job.size
    assert grid.create_allreduction_partition([0]).ranks == (job.rank,)
    # Each worker of a row to the worker of the column with the same number.
    column = P_world.create_cartesian_topology_partition([job.size, 1])
    send, receive = grid.create_broadcast_partition_to(column, transpose_src=True)
    assert (send.ranks, receive.ranks) == ((job.rank,), (job.rank,))


def tensor_structures(P_world):
    from distdl.backends.mpi.tensor_comm import assemble_global_tensor_structure, broadcast_tensor_structure
    from distdl.utilities.torch import TensorStructure

    first = P_world.create_partition_inclusive([0]).create_cartesian_topology_partition([1, 1])
    grid = P_world.create_cartesian_topology_partition([1, job.size])
    mine = TensorStructure(torch.empty(2, 3, dtype=torch.float64)) if first.active else TensorStructure()
    told = broadcast_tensor_structure(mine, *first.create_broadcast_partition_to(grid))
    assert (list(told.shape), told.dtype, told.requires_grad) == ([2, 3], torch.float64, False)
    block = TensorStructure(torch.empty(2, job.rank + 1, dtype=torch.float64))
    whole = assemble_global_tensor_structure(block, grid)
    assert (list(whole.shape), whole.dtype) == ([2, sum(range(job.size + 1))], torch.float64)
    assert list(assemble_global_tensor_structure(block, grid, first).shape) == list(whole.shape)
    assert list(assemble_global_tensor_structure(TensorStructure(torch.empty(2, 3)), first, grid).shape) == [2, 3]


def shapes(P_world):
    from distdl.utilities.torch import TensorStructure

    grid = P_world.create_cartesian_topology_partition([1, job.size])
    for path in (distdl.backends.mpi.tensor_decomposition, distdl.backends.common.tensor_decomposition):
        block = TensorStructure(torch.empty(2, job.rank + 1))
        found = path.compute_subtensor_shapes_unbalanced(block, grid)
        assert found.tolist() == [[[2, rank + 1] for rank in range(job.size)]]


def both(P_world):
    partitions(P_world)
    data(P_world)
    groups(P_world)


CALLS = {
    **dict.fromkeys(("MPIPartition", "MPICartesianPartition"), both),
    **dict.fromkeys(("broadcast_tensor_structure", "assemble_global_tensor_structure"), tensor_structures),
    "compute_subtensor_shapes_unbalanced": shapes,
}

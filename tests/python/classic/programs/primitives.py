"""Small examples of the primitives, written for DistDL."""

import numpy as np
import torch
from mpi4py import MPI

import distdl
from distdl.backends.mpi.tensor_comm import assemble_global_tensor_structure
from distdl.nn.all_sum_reduce import AllSumReduce
from distdl.nn.broadcast import Broadcast
from distdl.nn.halo_exchange import HaloExchange
from distdl.nn.repartition import Repartition
from distdl.nn.sum_reduce import SumReduce
from distdl.utilities.torch import TensorStructure, zero_volume_tensor


def run(steps=1):
    """(numbers, what they have to be)"""
    P_world = distdl.backends.mpi.Partition(MPI.COMM_WORLD)
    P_world._comm.Barrier()
    size, rank = P_world.size, P_world.rank
    P_one = P_world.create_partition_inclusive(np.arange(1)).create_cartesian_topology_partition([1, 1])
    P_all = P_world.create_cartesian_topology_partition([1, size])
    x = zero_volume_tensor(2)
    if P_one.active:
        x = torch.arange(6.0).view(2, 3)
    x.requires_grad = True
    copied = Broadcast(P_one, P_all, preserve_batch=False)(x)
    summed = SumReduce(P_all, P_one, preserve_batch=False)(copied)
    summed.sum().backward()
    found = [copied.sum().item(), float(P_world.broadcast_data(summed.detach().sum().numpy()))]
    expected = [15.0, 15.0 * size]
    found.append(float(P_world.broadcast_data(x.grad.sum().numpy())))
    expected.append(6.0 * size)
    found.append(float(AllSumReduce(P_all, axes_reduce=(0, 1))(torch.ones(1) * rank)))
    expected.append(size * (size - 1) / 2)
    block = torch.full((2, rank + 1), float(rank))
    whole = Repartition(P_all, P_one)(block)
    found.append(float(P_world.broadcast_data(whole.detach().sum().numpy())))
    expected.append(sum(2.0 * r * (r + 1) for r in range(size)))
    structure = assemble_global_tensor_structure(TensorStructure(block), P_all)
    found.append(float(structure.shape[1]))
    expected.append(size * (size + 1) / 2)
    left, right = int(rank > 0), int(rank < size - 1)
    halos = np.array([[0, 0], [left, right]])
    padded = torch.nn.functional.pad(torch.full((2, 3), float(rank)), (left, right))
    grown = HaloExchange(P_all, halos, halos, halos)(padded)
    found.append(float(P_world.allreduce_data(grown.sum().numpy(), op="sum")))
    neighbors = sum((r - 1) * (r > 0) + (r + 1) * (r < size - 1) for r in range(size))
    expected.append(sum(6.0 * r for r in range(size)) + 2.0 * neighbors)
    return found, expected

"""Calls of the primitives: a small example of each."""

import importlib

import torch

from support.blocks import assemble, block_of, grid
from support.ranks import job
from support.tensors import values


def line(P_world):
    """(one worker, all workers), both of two dimensions."""
    return grid(P_world, [1, 1]), grid(P_world, [1, job.size])


def named(path, name):
    return getattr(importlib.import_module(f"distdl.nn.{path}"), name)


def broadcast(P_world):
    P_x, P_y = line(P_world)
    layer = named("broadcast", "Broadcast")(P_x, P_y, False, False, True)
    assert (layer.P_x, layer.P_y) == (P_x, P_y)
    x = values([2, 3])
    mine = block_of(x, P_x).requires_grad_()
    y = layer(mine)
    assert torch.equal(y, x)
    y.backward(torch.ones_like(x))
    assert torch.equal(assemble(mine.grad, P_x, x.shape), torch.full_like(x, job.size))


def sum_reduce(P_world):
    P_y, P_x = line(P_world)
    layer = named("sum_reduce", "SumReduce")(P_x, P_y, transpose_src=False, transpose_dest=False, preserve_batch=True)
    assert (layer.P_x, layer.P_y) == (P_x, P_y)
    x = values([2, 3]).requires_grad_()
    y = layer(x)
    assert torch.equal(assemble(y, P_y, x.shape), job.size * x.detach())
    y.backward(torch.ones_like(y))
    assert torch.equal(x.grad, torch.ones_like(x))


def all_sum_reduce(P_world):
    _, P_x = line(P_world)
    x = values([2, 3])
    for options in ({"axes_reduce": (1,)}, {"axes_keep": (0,)}):
        assert torch.equal(named("all_sum_reduce", "AllSumReduce")(P_x, **options)(x), job.size * x)


def all_gather(P_world):
    _, P_x = line(P_world)
    x = values([2, 7])
    assert torch.equal(named("all_gather", "AllGather")(P_x, axes_all_gather=(1,))(block_of(x, P_x)), x)


def reduce_scatter(P_world):
    _, P_x = line(P_world)
    x = values([2, 7])
    y = named("reduce_scatter", "ReduceScatter")(P_x, axes_reduce_scatter=(1,))(x)
    assert torch.equal(y, job.size * block_of(x, P_x))


def repartition(P_world):
    from distdl.backends.mpi.buffer import MPIBufferManager

    P_x, P_y = grid(P_world, [job.size, 1]), grid(P_world, [1, job.size])
    x = values([5, 7])
    for path, name in (("repartition", "Repartition"), ("transpose", "DistributedTranspose")):
        layer = named(path, name)(P_x, P_y, True, MPIBufferManager())
        y = layer(block_of(x, P_x))
        assert torch.equal(y, block_of(x, P_y))
        assert (layer.P_x, layer.P_y) == (P_x, P_y)
        sent = [0 if one is None else block_of(x, P_x)[one[0]].numel() for one in layer.P_x_to_y_overlaps]
        assert len(sent) == job.size
        assert sum(sent) == block_of(x, P_x).numel()


def halo_exchange(P_world):
    """On rows with room for a halo of one element towards each neighbor. An in-place ReLU comes behind."""
    P_x = grid(P_world, [1, job.size])
    x = values([2, 3 * job.size]) - 1.5
    first, last = job.rank == 0, job.rank == job.size - 1
    room = [[0, 0], [int(not first), int(not last)]]
    start, stop = 3 * job.rank - room[1][0], 3 * job.rank + 3 + room[1][1]
    layer = named("halo_exchange", "HaloExchange")(P_x, room, room, room, None)
    mine = torch.nn.functional.pad(block_of(x, P_x), room[1]).requires_grad_()
    y = layer(mine)
    assert torch.equal(y, x[:, start:stop])
    gradient = torch.ones_like(y)
    torch.nn.functional.relu(y * 1.0, inplace=True).backward(gradient)
    assert torch.equal(gradient, torch.ones_like(y))  # what backward was given is left alone
    own = mine.grad[:, room[1][0] : room[1][0] + 3]
    counts = torch.ones(3 * job.size, dtype=x.dtype)
    counts[[at for rank in range(1, job.size) for at in (3 * rank - 1, 3 * rank)]] = 2
    assert torch.equal(own, block_of((x > 0) * counts, P_x))


CALLS = {
    "Broadcast": broadcast,
    "SumReduce": sum_reduce,
    "AllSumReduce": all_sum_reduce,
    "AllGather": all_gather,
    "ReduceScatter": reduce_scatter,
    "Repartition": repartition,
    "DistributedTranspose": repartition,
    "HaloExchange": halo_exchange,
}

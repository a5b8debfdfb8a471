"""Nothing is unpickled that came from another rank or from a file: whoever unpickles runs what the sender wants."""

import contextlib
import pickle

import numpy as np
import pytest
import torch
from mpi4py import MPI

import distdl
import distdl.nn as dnn
from support.blocks import block_of, grid
from support.ranks import job
from support.tensors import values


def refuse(*arguments, **options):
    raise AssertionError("pickled")


@contextlib.contextmanager
def nothing_is_pickled():
    """The lower-case methods of mpi4py's communicators raise, and so does whatever reads a pickle."""
    with pytest.MonkeyPatch.context() as patch:
        for module, name in ((pickle, "load"), (pickle, "loads"), (torch, "load")):
            patch.setattr(module, name, refuse)
        MPI.pickle.__init__(refuse, refuse)
        try:
            yield
        finally:
            MPI.pickle.__init__()


def test_pickles_would_be_noticed():
    with nothing_is_pickled():
        with pytest.raises(AssertionError, match="pickled"):
            job.allgather("text")
        with pytest.raises(AssertionError, match="pickled"):
            pickle.loads(b"")
    assert job.allgather(job.rank) == list(range(job.size))


def test_partitions_and_small_data(P_world):
    with nothing_is_pickled():
        P = grid(P_world, [1, job.size])
        P.create_cartesian_subtopology_partition([True, False])
        P.create_partition_union(P_world)
        assert P.broadcast_data(np.arange(3), root=job.size - 1).tolist() == [0, 1, 2]
        assert len(P.allgather_data(np.ones(2))) == job.size
        assert P.allreduce_data(np.ones(2)).tolist() == [job.size] * 2
        P.print_sequential("")
        line = grid(P_world, [job.size]), grid(P_world, [job.size], range(job.size - 1, -1, -1))
        move = dnn.Repartition(*(part.comm for part in line))  # bare communicators, whose ranks tell each other
        assert len(move(torch.ones(2))) == 2
        with pytest.raises(ValueError, match="ask for different things" if job.size > 1 else "is not an axis"):
            dnn.AllSumReduce(P, [job.rank] if job.size > 1 else [9])


def test_a_training_step_and_its_weights(P_world):
    P_x, P_row = grid(P_world, [1, 1, job.size]), grid(P_world, [1, job.size])
    P_first = grid(P_world, [1, 1])
    x, target = block_of(values([2, 2, 8]), P_x), block_of(values([2, 3]), P_row)
    with nothing_is_pickled():
        model = torch.nn.Sequential(
            dnn.DistributedConv1d(P_x, 2, 2, 3, padding="same", padding_mode="circular", dtype=torch.float64),
            dnn.DistributedMaxPool1d(P_x, 2),
            dnn.Repartition(P_x, grid(P_world, [1, 1, 1])),
            torch.nn.Flatten(),
            dnn.DistributedLinear(P_first, P_row, grid(P_world, [job.size, 1]), 8, 3, dtype=torch.float64),
        )
        loss = dnn.DistributedMSELoss(P_row)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            optimizer.zero_grad()
            loss(model(x), target).backward()
            optimizer.step()
        whole = distdl.sequential_state_dict(model)
        distdl.load_sequential(model, whole)
        model.load_state_dict(model.state_dict())
        after = distdl.sequential_state_dict(model)
    assert all(torch.equal(after[name], whole[name]) for name in whole)
    assert len(whole) == (4 if job.rank == 0 else 0)

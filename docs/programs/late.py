import time

import torch
from mpi4py import MPI

import distdl

distdl.set_watchdog(2)  # seconds; the default is 300
P = distdl.Partition(MPI.COMM_WORLD)
layer = distdl.nn.AllSumReduce(P, [0])


def evaluate() -> None:
    time.sleep(3.5)


def step() -> None:
    layer(torch.ones(3))


step()
if P.rank == 1:
    evaluate()
step()

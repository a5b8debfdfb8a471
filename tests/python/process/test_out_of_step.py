"""A rank whose call fails once its ranks have agreed on it does not take old messages for new ones."""

import pytest

from support import jobs

pytestmark = pytest.mark.ranks(1)  # the programs are jobs of their own

# Rank 1 receives a value from rank 0, and has no memory for the block that it belongs into.
PROGRAM = """
import os, resource, torch
from mpi4py import MPI
import distdl

P = distdl.Partition(MPI.COMM_WORLD)
P_x = P.create_cartesian_topology_partition([P.size])
layer = distdl.nn.HaloExchange(P_x, [(1, 0)] if P.rank else [(0, 0)])
distdl.memory.empty_pool()
block = torch.full((2 + P.rank * (1 << 28),), 1, dtype=torch.int8)
if P.rank:
    pages = int(open("/proc/self/statm").read().split()[5])
    limit = pages * os.sysconf("SC_PAGE_SIZE") + (1 << 26)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, resource.RLIM_INFINITY))
try:
    layer(block)
except Exception as error:
    os.write(1, f"rank {P.rank} has no memory\\n".encode())
resource.setrlimit(resource.RLIMIT_DATA, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
again = torch.full((2,), 2, dtype=torch.int8)
for call in (lambda: layer(again), lambda: distdl.nn.AllSumReduce(P, [0])(torch.ones(1))):
    try:
        os.write(1, f"rank {P.rank}: {call().tolist()}\\n".encode())
    except RuntimeError as error:
        failed = "failed in its middle on some ranks" in str(error) and "rank 1: HaloExchange: " in str(error)
        os.write(1, f"rank {P.rank} raises {failed}\\n".encode())
"""


def test_messages_of_a_call_that_failed_are_not_received_by_later_calls():
    status, said = jobs.ends(PROGRAM)
    assert status == 0, said
    raises = ["rank 0 raises True"] * 2 + ["rank 1 has no memory"] + ["rank 1 raises True"] * 2
    assert sorted(said.splitlines()) == raises

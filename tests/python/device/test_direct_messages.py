"""Messages of a device that MPI sends and receives itself: the bits of the CPU, without a copy to the host."""

import pytest

from distdl import memory
from support.cases import CASES, LARGE_CASES
from support.ranks import job
from support.tensors import derivatives, same_bits, values

pytestmark = pytest.mark.usefixtures("direct")
ALL_CASES = {**CASES, **LARGE_CASES}


@pytest.mark.parametrize("make", ALL_CASES.values(), ids=ALL_CASES)
@pytest.mark.parametrize("halves", [False, True])
def test_bits_of_the_cpu(P_world, make, halves, device):
    case = make(P_world)
    x = values(case.shape, seed=job.rank)
    weight = values(case.operator(x).shape, seed=100 + job.rank)
    expected = derivatives(case.operator, x, weight)
    operator = (lambda x: case.operator.wait(case.operator.start(x))) if halves else case.operator
    results = derivatives(operator, x.to(device), weight.to(device))
    assert all(y.device.type == device for y in results)
    assert all(same_bits(y.cpu(), z) for y, z in zip(results, expected, strict=True))


@pytest.mark.parametrize("make", ALL_CASES.values(), ids=ALL_CASES)
def test_one_rank_is_staged(P_world, make, device):
    """The others do not have to know."""
    case = make(P_world)
    x = values(case.shape, seed=job.rank)
    weight = values(case.operator(x).shape, seed=100 + job.rank)
    expected = derivatives(case.operator, x, weight)
    if job.rank == 0:
        memory.set_device_memory("staged")
    results = derivatives(case.operator, x.to(device), weight.to(device))
    assert all(same_bits(y.cpu(), z) for y, z in zip(results, expected, strict=True))

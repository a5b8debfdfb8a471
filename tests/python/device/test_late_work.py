"""How often an operator waits for a device, which the device that is late counts."""

import pytest

import distdl.nn as dnn
from support.cases import CASES, LARGE_CASES
from support.ranks import job
from support.tensors import values

ALL_CASES = {**CASES, **LARGE_CASES}


@pytest.mark.parametrize("make", ALL_CASES.values(), ids=ALL_CASES)
def test_waits_for_the_device(P_world, make, lagging):
    """Once, for the copies to the memory of the host; not at all, where each message leaves when it is copied."""
    case = make(P_world)
    x = values(case.shape, seed=job.rank).to("lagging")
    case.operator(x)
    lagging.synchronize()
    lagging.fallbacks()
    before = lagging.synchronizations()
    y = case.operator(x)
    in_pieces = isinstance(case.operator, dnn.Repartition | dnn.HaloExchange)
    assert lagging.synchronizations() - before <= (0 if in_pieces else 1)
    assert lagging.fallbacks() == []
    del y


@pytest.mark.usefixtures("direct")
@pytest.mark.parametrize("make", ALL_CASES.values(), ids=ALL_CASES)
def test_waits_of_direct_messages(P_world, make, lagging):
    """None, but for the sums and gathers that are staged: the device is asked whether it has come so far."""
    case = make(P_world)
    x = values(case.shape, seed=job.rank).to("lagging")
    lagging.synchronize()
    before = lagging.synchronizations()
    y = case.operator(x)
    moves = isinstance(case.operator, dnn.Repartition | dnn.HaloExchange | dnn.Broadcast)
    assert lagging.synchronizations() - before <= (0 if moves else 1)
    del y

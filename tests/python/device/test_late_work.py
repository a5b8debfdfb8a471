"""How often an operator waits for a device, which the device that is late counts."""

import pytest

from support.cases import CASES
from support.ranks import job
from support.tensors import values


@pytest.mark.parametrize("make", CASES.values(), ids=CASES)
def test_waits_for_the_device(P_world, make, lagging):
    """Once, where a rank sends: for the copies to the memory of the host."""
    case = make(P_world)
    x = values(case.shape, seed=job.rank).to("lagging")
    case.operator(x)
    lagging.synchronize()
    lagging.fallbacks()
    before = lagging.synchronizations()
    y = case.operator(x)
    assert lagging.synchronizations() - before <= 1
    assert lagging.fallbacks() == []
    del y

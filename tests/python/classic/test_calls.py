"""Everything that programs written for DistDL know is called, and gives the right result."""

import pytest

from support.classic.calls import CALLS


@pytest.mark.shared
@pytest.mark.filterwarnings("ignore:reduction. 'mean' divides:UserWarning")
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_call(P_world, call):
    call(P_world)

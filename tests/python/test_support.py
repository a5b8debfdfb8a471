"""That the tests themselves stay in step: what fails on one rank fails on all of them, and none waits."""

import hypothesis
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from support.blocks import grid
from support.ranks import job, on_all_ranks, together
from support.tensors import same_bits, values
from support.twins import assert_equals_twin

last = job.rank == job.size - 1


@pytest.mark.parametrize("where", ["before", "after"])
def test_a_draw_that_fails_on_one_rank_shrinks_in_step(where):
    """It ends on all ranks with the smallest number that fails, whatever the others were about to ask."""
    seen = []

    @given(st.integers(0, 1000))
    @on_all_ranks
    def fails(number):
        seen.append(number)
        assert where == "after" or not (last and number >= 20)
        together(number)
        assert where == "before" or not (last and number >= 20)

    with pytest.raises(AssertionError, match=f"rank {job.size - 1}: "):
        fails()
    assert seen[-1] == 20
    assert job.allgather(seen) == [seen] * job.size


def test_assumptions_leave_all_ranks_in_step():
    seen = []

    @given(st.integers(0, 100))
    @on_all_ranks
    def passes(number):
        hypothesis.assume(number % 2 == 0)
        seen.append(number)
        assert together(number) == [number] * job.size

    passes()
    assert job.allgather(seen) == [seen] * job.size


def test_the_bits_of_one_element_in_odd_strides():
    """A long run failed on it, on a single rank."""
    element = torch.empty(1, 2, dtype=torch.half)[:, 1].fill_(3)
    assert same_bits(element, torch.tensor([3.0], dtype=torch.half))
    assert not same_bits(element, torch.tensor([2.0], dtype=torch.half))


class Cut(torch.nn.Module):
    """The identity, but for a result that is too short on one rank."""

    def forward(self, x):
        return x[:-1] if last else x.clone()


def test_a_result_of_another_shape_on_one_rank_fails_on_all(P_world):
    P_x = grid(P_world, [job.size])
    with pytest.raises(AssertionError, match="of the result on each rank"):
        assert_equals_twin(Cut(), torch.nn.Identity(), values([2 * job.size]), P_x, P_x)
    assert_equals_twin(torch.nn.Hardtanh(-9, 9), torch.nn.Identity(), values([2 * job.size]), P_x, P_x)

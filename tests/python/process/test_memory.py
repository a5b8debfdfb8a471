"""The pool of memory behind results: what it keeps, gives back and never shares."""

import pytest
import torch

import distdl
import distdl.nn as dnn
from distdl import memory
from support.blocks import grid
from support.ranks import job

MIB = 1 << 20


@pytest.fixture(autouse=True)
def _an_empty_pool():
    limit = memory.pool_limit()
    memory.empty_pool()
    yield
    memory.set_pool_limit(limit)
    memory.empty_pool()


def result_of(P_world, bytes):
    """A result of about this size, on all ranks."""
    return dnn.AllSumReduce(grid(P_world, [job.size]), [0])(torch.ones(bytes, dtype=torch.uint8))


def test_what_a_result_used_is_used_again(P_world):
    first = result_of(P_world, MIB)
    assert torch.equal(first, torch.full((MIB,), job.size, dtype=torch.uint8))
    kept = memory.pool_size()  # of messages
    where = first.data_ptr()
    del first
    assert MIB <= memory.pool_size() - kept <= 1.25 * MIB
    assert result_of(P_world, MIB - 10).data_ptr() == where


def test_results_in_use_share_no_memory(P_world):
    results = [result_of(P_world, MIB).fill_(i) for i in range(5)]
    assert len({result.data_ptr() for result in results}) == 5
    assert all(torch.equal(result, torch.full((MIB,), i, dtype=torch.uint8)) for i, result in enumerate(results))
    views = [result[::2] for result in results]
    del results
    assert all(bool((view == i).all()) for i, view in enumerate(views))


def test_the_limit_bounds_what_is_kept(P_world):
    memory.set_pool_limit(3 * MIB)
    assert memory.pool_limit() == 3 * MIB
    for size in (1, 2, 4, 1, 8):
        result_of(P_world, size * MIB)
        assert memory.pool_size() <= 3 * MIB
    assert memory.pool_size() > 0
    memory.set_pool_limit(0)
    assert memory.pool_size() == 0
    assert bool((result_of(P_world, MIB) == job.size).all())
    assert memory.pool_size() == 0
    with pytest.raises(ValueError, match="bytes=-1"):
        memory.set_pool_limit(-1)


@pytest.mark.ranks(1)  # no memory of messages is in the pool
@pytest.mark.parametrize(("sizes", "kept"), [((2, 1), 1), ((1, 2), 2), ((1, 2, 1), 1)])
def test_memory_that_was_not_used_for_the_longest_time_is_given_back(P_world, sizes, kept):
    """Results of 1 and 2 MiB are freed in this order, where the last may use the memory of the first again."""
    results = {size: result_of(P_world, size * MIB) for size in {*sizes}}
    for size in sizes:
        results.pop(size, None)
        if sizes.count(size) > 1:
            result_of(P_world, size * MIB)
    assert memory.pool_size() == 3 * MIB
    memory.set_pool_limit(5 * MIB // 2)
    assert memory.pool_size() == kept * MIB


@pytest.mark.parametrize("mib", [2, 3, 4, 7])
def test_large_results_begin_at_a_huge_page(P_world, mib):
    assert result_of(P_world, mib * MIB).data_ptr() % (2 * MIB) == 0


def test_emptied(P_world):
    used = result_of(P_world, MIB)
    del used
    assert memory.pool_size() >= MIB
    memory.empty_pool()
    assert memory.pool_size() == 0


def test_results_are_tensors_like_others(P_world):
    """They can be resized, and take part in what looks at the storage."""
    result = result_of(P_world, MIB)
    assert result.untyped_storage().nbytes() == MIB
    result.resize_(2 * MIB)
    assert bool((result[:MIB] == job.size).all())
    copy = torch.from_numpy(result.numpy())
    assert copy.data_ptr() == result.data_ptr()
    assert distdl.zero_volume_tensor().untyped_storage().nbytes() == 0

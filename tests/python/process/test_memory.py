"""The pool of memory behind large tensors: what it keeps, gives back and never shares."""

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
    memory.set_pool_limit(None)
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
    for size in (1, 8, 4, 1, 2):
        result_of(P_world, size * MIB)
        assert memory.pool_size() <= 3 * MIB
    memory.empty_pool()
    torch.ones(MIB // 4)
    assert memory.pool_size() >= MIB
    memory.set_pool_limit(0)
    assert memory.pool_size() == 0
    assert bool((result_of(P_world, MIB) == job.size).all())
    assert memory.pool_size() == 0
    with pytest.raises(ValueError, match="bytes=-1"):
        memory.set_pool_limit(-1)


def test_all_large_tensors_of_torch_are_in_the_pool(P_world):
    del P_world
    used, where = memory.pool_used(), torch.ones(MIB // 4)
    assert memory.pool_used() - used == MIB
    place = where.data_ptr()
    where = where.exp_()  # in place
    assert where.data_ptr() == place
    del where
    assert memory.pool_used() == used
    assert torch.zeros(MIB // 4).data_ptr() == place
    small = torch.ones(100)
    assert memory.pool_used() == used
    assert float(small.sum()) == 100


def test_without_a_pool_tensors_are_in_memory_of_torch(P_world):
    before = torch.ones(MIB)
    memory.set_pool_limit(0)
    used = memory.pool_used()
    assert bool((result_of(P_world, MIB) == job.size).all())
    kept = torch.ones(MIB)
    assert memory.pool_used() == used
    memory.set_pool_limit(None)
    assert memory.pool_limit() is None
    assert torch.equal(before, kept)
    del before
    assert memory.pool_used() == used - 4 * MIB


def test_a_tensor_that_is_too_large_is_refused_as_by_torch(P_world):
    del P_world
    with pytest.raises(RuntimeError, match="can't allocate memory: you tried to allocate"):
        torch.empty(1 << 50, dtype=torch.uint8)


def test_the_profiler_of_torch_sees_the_memory(P_world):
    del P_world
    with torch.profiler.profile(profile_memory=True) as profile:
        torch.ones(MIB)
    sizes = [event.cpu_memory_usage for event in profile.events()]
    assert max(sizes) == 4 * MIB
    assert min(sizes) == -4 * MIB


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

"""Which rank gets which block: by geometry against all ways there are, and in partitions of all sizes."""

import itertools
import math

import numpy as np
import pytest
import torch
from mpi4py import MPI

import distdl
import distdl.nn as dnn
from distdl.partitions import placement
from distdl.partitions.placement import bytes_between, order_on_hosts
from support.ranks import job, raises_everywhere

by_geometry = pytest.mark.ranks(1)
SHAPES = [shape for dims in (1, 2, 3) for shape in itertools.product(range(1, 9), repeat=dims) if math.prod(shape) <= 8]


def counted(shape, hosts, weights):
    """Bytes between hosts, counted pair by pair."""
    host_of = dict(zip(itertools.product(*map(range, shape)), hosts, strict=True))
    total = 0
    for place, host in host_of.items():
        for d, weight in enumerate(weights):
            neighbor = (*place[:d], place[d] + 1, *place[d + 1 :])
            total += 2 * weight * (neighbor in host_of and host_of[neighbor] != host)
    return total


def placements(hosts):
    """All ways to give places to hosts, but one of those that only have other names for hosts of equal size."""

    def place(left, free):
        if not free:
            yield {}
            return
        sizes = set()
        for host, size in left.items():
            if size in sizes:
                continue
            sizes.add(size)
            for others in itertools.combinations(free[1:], size - 1):
                rest = [place for place in free[1:] if place not in others]
                for placed in place({h: s for h, s in left.items() if h != host}, rest):
                    yield placed | dict.fromkeys((free[0], *others), host)

    sizes = {host: list(hosts).count(host) for host in dict.fromkeys(hosts)}
    for placed in place(sizes, list(range(len(hosts)))):
        yield [placed[i] for i in range(len(hosts))]


def arranged(shape, hosts, weights):
    """The hosts of the blocks. Each block has a worker of its own."""
    order = order_on_hosts(shape, hosts, weights)
    assert len(set(order)) == len(order) == math.prod(shape)
    return [hosts[worker] for worker in order]


@by_geometry
@pytest.mark.parametrize(
    ("shape", "hosts", "weights", "expected"),
    [([2, 2], "aabb", [1, 1], 4), ([2, 2], "abba", [1, 1], 8), ([2, 3], "aabbcc", [5, 1], 34), ([4], "aabc", [3], 12)],
)
def test_bytes_by_hand(shape, hosts, weights, expected):
    assert bytes_between(shape, hosts, weights) == counted(shape, hosts, weights) == expected


@by_geometry
@pytest.mark.parametrize("weights", [(1, 1, 1), (1, 2, 3), (5, 1, 0)])
def test_no_placement_on_equal_hosts_has_fewer_bytes(weights):
    for shape in SHAPES:
        count, w = math.prod(shape), weights[: len(shape)]
        for size in (m for m in range(1, count + 1) if count % m == 0):
            for hosts in ([i // size for i in range(count)], [i % (count // size) for i in range(count)]):
                least = min(counted(shape, placed, w) for placed in placements(hosts))
                assert counted(shape, arranged(shape, hosts, w), w) == least, (shape, hosts)


@by_geometry
def test_uneven_hosts_are_never_worse_than_row_major():
    draw, worse = np.random.default_rng(0), 0
    for _ in range(300):
        shape = tuple(draw.integers(1, 5, draw.integers(1, 4)).tolist())
        hosts = draw.integers(0, 1 + draw.integers(1, 6), math.prod(shape) + draw.integers(0, 4)).tolist()
        weights = draw.integers(0, 4, len(shape)).tolist()
        ours = counted(shape, arranged(shape, hosts, weights), weights)
        before = counted(shape, hosts[: math.prod(shape)], weights)
        assert ours <= before, (shape, hosts, weights)
        worse += ours < before
    assert worse > 100


@by_geometry
@pytest.mark.parametrize(
    ("shape", "ranks", "expected"),
    [
        ([4, 4], 4, 2 * 8),  # boxes of 2 x 2
        ([2, 2, 4], 4, 2 * 12),  # of 2 x 2 x 1
        ([8, 8, 8], 8, 2 * 3 * 3 * 64),  # of 2 x 2 x 2: three planes of cuts along each of three dimensions
        ([5, 4], 4, 2 * 12),  # four squares, and a row
        ([2, 5], 5, 2 * 3),  # no boxes: two and a half columns each
        ([16, 16, 32], 8, 2 * (2 * 7 * 16 * 32 + 15 * 16 * 16)),
    ],
)
def test_boxes_of_hosts(shape, ranks, expected):
    count, ones = math.prod(shape), [1] * len(shape)
    for hosts in ([i // ranks for i in range(count)], [i % (count // ranks) for i in range(count)]):
        assert bytes_between(shape, arranged(shape, hosts, ones), ones) == expected


@by_geometry
def test_large_grids_have_regular_boxes(monkeypatch):
    monkeypatch.setattr(placement, "_MOST_BLOCKS_TO_CUT", 0)
    hosts = [i % 64 for i in range(512)]
    assert bytes_between([8, 8, 8], arranged([8, 8, 8], hosts, [1] * 3), [1] * 3) == 2 * 3 * 3 * 64


@by_geometry
def test_a_small_grid_takes_whole_hosts():
    assert set(arranged([2, 2], "abcabcbb", [1, 1])) == {"b"}
    assert order_on_hosts([2, 2], "aabb", [1, 1]) == [0, 1, 2, 3]  # the order that is there, if none is better
    assert order_on_hosts([], "ab", []) == [0]


@by_geometry
@pytest.mark.parametrize("shape", [(8, 8), (4, 4, 4), (16,)])
def test_hilbert_curves_go_from_neighbor_to_neighbor(shape):
    (curve,) = placement._hilbert_curve(shape)
    assert sorted(curve) == list(range(math.prod(shape)))
    places = np.array(np.unravel_index(curve, shape))
    assert (np.abs(np.diff(places, axis=1)).sum(axis=0) == 1).all()


@pytest.mark.mpi(min_size=4)
def test_hosts_in_turns(P_world):
    P = distdl.arrange(P_world, [2, 2], host=f"host{job.rank % 2}")
    assert [rank % 2 for rank in P.ranks[:4]] in ([0, 0, 1, 1], [0, 1, 0, 1])
    assert len(set(job.allgather(P.ranks))) == 1
    assert P.shape.tolist() == [2, 2]
    assert P.active == (job.rank in P.ranks)
    if P.active:
        assert P.comm.allgather(job.rank) == list(P.ranks)
        assert list(P.comm.dims) == [2, 2]


@pytest.mark.mpi(min_size=4)
def test_weights_say_which_neighbors_count(P_world):
    hosts = [rank % 2 for rank in range(4)]
    first = distdl.arrange(P_world, [2, 2], weights=[3, 1], host=str(job.rank % 2))
    last = distdl.arrange(P_world, [2, 2], weights=[1, 3], host=str(job.rank % 2))
    assert [hosts[rank] for rank in first.ranks] in ([0, 1, 0, 1], [1, 0, 1, 0])
    assert [hosts[rank] for rank in last.ranks] in ([0, 0, 1, 1], [1, 1, 0, 0])


def test_ranks_of_one_host_stay_in_order(P_world):
    for options in ({}, {"host": "all"}):
        P = distdl.arrange(P_world, [1, job.size], **options)
        assert P.ranks == P_world.ranks
    assert distdl.arrange(MPI.COMM_WORLD, [job.size]).ranks == P_world.ranks


def test_some_ranks_stay_out(P_world):
    size = max(1, job.size - 1)
    P = distdl.arrange(P_world, [size], host=str(job.rank))
    assert P.size == size
    assert P.active == (job.rank in P.ranks)
    y = dnn.HaloExchange(P, [1])(torch.full((2,), float(job.rank)) if P.active else distdl.zero_volume_tensor())
    if P.active:
        at, ranks = P.rank, P.ranks
        neighbors = [float(ranks[i]) if 0 <= i < size else 0.0 for i in (at - 1, at + 1)]
        assert y.tolist() == [neighbors[0], float(job.rank), float(job.rank), neighbors[1]]


@pytest.mark.mpi(min_size=2)
def test_ranks_outside_of_a_part_know_the_result(P_world):
    part = P_world.create_partition_inclusive([job.size - 1, 0])
    P = distdl.arrange(part, [2], host=str(job.rank % 2))
    assert sorted(P.ranks) == [0, job.size - 1]
    assert len(set(job.allgather(P.ranks))) == 1
    assert P.active == (job.rank in (0, job.size - 1))


@pytest.mark.mpi(min_size=2)
def test_a_subgrid_arranges_by_itself(P_world):
    P = P_world.create_cartesian_topology_partition([job.size, 1])
    alone = P.create_cartesian_subtopology_partition([False, True])
    if job.rank == 0:
        assert distdl.arrange(alone, [1]).ranks == (0,)


def test_a_host_without_a_text_raises_everywhere(P_world):
    wrong = 3 if job.rank == job.size - 1 else "a"
    raises_everywhere(TypeError, "host=3", lambda: distdl.arrange(P_world, [1], host=wrong))

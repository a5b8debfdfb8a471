"""What partitions of many ranks cost one rank: counted, for ranks that need not exist."""

import tracemalloc
from dataclasses import replace

import pytest
from mpi4py import MPI

import distdl.partitions.comparison as comparison
from distdl.partitions.comparison import View, compare, differing_views
from distdl.partitions.grid import Grid
from support.ranks import job

emulated = pytest.mark.parametrize("ranks", [10, 1_000, 100_000])


class Views(dict):
    """Views by rank that count how often one is looked up."""

    looked_up = 0

    def __getitem__(self, rank):
        self.looked_up += 1
        return super().__getitem__(rank)


def compared(views, ranks, monkeypatch):
    """The look-ups of a comparison in which ranks 0 to `ranks` say these views."""
    monkeypatch.setattr(Grid, "host_exchange", lambda _: None)
    monkeypatch.setattr(comparison, "differing_views", lambda *_: views)
    compare("Layer", "construction of Layer", replace(Grid.imagined(ranks), me=0), None, {}, {})
    return views.looked_up


def view_of(ranks):
    return View("Layer", (("P_x", [len(ranks)], list(ranks)),))


@emulated
@pytest.mark.ranks(1)
def test_each_rank_of_replicas_is_compared_once(monkeypatch, ranks):
    views = Views()
    for first in range(0, ranks, 10):
        group = range(first, first + 10)
        views.update(dict.fromkeys(group, view_of(group)))
    assert compared(views, ranks, monkeypatch) == ranks


@emulated
@pytest.mark.ranks(1)
def test_a_difference_among_many_is_found(monkeypatch, ranks):
    views = Views.fromkeys(range(ranks), view_of(range(ranks)))
    views[ranks - 1] = View("Layer", (("P_x", [1], [ranks - 1]),))
    with pytest.raises(ValueError, match=rf"ask for different things; .*rank {ranks - 1}: Layer\(P_x of shape \[1\]"):
        compared(views, ranks, monkeypatch)


def test_equal_views_are_one_object(P_world):
    views = differing_views("a call", P_world.grid.host_exchange(), view_of([job.rank % 2]), None)
    if job.size == 1:
        assert views is None
        return
    assert list(views) == list(range(job.size))
    assert len({id(view) for view in views.values()}) == 2
    assert all(view == view_of([rank % 2]) for rank, view in views.items())


@emulated
@pytest.mark.ranks(1)
def test_a_grid_of_all_ranks_keeps_no_list_of_its_own(ranks):
    world = replace(Grid.imagined(ranks), me=0)
    tracemalloc.start()
    grids = [world.reshaped([ranks // 10, 10]) for _ in range(20)]
    kept = [(grid.workers, grid.rank, grid.place) for grid in grids]
    memory, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert [workers for workers, _, _ in kept] == 20 * [([ranks // 10, 10], tuple(range(ranks)))]
    assert memory < 20 * 4096


@pytest.mark.ranks(1, 2, 3)
def test_ranks_of_the_world():
    """As ranks of MPI.COMM_WORLD, whatever the order of a communicator."""
    turned = MPI.COMM_WORLD.Split(0, -job.rank)
    assert list(Grid.of(MPI.COMM_WORLD).world) == list(range(job.size))
    assert list(Grid.of(turned).world) == list(reversed(range(job.size)))
    assert Grid.of(turned).related([0], [1]).world_ranks() == (job.size - 1,)
    turned.Free()

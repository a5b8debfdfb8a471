"""Calls like an earlier one: the ranks go back to what they agreed on then, with a vote alone."""

import random

import pytest
import torch

import distdl
from distdl import _core, operators
from support.blocks import grid
from support.ranks import job, one_if_parallel, raises_everywhere, votes_of


class Gathering:
    """A layer of an operator within a layer, whose results have the sizes of the blocks of all ranks."""

    def __init__(self, P):
        self.outer, self.inner = (_core.LayerAgreement(name, P.grid.root, [*P.ranks], ["input"], []) for name in "AB")
        self.gather = operators.all_gather(P, [0])
        self.sum = operators.all_sum_reduce(P, [0])

    def __call__(self, x, own=""):
        changed = self.outer.agree([x], [], own)
        try:
            total = self.sum(torch.full((3,), float(len(x))))
            within = self.inner.agree([x], [])
            try:
                return self.gather(x), total, changed, within
            finally:
                self.inner.leave()
        finally:
            self.outer.leave()


@pytest.fixture
def layer(P_world):
    return Gathering(grid(P_world, [job.size]))


def block(rank, size, requires_grad=False):
    return torch.full((size,), float(rank + 1), requires_grad=requires_grad)


def check(layer, sizes, requires_grad=False, own=""):
    """Call the layer with a block of a size for each rank. Returns what it says of changes."""
    result, total, changed, within = layer(block(job.rank, sizes[job.rank], requires_grad), own)
    assert torch.equal(result.detach(), torch.cat([block(rank, size) for rank, size in enumerate(sizes)]))
    assert total[0] == sum(sizes)
    assert result.requires_grad == (requires_grad and torch.is_grad_enabled())
    return changed, within


def uneven(rank, size, usual=4):
    return [size if each == rank else usual for each in range(job.size)]


def test_back_to_a_structure_that_one_rank_changed(layer):
    last = job.size - 1
    for _ in range(2):
        check(layer, uneven(last, 4))
        check(layer, uneven(last, 2))
        check(layer, uneven(0, 3))
    for sizes in (uneven(last, 4), uneven(0, 3), uneven(last, 2)):
        assert votes_of(lambda sizes=sizes: check(layer, sizes)) == one_if_parallel()
        assert check(layer, sizes) == (False, False)
        check(layer, uneven(last, 5))
        assert check(layer, sizes) == (True, True)


def test_back_to_derivatives_and_options(layer):
    def step(grad, own):
        with torch.set_grad_enabled(grad):
            return check(layer, uneven(0, 3), True, own)

    kinds = [(True, "a"), (False, "a"), (True, "b"), (False, "b")]
    for kind in kinds:
        step(*kind)
    for kind in reversed(kinds):
        assert votes_of(lambda kind=kind: step(*kind)) == one_if_parallel()
        assert step(*kind) == (False, False)
    assert step(True, "b")[0]  # the options changed
    assert not step(False, "b")[0]


def test_more_kinds_of_calls_than_are_kept(layer):
    for _ in range(2):
        for size in range(1, 21):
            assert check(layer, uneven(size % job.size, size)) == (True, True)
    assert votes_of(lambda: check(layer, uneven(19 % job.size, 19))) == one_if_parallel()
    assert votes_of(lambda: check(layer, uneven(1 % job.size, 1))) > one_if_parallel() or job.size == 1


def test_without_the_structure_check(layer):
    for size in (2, 3, 2):
        check(layer, uneven(0, size))
    with distdl.structure_check(False):
        for requires_grad in (False, job.rank == 0):
            layer(block(job.rank, uneven(0, 2)[job.rank], requires_grad))
    assert check(layer, uneven(0, 2)) == (False, False)
    assert check(layer, uneven(0, 3)) == (True, True)


@pytest.mark.parametrize("seed", range(8))
def test_drawn_sequences(layer, seed):
    """Sizes, gradients, options, errors, and ranks that ask for a change alone."""
    draw = random.Random(seed)
    for _ in range(60):
        what = draw.random()
        if what < 0.08:
            rank = draw.randrange(job.size)
            x = "text" if job.rank == rank else torch.ones(2)
            raises_everywhere(TypeError, f"the input of rank {rank} is of type str", lambda x=x: layer(x))
        elif what < 0.16:
            if job.size > 1:
                raises_everywhere(ValueError, "the ranks differ", lambda: layer(torch.ones(2), f"option {job.rank}"))
        elif what < 0.24:
            if job.rank == draw.randrange(job.size):
                layer.outer.forget()
        else:
            with torch.set_grad_enabled(draw.random() < 0.7):
                sizes = [draw.choice([2, 2, 2, 3]) for _ in range(job.size)]
                check(layer, sizes, draw.random() < 0.5, draw.choice("aab"))

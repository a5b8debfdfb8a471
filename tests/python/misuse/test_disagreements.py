"""Random sequences of calls, in which ranks err or call something else, end alike on all ranks and never hang.

Each draw is a sequence of calls on the same ranks. In some of them a rank passes no tensor, or one of other dimensions,
disables gradients, makes another call, or leaves out its backward pass: then all ranks raise the same. In all others
the values are those of the definition, also in the first call after a mistake. DISTDL_DRAWS is the number of draws in a
job, and DISTDL_SEED draws others: DISTDL_DRAWS=100000 mpiexec -n N ... on any number of ranks.
"""

import os
import random

import pytest
import torch

import distdl.nn as dnn
from support.ranks import job
from support.tensors import values

STEPS = 8
SIZES = (1, 3, 40, 2000)  # the last is too large for a buffered send: see src/comm/buffered_send.hpp
MISTAKES = ("no tensor", "dimensions", "no_grad", "another call", "no backward")
SEED = os.environ.get("DISTDL_SEED", "")
DRAWS = int(os.environ.get("DISTDL_DRAWS", "100"))


class Calls:
    """The calls, by name: what each rank passes, the result and the gradient of the sum of all results."""

    def __init__(self, P):
        self.ranks, self.rank = P.size, P.rank
        P_0 = P.create_partition_inclusive([0])
        self.layers = {
            "broadcast": dnn.Broadcast(P_0, P),
            "sum_reduce": dnn.SumReduce(P, P_0),
            "all_sum_reduce": dnn.AllSumReduce(P, [0]),
            "all_gather": dnn.AllGather(P, [0]),
            "reduce_scatter": dnn.ReduceScatter(P, [0]),
            "repartition": dnn.Repartition(P, P_0),
            "halo_exchange": dnn.HaloExchange(P, 1),
            "loss": dnn.DistributedMSELoss(P),
        }

    def blocks(self, name, size):
        """The inputs of the ranks."""
        if name == "broadcast":
            return [values([size])] + [torch.empty(0, dtype=torch.float64)] * (self.ranks - 1)
        size *= self.ranks if name == "reduce_scatter" else 1
        return [values([size], seed=rank) for rank in range(self.ranks)]

    def __call__(self, name, x):
        return self.layers[name](x, torch.zeros_like(x)) if name == "loss" else self.layers[name](x)

    def expected(self, name, size):
        """This rank's result."""
        blocks, n = self.blocks(name, size), self.rank
        nothing = torch.empty(0, dtype=torch.float64)
        if name == "halo_exchange":
            left = blocks[n - 1][-1:] if n else nothing
            right = blocks[n + 1][:1] if n + 1 < self.ranks else nothing
            zeros = [torch.zeros(1 - len(halo), dtype=torch.float64) for halo in (left, right)]
            return torch.cat([zeros[0], left, blocks[n], right, zeros[1]])
        if name == "loss":
            whole = torch.cat(blocks)
            return (whole * whole).sum() / len(whole)
        if name == "broadcast":
            return blocks[0]
        whole = torch.cat(blocks) if name in ("all_gather", "repartition") else sum(blocks)
        if name == "reduce_scatter":
            return whole.chunk(self.ranks)[n]
        return nothing if n and name in ("sum_reduce", "repartition") else whole

    def expected_gradient(self, name, x):
        """The gradient of this rank's input, for gradients of 1."""
        if name in ("broadcast", "all_sum_reduce", "all_gather"):
            return torch.full_like(x, self.ranks)
        gradient = torch.ones_like(x)
        if name == "halo_exchange":
            gradient[0] += bool(self.rank)
            gradient[-1] += self.rank + 1 < self.ranks
        return gradient


def step(draw, calls, names, sizes):
    """A call that some ranks may get wrong: what it is, with gradients or without, and each rank's mistake."""
    name, size, recorded = draw.choice(names), draw.choice(sizes), draw.random() < 0.5
    mistakes = [None] * calls.ranks
    if draw.random() < 0.3:
        for rank in draw.sample(range(calls.ranks), draw.randint(1, calls.ranks)):
            mistakes[rank] = draw.choice(MISTAKES)
    return name, size, recorded, mistakes, draw.choice([kind for kind in calls.layers if kind != name])


def made(calls, name, size, recorded, mistake, other):
    """Make the call. Raises AssertionError where a result is wrong."""
    x = calls.blocks(name, size)[calls.rank]
    if mistake == "another call":
        calls(other, calls.blocks(other, size)[calls.rank])
        return
    if mistake == "no tensor":
        x = [1.0]
    else:
        x = x.reshape(1, 1, -1) if mistake == "dimensions" else x
        x = x.detach().requires_grad_(recorded)
    with torch.set_grad_enabled(mistake != "no_grad"):
        y = calls.layers[name](x, x) if mistake == "no tensor" and name == "loss" else calls(name, x)
    torch.testing.assert_close(y.detach().reshape(-1), calls.expected(name, size).reshape(-1), rtol=0, atol=0)
    if not recorded:
        return
    if mistake == "no backward":  # the next call comes in its place
        calls(other, calls.blocks(other, size)[calls.rank])
        return
    (gradient,) = torch.autograd.grad(y, x, torch.ones_like(y))
    if name != "loss":
        torch.testing.assert_close(gradient, calls.expected_gradient(name, x), rtol=0, atol=0)


def outcome_of(calls, *drawn):
    """The exception of this rank's call, or None."""
    try:
        made(calls, *drawn)
    except Exception as error:
        return type(error).__name__, str(error).split(" (raised on rank")[0]
    return None


def check(calls, seed):
    """A draw. Outcomes are compared at its end, so that nothing but the calls keeps ranks in step."""
    draw, said = random.Random(seed), []
    # Calls that are repeated send their data ahead of the votes.
    names = draw.choices([*calls.layers], k=draw.choice([1, 2, 8]))
    sizes = draw.choices(SIZES, k=draw.choice([1, 1, 4]))
    for _ in range(STEPS):
        name, size, recorded, mistakes, other = step(draw, calls, names, sizes)
        result = outcome_of(calls, name, size, recorded, mistakes[calls.rank], other)
        said.append((result, (name, size, recorded, mistakes, other)))
    for everyone in zip(*job.allgather(said), strict=True):
        outcomes, drawn = {outcome for outcome, _ in everyone}, everyone[0][1]
        assert len(outcomes) == 1, (seed, drawn, outcomes)
        (outcome,) = outcomes
        assert outcome is None or outcome[0] != "AssertionError", (seed, drawn, outcome)
        assert outcome is None or any(drawn[3]), (seed, drawn, outcome)


@pytest.mark.draws
@pytest.mark.mpi(min_size=2)
def test_disagreements_end_alike(P_world):
    calls = Calls(P_world)
    for number in range(DRAWS):
        check(calls, f"{SEED} {number} on {job.size}")

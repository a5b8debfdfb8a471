"""Runs that are saved on some ranks and go on on others: every bit of the weights is that of the sequential run.

A case is an optimizer, and for saving and for going on each a number of ranks, a partition and a layout. Gradients are
whole numbers, since only then a sum over blocks has no roundings. DISTDL_RESUMES is the number of cases that are drawn,
0 for all: `bash tests/commands.sh resumes`.
"""

import functools
import itertools
import os
import random

import torch
from mpi4py import MPI

import distdl
from support.ranks import job
from support.tensors import same_bits
from support.training import KINDS, OPTIMIZERS, Twins

STEPS = 3
# A fused step rounds the last elements of a block in another way than those that fill vectors.
OPTIONS = {name: options | {"fused": False} if "fused" in options else options for name, options in OPTIMIZERS.items()}


def places():
    """Where a run can live in this job: numbers of ranks, of which so many along the features, and layouts."""
    grids = [(n, columns) for n in range(1, job.size + 1) for columns in range(1, n + 1) if n % columns == 0]
    return [(*place, kind) for place in grids for kind in KINDS]


@functools.cache
def partition(first, stop):
    """Some ranks as a job of their own. Collective over them."""
    ranks = job.Get_group().Incl(range(first, stop))
    return distdl.Partition(job.Create_group(ranks))


def numbers(state):
    """Whole numbers in the shapes of a state."""
    generator = torch.Generator().manual_seed(7)
    return {
        name: torch.randint(-4, 5, x.shape, generator=generator).to(x.dtype) if x.is_floating_point() else x
        for name, x in state.items()
    }


def train(model, optimizer, gradients, first):
    """Steps from the so many-th on, with gradients as whole numbers."""
    for step in range(first, first + STEPS):
        for parameter, gradient in zip(model.parameters(), gradients, strict=True):
            parameter.grad = (1 + step % 3) * gradient
        optimizer.step()


class Run:
    """A model in blocks, with its gradients."""

    def __init__(self, P, columns, kind, name, seed):
        self.model = Twins(P, kind, seed=seed, columns=columns).model
        other = Twins(P, kind, columns=columns)
        distdl.load_sequential(other.model, numbers(other.twin.state_dict()))
        self.gradients = [parameter.detach() for parameter in other.model.parameters()]
        self.optimizer = getattr(torch.optim, name)(self.model.parameters(), **OPTIONS[name])

    def train(self, first):
        train(self.model, self.optimizer, self.gradients, first)


@functools.cache
def expected(name):
    """The weights of the sequential run."""
    model = Twins(distdl.Partition(MPI.COMM_SELF)).twin
    state = numbers(model.state_dict())
    gradients = [state[key] for key, _ in model.named_parameters()]
    optimizer = getattr(torch.optim, name)(model.parameters(), **OPTIONS[name])
    train(model, optimizer, gradients, 0)
    train(model, optimizer, gradients, STEPS)
    return {key: value.clone() for key, value in model.state_dict().items()}


def resumed(name, source, target, folder):
    """The problems of a case, on all ranks."""
    ranks, columns, kind = source
    if job.rank < ranks:
        run = Run(partition(0, ranks), columns, kind, name, seed=0)
        run.train(0)
        distdl.save(folder / "first", run.model, run.optimizer, epoch=1)
    job.Barrier()
    ranks, columns, kind = target
    problems = []
    if job.rank >= job.size - ranks:
        run = Run(partition(job.size - ranks, job.size), columns, kind, name, seed=5)
        distdl.load(folder / "first", run.model, run.optimizer)
        distdl.save(folder / "second", run.model, run.optimizer, epoch=1)
        if (folder / "first").read_bytes() != (folder / "second").read_bytes():
            problems.append("the file is another one when it is saved again")
        run.train(STEPS)
        state = distdl.sequential_state_dict(run.model)
        problems += [key for key, value in expected(name).items() if state and not same_bits(state[key], value)]
    return [f"{name}, {source} to {target}: {problem}" for problem in itertools.chain(*job.allgather(problems))]


def test_a_run_goes_on_anywhere(folder):
    cases = list(itertools.product(OPTIONS, places(), places()))
    count = int(os.environ.get("DISTDL_RESUMES", 3)) or len(cases)
    drawn = random.Random(job.size).sample(cases, min(count, len(cases)))
    problems = [problem for case in drawn for problem in resumed(*case, folder)]
    if job.rank == 0:
        print(f"{len(drawn)} of {len(cases)} cases")
    assert not problems, "\n".join(problems)

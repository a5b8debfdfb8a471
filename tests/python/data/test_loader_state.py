"""Loaders that go on where another run stopped."""

import io

import pytest
import torch
from mpi4py import MPI
from torch.utils.data import DataLoader

import distdl
from support.ranks import job, raises_everywhere, together

SAMPLES, SIZE, EPOCHS = 11, 3, 3
NUMBERS = torch.arange(SAMPLES)


class Numbered(torch.utils.data.Dataset):
    """Samples that know their number and their epoch."""

    def __len__(self):
        return SAMPLES

    def __getitem__(self, number):
        return torch.tensor([number, distdl.data.current_epoch()])


def generator(own):
    torch.manual_seed(3)
    return torch.Generator().manual_seed(8) if own else None


def load(P, own=False, shuffle=True, **options):
    return distdl.data.loader(Numbered(), P, SIZE, shuffle=shuffle, generator=generator(own), **options)


def expected(own, shuffle, drop_last):
    """The numbers in each batch of torch's loader in one process, by epoch."""
    loader = DataLoader(NUMBERS, SIZE, shuffle=shuffle, drop_last=drop_last, generator=generator(own))
    return [[batch.tolist() for batch in loader] for _ in range(EPOCHS)]


def whole(batch, P):
    """The numbers and the epoch of a batch, from the blocks of all ranks of P."""
    blocks = P.comm.allgather(batch)
    numbers, epochs = torch.cat(blocks).T.tolist()
    assert len(set(epochs)) == 1
    return numbers, epochs[0]


def stored(state):
    """A state from a file of torch.save, which holds no objects."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


@pytest.mark.parametrize("own", [False, True], ids=["default generator", "generator"])
@pytest.mark.parametrize(("shuffle", "drop_last"), [(True, False), (True, True), (False, False)])
def test_a_run_goes_on(P_world, own, shuffle, drop_last):
    """From each batch and from each end of an epoch; on one rank, then on all, or the other way round."""
    batches = expected(own, shuffle, drop_last)
    P_alone = distdl.Partition(MPI.COMM_SELF)
    for P_before, P_after in ((P_alone, P_world), (P_world, P_alone)):
        loader, states = load(P_before, own, shuffle, drop_last=drop_last), []
        for epoch in range(EPOCHS - 1):
            states.append((epoch, 0, loader.state_dict()))
            for i, batch in enumerate(loader, 1):
                assert whole(batch, P_before) == (batches[epoch][i - 1], epoch)
                states.append((epoch, i, stored(loader.state_dict())))
        for epoch, taken, state in states:
            resumed = load(P_after, own, shuffle, drop_last=drop_last)
            torch.manual_seed(1)
            resumed.load_state_dict(state)
            assert repr(resumed.state_dict()) == repr(state)
            for number in range(epoch, EPOCHS):
                rest = [whole(batch, P_after) for batch in resumed]
                assert rest == [(batch, number) for batch in batches[number][taken if number == epoch else 0 :]]
            assert len(resumed) == len(batches[0])


@pytest.mark.ranks(2)
@pytest.mark.parametrize("persistent", [False, True])
def test_worker_processes(P_world, persistent):
    """What they have read ahead does not count; they know the epoch."""
    batches = expected(False, True, False)
    options = {"num_workers": 2, "prefetch_factor": 2, "persistent_workers": persistent}
    loader = load(P_world, **options)
    for epoch in range(2):
        for i, batch in enumerate(loader, 1):
            assert whole(batch, P_world) == (batches[epoch][i - 1], epoch)
            if (epoch, i) == (1, 2):
                break
    state = loader.state_dict()
    resumed = load(P_world, **options)
    resumed.load_state_dict(state)
    assert [whole(batch, P_world) for batch in resumed] == [(batch, 1) for batch in batches[1][2:]]
    assert [whole(batch, P_world) for batch in resumed] == [(batch, 2) for batch in batches[2]]


@pytest.mark.ranks(2)
@pytest.mark.parametrize("root", [None, 1])
def test_another_number_of_replicas(P_world, root):
    """Two replicas took the first batches; one replica takes the samples from there on."""
    P_replicas = P_world.create_cartesian_topology_partition([2, 1])
    P = P_replicas.create_cartesian_subtopology_partition([False, True])
    loader = load(P, P_replicas=P_replicas)
    first = torch.cat(together(next(iter(loader))[:, 0])).tolist()
    order = [number for batch in expected(False, True, False)[0] for number in batch]
    assert first == order[:6]
    resumed = load(P_world, root=root)
    resumed.load_state_dict(loader.state_dict())
    assert [whole(batch, P_world)[0] for batch in resumed] == [order[6:9], order[9:]]


@pytest.mark.ranks(1, 2)
def test_a_checkpoint_keeps_it(P_world, tmp_path):
    P = P_world.create_cartesian_topology_partition([1, job.size])
    model = distdl.nn.DistributedMSELoss(P)
    path = job.bcast(tmp_path) / "run"
    loader = load(P_world)
    batches = iter(loader)
    next(batches)
    distdl.save(path, model, loader=loader.state_dict())
    resumed = load(P_world)
    resumed.load_state_dict(distdl.load(path, model)["loader"])
    assert all(torch.equal(a, b) for a, b in zip(batches, resumed, strict=True))


@pytest.mark.ranks(1, 2)
def test_mistakes_are_raised_everywhere(P_world):
    loader, last = load(P_world), job.rank == job.size - 1
    state = loader.state_dict()

    def resume(new, loader=loader, all_ranks=True):
        return lambda: loader.load_state_dict(new if last or all_ranks else state)

    raises_everywhere(ValueError, "has to be a mapping of", resume({}, all_ranks=False))
    raises_everywhere(ValueError, "has to be a mapping of", resume(None, all_ranks=False))
    raises_everywhere(ValueError, "of 3 samples with shuffle=True; the loader has 11", resume({**state, "samples": 3}))
    raises_everywhere(ValueError, "the loader has 11 with shuffle=False", resume(state, load(P_world, shuffle=False)))
    raises_everywhere(TypeError, "taken='2'", resume({**state, "taken": "2"}, all_ranks=False))
    raises_everywhere(TypeError, "a list is in place", resume({**state, "order": [3]}))
    raises_everywhere(TypeError, "RNG state", resume({**state, "generator": torch.zeros(3)}))
    if job.size > 1:
        raises_everywhere(ValueError, "ask for different things", resume({**state, "epoch": 4}, all_ranks=False))
    loader.load_state_dict(state)

"""Batches in blocks are those of torch's DataLoader in one process."""

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import distdl
from support.ranks import job, raises_everywhere, together
from support.sequential import block

IMAGES = torch.arange(11.0 * 2 * 5).reshape(11, 2, 5)
LABELS = torch.arange(11) * 3


class Parts(torch.utils.data.Dataset):
    """The part of each image that a rank reads."""

    def __init__(self, P):
        self.at = P.slices((1, *IMAGES.shape[1:]))[1:]

    def __len__(self):
        return len(IMAGES)

    def __getitem__(self, number):
        return IMAGES[number][self.at], LABELS[number]


class Broken(Parts):
    """Sample 4 cannot be read on the last rank."""

    def __getitem__(self, number):
        if number == 4 and job.rank == job.size - 1:
            raise OSError("sample 4 is gone")
        return super().__getitem__(number)


def partitions(P_world):
    """Of images, split in samples or columns, and of labels; one rank of three has nothing."""
    first, last = {1: (1, 1), 2: (1, 2), 3: (2, 1), 4: (2, 2)}[job.size]
    P_x = P_world.create_cartesian_topology_partition([first, 1, last])
    return P_x, P_world.create_cartesian_topology_partition([first, 1])


def sequential(epochs=2, **options):
    """The batches of torch in one process, by epoch."""
    torch.manual_seed(5)
    loader = DataLoader(TensorDataset(IMAGES, LABELS), 3, **options)
    return [[tuple(batch) for batch in loader] for _ in range(epochs)]


@pytest.mark.parametrize("root", [None, 0])
def test_labels_that_every_rank_has_whole(P_world, root):
    P_x, _ = partitions(P_world)
    dataset = Parts(P_x) if root is None else TensorDataset(IMAGES, LABELS) if job.rank == 0 else None
    loader = distdl.data.loader(dataset, (P_x, None), 3, root=root)
    batches = [batch for _ in range(2) for batch in loader]
    expected = [batch for epoch in sequential() for batch in epoch]
    equal = [
        torch.equal(labels, whole_labels) and (torch.equal(images, block(whole, P_x, (0, 1, 2))) or not P_x.active)
        for (images, labels), (whole, whole_labels) in zip(batches, expected, strict=True)
    ]
    assert all(together(all(equal))), equal


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("root", [None, 0])
def test_batches(P_world, root, shuffle, drop_last):
    """Two epochs; the last batch has two samples; on ranks outside of a partition there is nothing."""
    P_x, P_y = partitions(P_world)
    expected = sequential(shuffle=shuffle, drop_last=drop_last)
    torch.manual_seed(5 if job.rank == 0 else 6)  # the first rank's seed counts
    dataset = Parts(P_x) if root is None else TensorDataset(IMAGES, LABELS) if job.rank == 0 else None
    loader = distdl.data.loader(dataset, (P_x, P_y), 3, root=root, shuffle=shuffle, drop_last=drop_last)
    assert len(loader) == len(expected[0]) == (3 if drop_last else 4)
    for epoch in expected:
        batches = list(loader)
        assert len(batches) == len(epoch)
        for (images, labels), (whole, whole_labels) in zip(batches, epoch, strict=True):
            x, y = block(whole, P_x, (0, 1, 2)), block(whole_labels, P_y, (0,))
            assert (images.dtype, labels.dtype) == (x.dtype, y.dtype)
            assert torch.equal(images, x) if P_x.active else images.numel() == 0
            assert torch.equal(labels, y) if P_y.active else labels.numel() == 0


@pytest.mark.ranks(2)
@pytest.mark.parametrize("drop_last", [False, True])
def test_a_generator_of_its_own(P_world, drop_last):
    """It goes on as torch's does: both epochs have the order of a single process."""
    generator, twin = (torch.Generator().manual_seed(4) for _ in range(2))
    loader = distdl.data.loader(LABELS, P_world, 3, shuffle=True, drop_last=drop_last, generator=generator)
    whole = DataLoader(LABELS, 3, shuffle=True, drop_last=drop_last, generator=twin)
    for _ in range(2):
        for labels, expected in zip(list(loader), list(whole), strict=True):
            assert torch.equal(labels, block(expected, P_world, (0,)))
    assert torch.equal(generator.get_state(), twin.get_state())


@pytest.mark.ranks(2)
def test_processes_read_ahead(P_world):
    P_x, P_y = partitions(P_world)
    expected = sequential(1, shuffle=True)
    torch.manual_seed(5)
    options = {"num_workers": 2, "prefetch_factor": 2, "persistent_workers": True}
    loader = distdl.data.loader(Parts(P_x), {"x": P_x, "y": P_y}, 3, shuffle=True, collate_fn=as_dict, **options)
    for batch, (whole, labels) in zip(loader, expected[0], strict=True):
        assert torch.equal(batch["x"], block(whole, P_x, (0, 1, 2)))
        assert torch.equal(batch["y"], labels) or not P_y.active


def as_dict(samples):
    images, labels = torch.utils.data.default_collate(samples)
    return {"y": labels, "x": images}


@pytest.mark.ranks(2, 4)
@pytest.mark.parametrize("root", [None, 0])
def test_replicas_share_the_samples(P_world, root):
    """Together they have all samples, in the same number of batches; the last has a single sample."""
    P_replicas = P_world.create_cartesian_topology_partition([2, job.size // 2])
    P = P_replicas.create_cartesian_subtopology_partition([False, True])
    P_x = P.create_cartesian_topology_partition([1, P.size])
    torch.manual_seed(0)
    dataset = TensorDataset(torch.arange(10).unsqueeze(1).expand(10, 3)) if root is None or P.rank == root else None
    if root is None:
        dataset = TensorDataset(dataset.tensors[0][:, P_x.slices((1, 3))[1]])
    loader = distdl.data.loader(dataset, [P_x], 2, root=root, P_replicas=P_replicas, shuffle=True)
    batches = [batch[:, 0].tolist() for (batch,) in loader]
    everyone = together(batches)
    assert [len(batch) for batch in batches] == [2, 2, 1]
    for worker in range(P.size):
        assert everyone[worker] == everyone[0]
        assert everyone[P.size + worker] == everyone[P.size]
    assert sorted(sample for batch in everyone[0] + everyone[P.size] for sample in batch) == list(range(10))


@pytest.mark.ranks(2)
def test_a_replica_may_have_no_samples(P_world):
    P = P_world.create_cartesian_topology_partition([2, 1]).create_cartesian_subtopology_partition([False, True])
    P_replicas = P_world.create_cartesian_topology_partition([2, 1])
    loader = distdl.data.loader(TensorDataset(torch.ones(5, 4)), (P,), 2, P_replicas=P_replicas)
    assert [tuple(batch.shape) for (batch,) in loader] == [(2, 4), (1, 4) if job.rank == 0 else (0, 4)]


@pytest.mark.ranks(2, 3)
@pytest.mark.parametrize("root", [None, -1])
def test_errors_in_a_dataset_are_raised_everywhere(P_world, root):
    P_x = P_world.create_cartesian_topology_partition([1, 1, job.size])
    P_y = P_world.create_cartesian_topology_partition([1])
    loader = distdl.data.loader(Broken(P_x), (P_x, P_y), 3, root=None if root is None else job.size - 1)
    batches = iter(loader)
    next(batches)
    raises_everywhere(OSError, "sample 4 is gone", lambda: next(batches))


@pytest.mark.ranks(1, 2)
def test_iterations_at_the_same_time(P_world):
    """Each has all samples, in an order of its own."""
    P_x = P_world.create_cartesian_topology_partition([job.size])
    loader = distdl.data.loader(LABELS, P_x, 2, shuffle=True, generator=torch.Generator().manual_seed(4))
    for iteration in zip(*zip(loader, loader, strict=True), strict=True):
        labels = torch.cat([part for parts in together(iteration) for part in parts])
        assert torch.equal(labels.sort().values, LABELS.sort().values)


class Nameless(torch.utils.data.Dataset):
    """Cannot be counted, or indexed, on the last rank."""

    def __init__(self, counted):
        self.counted = counted

    def __len__(self):
        if job.rank == job.size - 1 and not self.counted:
            raise OSError("the folder is gone")
        return 6

    def __getitem__(self, number):
        return {0: torch.zeros(2)}[0 if job.rank < job.size - 1 else number + 7]


@pytest.mark.ranks(2, 3)
def test_what_one_rank_alone_gets_wrong(P_world):
    """Its dataset, its options for torch's DataLoader, its generator."""
    last = job.rank == job.size - 1

    def load(dataset=LABELS, **options):
        return lambda: next(iter(distdl.data.loader(dataset, P_world, job.size, **options)))

    P_world = P_world.create_cartesian_topology_partition([job.size])
    raises_everywhere(OSError, "the folder is gone", load(Nameless(counted=False)))
    raises_everywhere(RuntimeError, "KeyError: ", load(Nameless(counted=True)))
    raises_everywhere(TypeError, "unexpected keyword argument 'nonsense'", load(**({"nonsense": 1} if last else {})))
    raises_everywhere(ValueError, "num_workers option", load(root=job.size - 1, num_workers=-1 if last else 0))
    raises_everywhere(TypeError, "generator is a str", load(generator="seed" if last else None))
    replicas = P_world if last else None
    raises_everywhere(ValueError, "ask for different things", load(P_replicas=replicas))
    raises_everywhere(TypeError, "P_replicas is a int", load(P_replicas=3 if last else None))
    pairs = torch.utils.data.TensorDataset(torch.zeros(job.size, 2), torch.zeros(job.size))
    message = r"a list of 2 in place of a tuple of 1, as in P; P has a partition, or None, for each tensor of a sample"
    raises_everywhere(TypeError, message, lambda: next(iter(distdl.data.loader(pairs, (P_world,), job.size))))
    generator = torch.Generator() if last else None
    raises_everywhere(ValueError, "no generator", load(shuffle=True, generator=generator))


@pytest.mark.ranks(2)
def test_mistakes_are_raised_everywhere(P_world):
    def load(dataset=LABELS, P=P_world, **options):
        return lambda: distdl.data.loader(dataset, P, **options)

    raises_everywhere(ValueError, "batch_size=0; it must be at least 1", load(batch_size=0))
    raises_everywhere(ValueError, "root=2 is not a worker", load(root=2))
    raises_everywhere(ValueError, "ask for different things", load(batch_size=1 + job.rank))
    raises_everywhere(ValueError, r"lengths \[3, 4\]; they must be equal", load(torch.ones(3 + job.rank)))
    raises_everywhere(TypeError, "P holds a int", load(P=(P_world, 3)))
    raises_everywhere(TypeError, "dataset is a NoneType", load(LABELS if job.rank == 0 else None))
    generator = torch.Generator().manual_seed(job.rank)
    shuffled = distdl.data.loader(LABELS, P_world, shuffle=True, generator=generator)
    raises_everywhere(ValueError, "a generator in the state", lambda: next(iter(shuffled)))
    for P, kind in (("P_x", "str"), (None, "NoneType"), ((), "tuple")):
        raises_everywhere(TypeError, f"P is a {kind}", load(P=P))
    columns = P_world.create_cartesian_topology_partition([1, job.size])
    for root in (None, 0):
        cut = distdl.data.loader(LABELS, columns, 3, root=root)
        raises_everywhere(ValueError, "cuts more of them", lambda cut=cut: next(iter(cut)))
        for change in (torch.sum, torch.atleast_2d, lambda whole: whole[:1]):
            other = distdl.data.loader(
                LABELS, P_world, 6, root=root, collate_fn=lambda s, to=change: to(torch.stack(s))
            )
            raises_everywhere(ValueError, "[36] samples make a collated batch", lambda other=other: next(iter(other)))
    two = distdl.data.loader(TensorDataset(IMAGES, LABELS), P_world, 3)
    raises_everywhere(TypeError, "in place of a tensor", lambda: next(iter(two)))

"""Patches of one array in a file are the same on all ranks, and for every partition."""

import functools
import pickle

import h5py
import numpy as np
import pytest
import torch
import zarr
from torch.utils.data import StackDataset

import distdl
from support.ranks import job, raises_everywhere, together

WHOLE = np.arange(2 * 9 * 12, dtype="f4").reshape(2, 9, 12)


def opened(path):
    return h5py.File(path)["x"]


def stored(kind, folder):
    """The array in a file that all ranks read."""
    path = job.bcast(folder) / kind
    if job.rank == 0:
        if kind == "npy":
            np.save(path.with_suffix(".npy"), WHOLE)
        elif kind == "zarr":
            zarr.open_array(str(path), mode="w", shape=WHOLE.shape, chunks=(2, 5, 5), dtype="f4")[:] = WHOLE
        else:
            with h5py.File(path, "w") as file:
                file["x"] = WHOLE
    job.Barrier()
    if kind == "npy":
        return np.load(path.with_suffix(".npy"), mmap_mode="r")
    return zarr.open_array(str(path), mode="r") if kind == "zarr" else functools.partial(opened, path)


def partitions(P_world):
    """Cuts of samples, rows, columns and two of them, with empty blocks and ranks outside."""
    for shape in ([job.size], [1, 1, job.size], [1, 1, 1, max(1, job.size - 1)], [2, 1, job.size // 2]):
        yield P_world.create_cartesian_topology_partition(shape if job.size > 1 else [1])


def cut(place):
    box, reversed_dims = place
    return np.flip(WHOLE[box], reversed_dims).copy()


@pytest.mark.parametrize("kind", ["npy", "zarr", "h5py"])
def test_blocks_of_patches(P_world, kind, tmp_path):
    array = stored(kind, tmp_path)
    options = {"samples": 7, "flip": (1, -1), "seed": 5, "region": (None, (1, 8))}
    alone = distdl.data.Patches(WHOLE, distdl.Partition(), (2, 4, 5), **options)
    assert len(alone) == 7
    places = [alone.place(number) for number in range(7)]
    assert all(rows.start >= 1 and rows.stop <= 8 for (_, rows, _), _ in places)
    assert len({str(place) for place in places}) > 3
    assert {flip for _, flip in places} <= {(), (1,), (2,), (1, 2)}
    for P in partitions(P_world):
        patches = distdl.data.Patches(array, P, (2, 4, 5), **options)
        for number, place in enumerate(places):
            assert patches.place(number) == place
            block = patches[number]
            assert torch.equal(block, torch.from_numpy(cut(place))[P.slices((1, 2, 4, 5))[1:]])
        assert torch.equal(pickle.loads(pickle.dumps(patches))[6], patches[6])  # for worker processes that are spawned
        with pytest.raises(IndexError, match="no patch 7 among 7"):
            patches[7]


@pytest.mark.ranks(1, 2)
def test_a_regular_grid(P_world):
    """It covers the region: the last patches overlap. Blocks that are written back make up the region again."""
    P = P_world.create_cartesian_topology_partition([1, 1, job.size])  # of batches
    P_patch = P_world.create_cartesian_topology_partition([1, job.size])
    region = (None, None, slice(1, 12))
    patches = distdl.data.Patches(WHOLE, P, (1, 4, 5), stride=(1, 3, 5), region=region, flip=2)
    starts = [tuple(part.start for part in patches.place(number)[0]) for number in range(len(patches))]
    assert starts == [(c, r, w) for c in range(2) for r in (0, 3, 5) for w in (1, 6, 7)]
    copy = np.zeros_like(WHOLE)
    for number in range(len(patches)):
        box, flip = patches.place(number)
        distdl.data.write_block(copy, P_patch, patches[number], root=0, region=box, flip=flip)
    if job.rank == 0:
        np.testing.assert_array_equal(copy[..., 1:], WHOLE[..., 1:])
    assert len(distdl.data.Patches(WHOLE, P, (2, 9, 12))) == 1


def batches(P, array, workers):
    """Inputs and targets of some epochs: the targets are the first channel."""
    inputs = distdl.data.Patches(array, P, (2, 4, 5), samples=6, flip=(-1, -2), seed=1)
    targets = distdl.data.Patches(WHOLE[0], P_targets(P), (4, 5), samples=6, flip=(-1, -2), seed=1)
    torch.manual_seed(2)
    loader = distdl.data.loader(
        StackDataset(x=inputs, y=targets), {"x": P, "y": P_targets(P)}, 4, shuffle=True, num_workers=workers
    )
    return [batch for _ in range(2) for batch in loader]


def P_targets(P):
    """The partition of targets without channels."""
    return P.create_cartesian_topology_partition([P.shape[0], *P.shape[2:]]) if P.active else P


@pytest.mark.parametrize("kind", ["npy", "h5py"])
@pytest.mark.ranks(1, 2, 3)
def test_batches(P_world, kind, tmp_path):
    """The same batches for each partition, with worker processes too; each epoch has other places."""
    array = stored(kind, tmp_path)
    P_alone = distdl.Partition(job.Split(job.rank)).create_cartesian_topology_partition([1, 1, 1, 1])
    expected = batches(P_alone, WHOLE, 0)
    assert [list(batch["x"].shape) for batch in expected] == [[4, 2, 4, 5], [2, 2, 4, 5]] * 2
    assert all(torch.equal(batch["x"][:, 0], batch["y"]) for batch in expected)
    first, second = (set(map(str, torch.cat([b["y"] for b in expected[i : i + 2]]))) for i in (0, 2))
    assert not first & second
    for shape, workers in (([1, 1, job.size, 1], 0), ([job.size, 1, 1, 1], 2), ([1, 1, 1, job.size], 1)):
        P = P_world.create_cartesian_topology_partition(shape)
        P_y = P_targets(P)
        for batch, whole in zip(batches(P, array, workers), expected, strict=True):
            assert torch.equal(batch["x"], whole["x"][P.slices(whole["x"].shape)])
            assert torch.equal(batch["y"], whole["y"][P_y.slices(whole["y"].shape)])


@pytest.mark.ranks(1, 2)
def test_mistakes_are_raised_everywhere(P_world):
    last = job.rank == job.size - 1

    def make(array=WHOLE, P=P_world, shape=(2, 4, 5), **options):
        return lambda: distdl.data.Patches(array, P, shape, **options)

    def gone():
        raise FileNotFoundError("no file x")

    for shape in ((2, 4), (2, 10, 5), (0, 4, 5)):
        raises_everywhere(ValueError, "they need as many dimensions", make(shape=shape))
    raises_everywhere(ValueError, "in a region of shape", make(region=((0, 1),)))
    raises_everywhere(ValueError, "must be at least 0", make(seed=-1))
    raises_everywhere(ValueError, "must be at least 0", make(samples=-1))
    raises_everywhere(ValueError, "stride 0", make(stride=0))
    raises_everywhere(ValueError, "distinct dimensions", make(flip=3))
    raises_everywhere(FileNotFoundError, "no file x", make(gone if last else WHOLE))
    raises_everywhere(TypeError, "P is a int", make(P=3))
    raises_everywhere(ValueError, "at least 5 dimensions", make(P=P_world.create_cartesian_topology_partition([1] * 5)))
    if job.size > 1:
        raises_everywhere(ValueError, "ask for different things", make(seed=int(last)))
        raises_everywhere(ValueError, "ask for different things", make(WHOLE[:, 1:] if last else WHOLE))
    assert len(set(map(str, together(distdl.data.Patches(WHOLE, P_world, (2, 3, 3), samples=1).place(0))))) == 1

"""Blocks that are written into arrays."""

import contextlib
import functools
import itertools

import h5py
import numpy as np
import pytest
import torch
import zarr

import distdl
from support.blocks import grid
from support.ranks import job, raises_everywhere

SHAPE = (5, 4, 3)
BEFORE = np.arange(5 * 4 * 3).reshape(SHAPE)
WHOLE = torch.randn(SHAPE, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 100


@contextlib.contextmanager
def opened(kind, folder, dtype="f8"):
    """The array of one file, as a rank opens it for all to write."""
    path = job.bcast(folder) / kind
    if job.rank == 0:
        if kind == "memmap":
            np.save(path.with_suffix(".npy"), BEFORE.astype(dtype))
        if kind == "zarr":
            zarr.open_array(str(path), mode="w", shape=SHAPE, chunks=(1, 1, 1), dtype=dtype)[:] = BEFORE
        if kind == "h5py":
            with h5py.File(path, "w") as file:
                file.create_dataset("x", data=BEFORE.astype(dtype))
    job.Barrier()
    if kind == "memmap":
        yield np.load(path.with_suffix(".npy"), mmap_mode="r+")
    elif kind == "zarr":
        yield zarr.open_array(str(path), mode="r+")
    elif job.rank > 0:
        yield None
    elif kind == "h5py":
        with h5py.File(path, "r+") as file:
            yield file["x"]
    else:
        yield BEFORE.astype(dtype) if kind == "numpy" else torch.from_numpy(BEFORE.astype(dtype))
    job.Barrier()


def partitions(P_world):
    """Cuts of each dimension, with uneven and empty blocks, and with ranks outside."""
    for shape in ([1, job.size], [1, 1, job.size], [max(1, job.size - 1)], [2, job.size // 2] if job.size > 1 else []):
        yield P_world.create_cartesian_topology_partition(shape)


REGIONS = {
    "all": (None, ()),
    "reversed": (None, (0, -1)),
    "a crop": ((slice(2, 5), (1, -1)), 1),
    "a row": (((4, 5),), ()),
    "nothing": (((3, 3),), ()),
}


@pytest.mark.parametrize("kind", ["memmap", "zarr", "h5py", "numpy", "torch"])
@pytest.mark.parametrize(("region", "flip"), REGIONS.values(), ids=REGIONS)
def test_blocks(P_world, kind, region, flip, tmp_path):
    """The array is the one in which a single process has assigned the whole; the rest of it is not touched."""
    bounds = tuple(slice(*b) if isinstance(b, tuple) else b for b in region or ())
    for P in itertools.islice(partitions(P_world), 1 if kind == "zarr" else None):
        expected = BEFORE.astype("f8")
        whole = WHOLE.numpy()[bounds]
        expected[bounds] = np.flip(whole, flip)
        with opened(kind, tmp_path) as array:
            block = distdl.data.read_block(whole, P).requires_grad_() if P.active else None
            distdl.data.write_block(
                array, P, block, root=None if kind in ("memmap", "zarr") else 0, region=region, flip=flip
            )
            if array is not None:
                np.testing.assert_array_equal(np.asarray(array[:]), expected)


def test_another_rank_writes(P_world):
    """The last worker of a partition in another order writes all blocks."""
    P = P_world.create_partition_inclusive(range(job.size)[::-1])
    array = BEFORE.astype("f4") if job.rank == 0 else None
    distdl.data.write_block(array, P, distdl.data.read_block(WHOLE, P), root=job.size - 1)
    if job.rank == 0:
        np.testing.assert_array_equal(array, WHOLE.numpy().astype("f4"))


@pytest.mark.parametrize("root", [None, 0])
def test_a_number(P_world, root):
    """An array without dimensions."""
    P = grid(P_world, [])
    array = np.zeros(()) if P.active else None
    distdl.data.write_block(array, P, torch.tensor(3.0) if P.active else None, root=root)
    assert not P.active or array == 3


@pytest.mark.ranks(1, 2)
@pytest.mark.parametrize("root", [None, 0])
@pytest.mark.parametrize(
    ("dtype", "target"), [("float64", "i4"), ("bfloat16", "f4"), ("int64", ">f4"), ("bool", "i1"), ("complex64", "c16")]
)
def test_dtypes(P_world, dtype, target, root, tmp_path):
    """The array converts, as NumPy does."""
    whole = WHOLE.to(getattr(torch, dtype)).conj()
    numbers = (whole.float() if dtype == "bfloat16" else whole).resolve_conj().numpy()
    with opened("memmap", tmp_path, target) as array:
        distdl.data.write_block(array, P_world, whole[P_world.slices(SHAPE)], root=root)
        np.testing.assert_array_equal(array, numbers.astype(target))


@pytest.mark.ranks(2, 3)
def test_chunks_across_blocks(P_world, tmp_path):
    """No two ranks write into a chunk: it is refused, or done by one rank."""
    P = P_world.create_cartesian_topology_partition([1, job.size])
    block = distdl.data.read_block(WHOLE, P)
    has_shards = hasattr(zarr, "create_array")  # from zarr 3 on, which needs Python 3.11
    for options in ({"chunks": (5, 3, 1)}, *[{"chunks": (1, 1, 1), "shards": (5, 3, 1)}] * has_shards):
        folder = job.bcast(tmp_path) / f"{len(options)}"
        if job.rank == 0:
            make = zarr.create_array if "shards" in options else functools.partial(zarr.open_array, mode="w")
            make(str(folder), shape=SHAPE, dtype="f8", **options)[:] = BEFORE
        job.Barrier()
        array = zarr.open_array(str(folder), mode="r+")
        raises_everywhere(
            ValueError,
            r"chunks of \[5, 3, 1\], and the blocks 0:2 and 2:[34] of dimension 1",
            lambda array=array: distdl.data.write_block(array, P, block),
        )
        np.testing.assert_array_equal(array[:], BEFORE)
        job.Barrier()
        distdl.data.write_block(array, P, block, root=0)
        np.testing.assert_array_equal(array[:], WHOLE.numpy())
        rows = P_world.create_cartesian_topology_partition([1])
        distdl.data.write_block(array, rows, torch.from_numpy(BEFORE).double() if rows.active else None)
        np.testing.assert_array_equal(array[:], BEFORE)


class Serial:
    """As a dataset of h5py, in a file for one rank, or for many."""

    def __init__(self, driver):
        self.file, self.values, self.shape = self, np.zeros(SHAPE), SHAPE
        self.driver = driver

    def __setitem__(self, key, values):
        self.values[key] = values


@pytest.mark.ranks(2)
def test_parallel_files(P_world):
    block = distdl.data.read_block(WHOLE, P_world)
    refused = Serial("sec2")
    raises_everywhere(ValueError, "driver='sec2'", lambda: distdl.data.write_block(refused, P_world, block))
    parallel = Serial("mpio")
    distdl.data.write_block(parallel, P_world, block)
    np.testing.assert_array_equal(parallel.values[P_world.slices(SHAPE)], block.numpy())


class Full(Serial):
    """The disk is full for the last rank."""

    def __setitem__(self, key, values):
        if job.rank == job.size - 1:
            raise OSError("no space left")


@pytest.mark.ranks(1, 2, 3)
def test_mistakes_are_raised_everywhere(P_world):
    block = distdl.data.read_block(WHOLE, P_world)
    last = job.rank == job.size - 1

    def write(array=BEFORE, P=P_world, block=block, **options):
        return lambda: distdl.data.write_block(array, P, block, **options)

    raises_everywhere(OSError, "no space left", write(Full("mpio")))
    raises_everywhere(OSError, "no space left", write(Full("mpio") if last else None, root=job.size - 1))
    raises_everywhere(TypeError, "array is a NoneType", write(None if last else BEFORE))
    raises_everywhere(TypeError, "block is a list", write(block=[] if last else block))
    raises_everywhere(ValueError, "root=3 is not a worker", write(root=3))
    raises_everywhere(
        ValueError, f"the block on rank {job.size - 1} has shape", write(block=block[:1, :1, :1] if last else block)
    )
    raises_everywhere(ValueError, "region has 4 dimensions", write(region=[None] * 4))
    raises_everywhere(TypeError, "P is a int", write(P=3))
    raises_everywhere(TypeError, "unexpected keyword", write(**({"nonsense": 1} if last else {})))
    deep = P_world.create_cartesian_topology_partition([1, 1, 1, job.size])
    raises_everywhere(ValueError, "at least 4 dimensions", write(P=deep))
    if job.size > 1:
        raises_everywhere(ValueError, "arrays of the shapes", write(BEFORE[:3] if last else BEFORE))
        raises_everywhere(ValueError, "ask for different things", write(root=0 if last else None))

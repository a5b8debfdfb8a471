"""Blocks of arrays that are read from files."""

import warnings

import h5py
import numpy as np
import pytest
import torch
import zarr

import distdl
from support.ranks import job, raises_everywhere, together

WHOLE = np.arange(7 * 5 * 3, dtype=">f4").reshape(7, 5, 3)  # not in the machine's order of bytes

KINDS = ["numpy", "torch", "memmap", "h5py", "zarr"]


def stored(kind, folder):
    """The array, as each rank opens it."""
    if kind == "numpy":
        return WHOLE
    if kind == "torch":
        return torch.from_numpy(WHOLE.astype("f4"))
    path = folder / f"{kind}-{job.rank}"
    if kind == "memmap":
        np.save(path.with_suffix(".npy"), WHOLE)
        return np.load(path.with_suffix(".npy"), mmap_mode="r")
    if kind == "h5py":
        return h5py.File(path, "w").create_dataset("x", data=WHOLE)
    array = zarr.open_array(str(path), mode="w", shape=WHOLE.shape, chunks=(7, 5, 3), dtype="f4")
    array[:] = WHOLE
    return array


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("halo", [0, (2, 0, (1, 3))], ids=["no halo", "halo"])
@pytest.mark.ranks(1, 3)
@pytest.mark.filterwarnings("ignore:read_block")
def test_blocks(P_world, kind, halo, tmp_path):
    """Blocks of some dimensions, with the halo that there is, on all ranks but the last one."""
    P = P_world.create_cartesian_topology_partition([max(1, job.size - 1), 1])
    block = distdl.data.read_block(stored(kind, tmp_path), P, halo)
    assert block.dtype == torch.float32
    assert block.is_contiguous()
    block += 0  # it can be written
    if not P.active:
        assert block.shape == (0, 0, 0)
        return
    rows = P.slices(WHOLE.shape)[0]
    start, stop = (rows.start, rows.stop) if halo == 0 else (max(0, rows.start - 2), min(7, rows.stop + 2))
    np.testing.assert_array_equal(block.numpy(), WHOLE[start:stop])


REGIONS = {
    "all, reversed": (None, (0, -1)),
    "slices": ((slice(2, 6), slice(None), slice(-2, None)), ()),
    "pairs": (((1, 7), (4, 9)), 0),
    "reversed": (((1, None), None, (0, 2)), (2, 0)),
    "a row": ((slice(3, 4),), 1),
    "nothing": (((5, 2),), (0, 1)),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("halo", [0, (2, 0, (1, 3))], ids=["no halo", "halo"])
@pytest.mark.filterwarnings("ignore:read_block")
def test_regions(P_world, kind, halo, tmp_path):
    """A block of a region is the block of the array that NumPy cuts out and reverses; some blocks are empty."""
    array = stored(kind, tmp_path)
    for shape in ([job.size], [1, job.size], [1, 1, job.size], [2, job.size // 2] if job.size > 1 else [1]):
        P = P_world.create_cartesian_topology_partition(shape)
        for region, flip in REGIONS.values():
            cut = tuple(slice(*b) if isinstance(b, tuple) else b or slice(None) for b in region or ())
            expected = distdl.data.read_block(np.flip(WHOLE[cut], flip), P, halo)
            block = distdl.data.read_block(array, P, halo, region=region, flip=flip)
            assert torch.equal(block, expected)
            assert block.is_contiguous()


@pytest.mark.ranks(1, 2)
def test_arguments_that_do_not_fit(P_world):
    def read(**options):
        return lambda: distdl.data.read_block(WHOLE, P_world, **options)

    raises_everywhere(ValueError, "region has 4 dimensions", read(region=[None] * 4))
    raises_everywhere(ValueError, "a region has no steps", read(region=(slice(None, None, -1),)))
    raises_everywhere(ValueError, "a region has no steps", read(region=(slice(0, 7, 2),)))
    for bounds in (3, (1, 2, 3)):
        raises_everywhere(TypeError, "it has to hold slices, pairs", read(region=(bounds,)))
    for flip in (3, (0, -3), -4):
        raises_everywhere(ValueError, "distinct dimensions of an array of 3 dimensions", read(flip=flip))
    for P in ([1, 1, 1], P_world.comm):
        raises_everywhere(
            TypeError, f"P is a {type(P).__name__}; it has to be", lambda P=P: distdl.data.read_block(WHOLE, P)
        )
    raises_everywhere(TypeError, "array is a list", lambda: distdl.data.read_block(WHOLE.tolist(), P_world))


@pytest.mark.ranks(1, 3)
def test_a_block_is_no_part_of_the_array(P_world):
    array = np.zeros((4, 4), dtype=np.int64)
    distdl.data.read_block(array, P_world).fill_(1)
    assert not array.any()


def test_slices_cover_the_tensor_once(P_world):
    """Uneven blocks, empty blocks, dimensions behind those of the partition."""
    P = P_world.create_cartesian_topology_partition([1, job.size])
    for shape in ([2, 7], [2, 1], [3, 5, 2], [0, 4]):
        whole = torch.zeros(shape)
        for slices in together(P.slices(shape)):
            whole[slices] += 1
        assert (whole == 1).all()
    with pytest.raises(ValueError, match=r"slices: a tensor of shape \[3\] .*at least 2 dimensions"):
        P.slices([3])


def test_slices_outside_of_a_partition_are_empty(P_world):
    P = P_world.create_partition_inclusive([0])
    assert P.active or P.slices([3, 2]) == (slice(0, 0), slice(0, 0))
    assert torch.ones(3, 2)[P.slices([3, 2])].numel() == (6 if job.rank == 0 else 0)


@pytest.mark.ranks(2)
def test_chunks_across_blocks(P_world, tmp_path):
    """Whole rows as chunks, read in columns by two ranks: everything twice; the first rank says so."""
    array = h5py.File(tmp_path / f"{job.rank}.h5", "w").create_dataset("x", shape=(6, 8), chunks=(1, 8), dtype="f4")
    columns = P_world.create_cartesian_topology_partition([1, 2])
    rows = P_world.create_cartesian_topology_partition([2, 1])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        distdl.data.read_block(array, rows)
        distdl.data.read_block(array, rows, region=((0, 2), (3, 5)))  # any rank alone would read whole rows, too
        assert not caught
        distdl.data.read_block(array, columns, region=((0, 2), (3, 5)))
        assert [str(warning.message).count("as the region, in whole chunks, has") for warning in caught] == [1] * (
            job.rank == 0
        )
        caught.clear()
        distdl.data.read_block(array, columns)
    assert [str(warning.message).count("read 2.0 times") for warning in caught] == [1] * (job.rank == 0)


@pytest.mark.ranks(1)
@pytest.mark.parametrize("halo", [-1, (1, 2, 3), ((1, -2), 0)], ids=str)
def test_halos_that_do_not_fit(P_world, halo):
    with pytest.raises(ValueError, match="read_block: halo"):
        distdl.data.read_block(np.zeros((3, 3)), P_world, halo)


class Variable:
    """As a variable of netCDF4, whose blocks are masked also where nothing is missing, or only where something is."""

    mask = True

    def __init__(self, values, always=True):
        self.values, self.always, self.shape = values, always, values.shape

    def __getitem__(self, key):
        part = self.values[key]
        return part if self.always or part.mask.any() else part.data


class Quantity(np.ndarray):
    """As an array of pint."""

    units, magnitude = "m", None


class Labelled:
    """As an array of xarray or dask, which is an array when it is asked for it."""

    shape = (4,)

    def __getitem__(self, key):
        return LabelledBlock(np.arange(4.0)[key])


class LabelledBlock:
    def __init__(self, values):
        self.values = values

    def __array__(self, dtype=None, copy=None):
        return self.values


MASKED = np.ma.masked_values(np.array([1.0, 1e36, 3.0, 4.0]), 1e36)


@pytest.mark.ranks(1, 3)
@pytest.mark.parametrize(
    "array", [MASKED, Variable(MASKED), Variable(MASKED, always=False)], ids=["ma", "always", "some"]
)
def test_masked_elements(P_world, array):
    """They are filled on request; otherwise all ranks refuse, also those that would read no masked element."""
    raises_everywhere(TypeError, "pass fill=VALUE", lambda: distdl.data.read_block(array, P_world))
    block = distdl.data.read_block(array, P_world, fill=-1)
    assert torch.equal(block, torch.tensor([1.0, -1, 3, 4], dtype=torch.float64)[P_world.slices([4])])


@pytest.mark.ranks(1, 3)
def test_a_fill_that_the_dtype_does_not_have(P_world):
    array = np.ma.array([1, 2, 3, 4], mask=[1, 0, 0, 0])
    raises_everywhere(TypeError, "fill", lambda: distdl.data.read_block(array, P_world, fill=float("nan")))


REFUSED = {
    "objects": np.array([1, None, 2, 3], dtype=object),
    "dates": np.arange(4).astype("datetime64[D]"),
    "differences of dates": np.arange(4).astype("timedelta64[s]"),
    "texts": np.array(["a", "b", "c", "d"]),
    "records": np.zeros(4, dtype=[("a", "f4")]),
    "long": np.zeros(4, dtype=np.longdouble),
    "quantities": np.zeros(4).view(Quantity),
}


@pytest.mark.ranks(1, 3)
@pytest.mark.parametrize("array", REFUSED.values(), ids=REFUSED)
def test_elements_that_no_tensor_has(P_world, array):
    P = P_world.create_partition_inclusive([0])
    raises_everywhere(TypeError, "read_block: a tensor (cannot have|has no)", lambda: distdl.data.read_block(array, P))


@pytest.mark.ranks(1, 3)
def test_what_becomes_an_array(P_world):
    block = distdl.data.read_block(Labelled(), P_world)
    assert torch.equal(block, torch.arange(4.0, dtype=torch.float64)[P_world.slices([4])])
    for dtype in (">i2", ">u8", ">c16", "<f2", "?"):
        values = np.array([0, 1, 0, 1]).astype(dtype)
        block = distdl.data.read_block(values, P_world)
        np.testing.assert_array_equal(block.numpy(), values[P_world.slices([4])])

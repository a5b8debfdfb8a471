"""Shuffles, flattening and unflattening on any blocks and any partitions: they only copy elements, bit for bit."""

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

import distdl
import distdl.nn as dnn
from support.blocks import OUTPUT_BLOCKS, assemble, block_of, blocks_of, grid, grid_shapes, spatial_sizes
from support.ranks import draws, job, on_all_ranks, raises_everywhere
from support.tensors import ALL_DTYPES, same_bits, values
from support.twins import assert_equals_twin


def split(draw, P_world, shape):
    """A partition for a tensor of this shape, and the sizes of its blocks."""
    workers = draw(st.sampled_from(grid_shapes(len(shape), job.size)))
    return grid(P_world, workers, ranks_for(draw, workers)), draw(blocks_of(shape, workers))


def ranks_for(draw, workers):
    """Any ranks of the job."""
    return draw(st.permutations(range(job.size)))[: torch.Size(workers).numel()]


def further(draw, P_world, dims):
    """A partition of the result, which need not have anything to do with the input's; None for the layer's."""
    if draw(st.booleans()):
        return None
    workers = draw(st.sampled_from(grid_shapes(dims, job.size)))
    return grid(P_world, workers, ranks_for(draw, workers))


def kept(P_x, P_y, sizes, pairs):
    """The sizes of the result's blocks in dimensions that stay as they are, by pairs of them."""
    return {e: sizes[d] if P_x.shape[d] == P_y.shape[e] else None for d, e in pairs}


@draws(150)
@given(data=st.data())
@on_all_ranks
def test_flatten(P_world, data):
    shape = data.draw(st.lists(st.integers(0, 4), min_size=1, max_size=4))
    P_x, sizes = split(data.draw, P_world, shape)
    first = data.draw(st.integers(0, len(shape) - 1))
    last = data.draw(st.integers(first, len(shape) - 1))
    gone = last - first
    layer = dnn.DistributedFlatten(P_x, first, last - len(shape), P_y=further(data.draw, P_world, len(shape) - gone))
    pairs = [(d, d if d <= first else d - gone) for d in range(len(shape)) if gone == 0 or not first <= d <= last]
    stay = kept(P_x, layer.P_y, sizes, pairs)
    y_sizes = [stay.get(e) for e in range(len(shape) - gone)]
    assert_equals_twin(
        layer, torch.nn.Flatten(first, last), values(shape), P_x, layer.P_y, sizes=sizes, y_sizes=y_sizes
    )


@draws(150)
@given(data=st.data())
@on_all_ranks
def test_unflatten(P_world, data):
    new = data.draw(st.lists(st.integers(0, 4), min_size=1, max_size=3))
    before, behind = (data.draw(st.lists(st.integers(0, 3), max_size=1)) for _ in range(2))
    shape = [*before, torch.Size(new).numel(), *behind]
    P_x, sizes = split(data.draw, P_world, shape)
    given_size = list(new)
    if 0 not in new and data.draw(st.booleans()):
        given_size[data.draw(st.integers(0, len(new) - 1))] = -1
    dims = len(before) + len(new) + len(behind)
    d = len(before)
    layer = dnn.DistributedUnflatten(P_x, d, tuple(given_size), P_y=further(data.draw, P_world, dims))
    pairs = [*((e, e) for e in range(d)), *((d + 1 + e, d + len(new) + e) for e in range(len(behind)))]
    stay = kept(P_x, layer.P_y, sizes, pairs)
    y_sizes = [stay.get(e) for e in range(dims)]
    twin = torch.nn.Unflatten(d, tuple(given_size))
    assert_equals_twin(layer, twin, values(shape), P_x, layer.P_y, sizes=sizes, y_sizes=y_sizes)


@draws(150)
@given(data=st.data(), output_blocks=st.sampled_from(OUTPUT_BLOCKS))
@on_all_ranks
def test_pixel_shuffles(P_world, data, output_blocks):
    r, up = data.draw(st.integers(1, 3)), data.draw(st.booleans())
    batch = data.draw(st.sampled_from([[], [2], [1, 2]]))
    channels, *space = (data.draw(st.integers(1, 4)) for _ in range(3))
    shape = [*batch, *([channels * r * r, *space] if up else [channels, *(n * r for n in space)])]
    P_x, sizes = split(data.draw, P_world, shape)
    name = "PixelShuffle" if up else "PixelUnshuffle"
    twin, layer = (getattr(torch.nn, name)(r), getattr(dnn, f"Distributed{name}")(P_x, r, output_blocks=output_blocks))
    x = values(shape)

    def place(d, o, n, m):  # grown where an element comes from, shrunk the middle of a group
        return o * n // m if m >= n else o * (n // m) + (n // m - 1) // 2

    y_sizes = [*sizes[:-3], *spatial_sizes(output_blocks, place, 3, shape, twin(x).shape, P_x.shape, sizes)]
    assert_equals_twin(layer, twin, x, P_x, P_x, sizes=sizes, y_sizes=y_sizes)


@draws(100)
@given(data=st.data())
@on_all_ranks
def test_channel_shuffle(P_world, data):
    groups = data.draw(st.integers(1, 10))
    channels = groups * data.draw(st.integers(1, 3))
    shape = [data.draw(st.integers(0, 2)), channels, *data.draw(st.lists(st.integers(1, 3), min_size=1, max_size=2))]
    P_x, sizes = split(data.draw, P_world, shape)
    layer = dnn.DistributedChannelShuffle(P_x, groups)
    assert_equals_twin(layer, torch.nn.ChannelShuffle(groups), values(shape), P_x, P_x, sizes=sizes, y_sizes=sizes)


def windows(draw):
    """Options of fold and unfold, and a shape of images that they take."""
    each = lambda low, high: tuple(draw(st.integers(low, high)) for _ in range(2))  # noqa: E731
    options = {"kernel_size": each(1, 3), "dilation": each(1, 2), "padding": each(0, 2), "stride": each(1, 3)}
    shape = [*draw(st.sampled_from([[], [1], [3], [0]])), draw(st.integers(1, 3)), *each(1, 7)]
    return options, shape


@draws(200)
@given(data=st.data())
@on_all_ranks
def test_unfold_and_fold(P_world, data):
    """The sums are of integers, and exact."""
    options, shape = windows(data.draw)
    twin, image = torch.nn.Unfold(**options), values(shape)
    try:
        columns = twin(image)
    except RuntimeError:  # no window fits
        assume(False)
    batch = len(shape) - 3
    folds = data.draw(st.booleans())
    x = values(columns.shape) if folds else image
    P_x, sizes = split(data.draw, P_world, x.shape)
    P_y = further(data.draw, P_world, batch + (3 if folds else 2))
    if folds:
        twin = torch.nn.Fold(tuple(shape[-2:]), **options)
        layer = dnn.DistributedFold(P_x, tuple(shape[-2:]), **options, P_y=P_y)
    else:
        layer = dnn.DistributedUnfold(P_x, **options, P_y=P_y)
    stay = kept(P_x, layer.P_y, sizes, [(d, d) for d in range(batch)])
    y_sizes = [stay.get(e) for e in range(layer.P_y.dim)]
    assert_equals_twin(layer, twin, x, P_x, layer.P_y, sizes=sizes, y_sizes=y_sizes)


def test_partitions_of_results(P_world):
    """Without P_y the workers of P_x in another shape, and its device."""
    P_x = grid(P_world, [1, job.size, 1, 1])
    for layer, shape in (
        (dnn.DistributedFlatten(P_x), [1, job.size]),
        (dnn.DistributedFlatten(P_x, 2), [1, job.size, 1]),
        (dnn.DistributedUnflatten(P_x, 1, (1, 3, -1)), [1, 1, job.size, 1, 1, 1]),
        (dnn.DistributedUnfold(P_x, 2), [1, job.size, 1]),
    ):
        assert list(layer.P_y.shape) == shape
        assert list(layer.P_y.ranks) == list(P_x.ranks)
    P_y = grid(P_world, [job.size, 1])
    assert list(dnn.DistributedFlatten(P_x, P_y).P_y.shape) == [job.size, 1]


def test_nothing_travels_where_blocks_stay(P_world):
    """Of balanced channels that the factor divides, of the first of the flattened dimensions, of channels together."""
    P_x, p = grid(P_world, [1, job.size, 1, 1]), job.size
    P_space, rows = grid(P_world, [1, 1, job.size, 1]), [None, None, [2, *[1] * (p - 1)], None]
    calls = [
        (dnn.DistributedPixelShuffle(P_x, 2), [2, 4 * p, 2, 2], None),
        (dnn.DistributedPixelUnshuffle(P_x, 2), [2, p, 2, 2], None),
        (dnn.DistributedFlatten(P_x), [2, 2 * p, 3, 2], None),
        (dnn.DistributedFlatten(P_space), [2, 1, p, 2], None),
        (dnn.DistributedUnflatten(P_x, 1, (p, 2)), [1, 2 * p, 3, 2], None),
        (dnn.DistributedChannelShuffle(P_space, 2), [2, 4, p, 2], None),
        (dnn.DistributedPixelShuffle(P_space, 2, output_blocks="aligned"), [1, 4, p + 1, 1], rows),
    ]
    distdl.reset_comm_stats()
    for layer, shape, sizes in calls:
        layer(block_of(values(shape), layer.P_x, sizes))
    assert all(stats.messages == 0 for name, stats in distdl.comm_stats().items() if "Distributed" in name)


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
def test_dtypes(P_world):
    """All that torch moves."""
    P_x = grid(P_world, [1, job.size, 1])
    for dtype in ALL_DTYPES:
        x = values([4, 3, 6], dtype)
        layer = dnn.DistributedFlatten(P_x, 0, 1)
        assert same_bits(layer(block_of(x, P_x)), block_of(x.flatten(0, 1), layer.P_y))


@pytest.mark.parametrize("dim", [1, 2])
def test_empty_batches_of_pixels(P_world, dim):
    """Of which torch gets the shape of a result or of a gradient wrong."""
    workers = [1, 1, 1, 1]
    workers[dim] = job.size
    P_x = grid(P_world, workers)
    for layer, shape, result in (
        (dnn.DistributedPixelShuffle(P_x, 2), [0, 8, 3, 2], [0, 2, 6, 4]),
        (dnn.DistributedPixelUnshuffle(P_x, 2), [0, 2, 6, 4], [0, 8, 3, 2]),
    ):
        x = block_of(torch.zeros(shape), P_x).requires_grad_()
        y = layer(x)
        assert y.shape == block_of(torch.zeros(result), P_x).shape
        y.sum().backward()
        assert x.grad.shape == x.shape


def test_one_layer_for_many_inputs(P_world):
    """Sizes, blocks, dtype and memory format may change at any time."""
    P_x = grid(P_world, [1, 1, job.size, 1])
    flatten, unfold = dnn.DistributedFlatten(P_x), dnn.DistributedUnfold(P_x, 2)
    for shape, sizes in (([2, 2, 9, 4], None), ([1, 2, 9, 4], None), ([1, 2, 6, 3], [6] + [0] * (job.size - 1))):
        for dtype in (torch.float32, torch.float64):
            x = values(shape, dtype)
            block = block_of(x, P_x, [None, None, sizes, None])
            for layer, expected in ((flatten, x.flatten(1)), (unfold, torch.nn.Unfold(2)(x))):
                for tensor in (block, block.movedim(1, -1).contiguous().movedim(-1, 1)):
                    assert same_bits(assemble(layer(tensor), layer.P_y, expected.shape), expected)


REFUSED = {
    "channels for a factor": (lambda P: dnn.DistributedPixelShuffle(P, 2), [1, 6, 2, 2]),
    "rows for a factor": (lambda P: dnn.DistributedPixelUnshuffle(P, 2), [1, 6, 3, 2]),
    "channels for groups": (lambda P: dnn.DistributedChannelShuffle(P, 4), [1, 6, 3, 2]),
    "sizes": (lambda P: dnn.DistributedUnflatten(P, 1, (4, -1)), [1, 6, 3, 2]),
    "no window": (lambda P: dnn.DistributedUnfold(P, 4), [1, 6, 3, 2]),
    "no channels": (lambda P: dnn.DistributedUnfold(P, 1), [1, 0, 3, 2]),
}


@pytest.mark.parametrize("refused", REFUSED)
def test_what_torch_refuses_raises_on_all(P_world, refused):
    make, shape = REFUSED[refused]
    layer = make(grid(P_world, [1, job.size, 1, 1]))
    raises_everywhere(RuntimeError, "Distributed", lambda: layer(block_of(values(shape), layer.P_x)))


def test_mistakes_raise_on_all(P_world):
    P_x = grid(P_world, [1, job.size, 1])
    raises_everywhere(ValueError, "so must P_y", lambda: dnn.DistributedFlatten(P_x, P_y=P_x))
    raises_everywhere(ValueError, "needs channels", lambda: dnn.DistributedPixelShuffle(grid(P_world, [1, 1]), 2))
    raises_everywhere(ValueError, "needs batch", lambda: dnn.DistributedChannelShuffle(grid(P_world, [1, 1]), 2))
    raises_everywhere(ValueError, "needs 3 dimensions", lambda: dnn.DistributedUnfold(grid(P_world, [1, 1]), 2))
    fold = dnn.DistributedFold(P_x, 3, 2)
    raises_everywhere(RuntimeError, "DistributedFold: ", lambda: fold(block_of(values([1, 4, 5]), P_x)))
    raises_everywhere(RuntimeError, "DistributedFold: ", lambda: fold(block_of(values([1, 3, 4]), P_x)))
    assert fold(block_of(values([1, 4, 4]), P_x)).shape[-2:] in ((3, 3), (0,))

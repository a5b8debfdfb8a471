"""DistributedConv against torch.nn.Conv in one, two and three dimensions."""

from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import distdl.nn as dnn
from distdl.nn.conv import halo as conv_halo
from support.blocks import OUTPUT_BLOCKS, assemble, block_of, blocks_of, grid, grid_shapes, spatial_sizes
from support.convolutions import place_of
from support.ranks import job, on_all_ranks, raises_everywhere
from support.tensors import fill_with_integers, values
from support.twins import assert_equals_twin

every_dimension = pytest.mark.parametrize("dims", [1, 2, 3])


def conv(dims, kind="Conv"):
    """The sequential and the distributed layer."""
    return getattr(torch.nn, f"Conv{dims}d"), getattr(dnn, f"Distributed{kind}{dims}d")


def owners(P_x, layer):
    """Where the parameters live: on worker 0."""
    return [grid(P_x, [1] * parameter.dim(), [0]) for parameter in layer.parameters()]


def assert_like_conv(P_x, dims, x, *arguments, kind="Conv", sizes=None, output_blocks="balanced", **options):
    """Up to the second derivatives. Sums of small integers are exact, in any order.

    Along the batch the blocks stay as they are, along space they come out balanced or aligned.
    """
    sequential, distributed = conv(dims, kind)
    twin = fill_with_integers(sequential(*arguments, dtype=x.dtype, **options))
    layer = distributed(P_x, *arguments, dtype=x.dtype, output_blocks=output_blocks, **options)
    assert [name for name, _ in layer.named_parameters()] == [name for name, _ in twin.named_parameters()]
    named = dict(zip(("in_channels", "out_channels", "kernel_size"), arguments, strict=False)) | options
    space = spatial_sizes(output_blocks, place_of(False, dims, **named), dims, x.shape, twin(x).shape, P_x.shape, sizes)
    y_sizes = [*(sizes or [None] * x.dim())[: -dims - 1], None, *space]
    assert_equals_twin(layer, twin, x, P_x, P_x, owners(P_x, twin), sizes, y_sizes)


@st.composite
def convolutions(draw, dims):
    """Arguments for the layers, the shape of the input and of its partition, and the sizes of its blocks."""

    def one_or_each(options):
        return draw(st.one_of(options, st.tuples(*[options] * dims)))

    groups, padding = draw(st.integers(1, 2)), draw(st.sampled_from([None, None, "same", "valid"]))
    options = {
        "kernel_size": one_or_each(st.integers(1, 4)),
        "stride": 1 if padding == "same" else one_or_each(st.integers(1, 3)),
        "padding": padding or one_or_each(st.integers(0, 3)),
        "dilation": one_or_each(st.integers(1, 2)),
        "groups": groups,
        "bias": draw(st.booleans()),
        "padding_mode": draw(st.sampled_from(["zeros", "zeros", "reflect", "replicate", "circular"])),
    }
    channels = [groups * draw(st.integers(1, 2)) for _ in range(2)]
    batch = draw(st.sampled_from([[], [0], [1], [3]]))
    shape = [*batch, channels[0], *draw(st.lists(st.integers(1, 9), min_size=dims, max_size=dims))]
    workers = draw(st.sampled_from(grid_shapes(len(shape), job.size, fixed=[len(batch)])))
    ranks = draw(st.permutations(range(job.size)))[: torch.Size(workers).numel()]
    return channels, options, shape, workers, ranks, draw(blocks_of(shape, workers))


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths")
@every_dimension
@given(data=st.data())
@on_all_ranks
def test_equals_conv(P_world, dims, data):
    """Any options on any blocks, balanced or not, of space and of the batch: or both layers refuse the input."""
    channels, options, shape, workers, ranks, sizes = data.draw(convolutions(dims))
    P_x, x = grid(P_world, workers, ranks), values(shape)
    kind = data.draw(st.sampled_from(["Conv", "FeatureConv"]))
    sequential, distributed = conv(dims, kind)
    try:
        sequential(*channels, dtype=x.dtype, **options)(x)
    except RuntimeError:
        layer = distributed(P_x, *channels, dtype=x.dtype, **options)
        if P_x.active:
            with pytest.raises(RuntimeError):
                layer(block_of(x, P_x, sizes))
    else:
        with mock.patch.object(conv_halo, "SMALLEST", data.draw(st.sampled_from([0, 0, conv_halo.SMALLEST]))):
            output_blocks = data.draw(st.sampled_from(OUTPUT_BLOCKS))
            assert_like_conv(P_x, dims, x, *channels, kind=kind, sizes=sizes, output_blocks=output_blocks, **options)


WIDE = {
    "zeros": {"padding": "same"},
    "circular": {"padding": "same", "padding_mode": "circular"},
    "reflect": {"padding": "same", "padding_mode": "reflect"},
    "replicate": {"padding": 20, "padding_mode": "replicate"},
    "more outputs than inputs": {"padding": 20},
    "strided": {"padding": 9, "stride": 7},
    "dilated": {"padding": 20, "dilation": 3},
}


@pytest.mark.parametrize("output_blocks", OUTPUT_BLOCKS)
@pytest.mark.parametrize("options", WIDE.values(), ids=WIDE)
def test_windows_wider_than_many_blocks(P_world, options, output_blocks):
    """Halos come from several workers, of which some have one element and others none."""
    P_x = grid(P_world, [1, 1, job.size])
    for sizes in ([1] * job.size, [0] * (job.size - 1) + [8], [5] + [0] * (job.size - 1)):
        x = values([2, 2, sum(sizes)])
        if options.get("padding_mode") in ("circular", "reflect") and sum(sizes) < 4:
            continue  # torch.nn refuses it
        assert_like_conv(P_x, 1, x, 2, 2, 7, sizes=[[2], [2], sizes], output_blocks=output_blocks, **options)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.complex64, torch.complex128], ids=str)
def test_dtypes(P_world, dtype):
    P_x = grid(P_world, [1, 1, job.size])
    assert_like_conv(P_x, 1, values([1, 1, 5], dtype), 1, 2, 2, padding=1)


@every_dimension
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.complex64], ids=str)
def test_same_seed_same_parameters(P_world, dims, dtype):
    """Bit for bit as in torch.nn, and the random numbers that follow are the same too."""
    sequential, distributed = conv(dims)
    P_x = grid(P_world, [1, 1, *[1] * (dims - 1), job.size], reversed(range(job.size)))
    torch.manual_seed(11)
    twin = sequential(4, 6, 3, groups=2, dtype=dtype)
    after = torch.get_rng_state()
    torch.manual_seed(11)
    layer = distributed(P_x, 4, 6, 3, groups=2, dtype=dtype)
    assert torch.equal(torch.get_rng_state(), after)
    for parameter, whole, owner in zip(layer.parameters(), twin.parameters(), owners(P_x, twin), strict=True):
        assert torch.equal(assemble(parameter, owner, whole.shape), whole)
        assert owner.active or parameter.numel() == 0


@every_dimension
def test_one_layer_for_many_inputs(P_world, dims):
    """Batch, extents, blocks and memory format may change at any time."""
    sequential, distributed = conv(dims)
    P_x = grid(P_world, [1, 1, job.size, *[1] * (dims - 1)])
    twin = fill_with_integers(sequential(2, 3, 3, padding=1, dtype=torch.float64))
    layer = distributed(P_x, 2, 3, 3, padding=1, dtype=torch.float64)
    with torch.no_grad():
        for parameter, whole in zip(layer.parameters(), twin.parameters(), strict=True):
            parameter.copy_(whole if job.rank == 0 else whole[:0])
    for shape, sizes in (([2, 2, 9], None), ([1, 2, 9], None), ([1, 2, 6], None), ([1, 2, 6], [6])):
        x = values([*shape, *[4] * (dims - 1)])
        blocks = None if sizes is None else [[1], [2], sizes + [0] * (job.size - 1), *[[4]] * (dims - 1)]
        block = block_of(x, P_x, blocks)
        y = layer(block)
        assert torch.equal(assemble(y, P_x, twin(x).shape), twin(x))
        assert torch.equal(layer(block.movedim(1, -1).contiguous().movedim(-1, 1)), y)


REFUSED = {
    "kernel larger than the input": ({"kernel_size": 6}, lambda x: x, RuntimeError),
    "channels": ({}, lambda x: x[:, :1], RuntimeError),
    "dtype": ({}, lambda x: x.float(), RuntimeError),
    "circular padding that wraps twice": ({"padding": 6, "padding_mode": "circular"}, lambda x: x, RuntimeError),
    "reflected padding that leaves the tensor": (
        {"padding": 5, "padding_mode": "reflect"},
        lambda x: x,
        RuntimeError,
    ),
    "a dtype that torch has no convolution of": ({}, lambda x: x.bool(), RuntimeError),
    "no output channels": ({"out_channels": 0}, lambda x: x, RuntimeError),
    "no elements to replicate": ({"padding": 2, "padding_mode": "replicate"}, lambda x: x[..., :0], RuntimeError),
    "groups that do not divide in_channels": ({"groups": 4}, lambda x: x, ValueError),
    "groups that do not divide out_channels": ({"groups": 2, "out_channels": 3}, lambda x: x, ValueError),
    "no groups": ({"groups": 0}, lambda x: x, ValueError),
    "unknown padding": ({"padding": "full"}, lambda x: x, ValueError),
    "same padding with a stride": ({"padding": "same", "stride": 2}, lambda x: x, ValueError),
    "unknown padding mode": ({"padding_mode": "wrap"}, lambda x: x, ValueError),
    "stride 0": ({"stride": 0}, lambda x: x, RuntimeError),
    "dilation 0": ({"dilation": 0}, lambda x: x, RuntimeError),
    "kernel 0": ({"kernel_size": 0}, lambda x: x, RuntimeError),
    "no elements": ({"padding": 2}, lambda x: x[..., :0], RuntimeError),
    "negative padding": ({"padding": -1}, lambda x: x, RuntimeError),
    "a stride of two dimensions": ({"stride": (1, 1)}, lambda x: x, RuntimeError),
    "a kernel of no dimensions": ({"kernel_size": ()}, lambda x: x, RuntimeError),
}


@pytest.mark.parametrize("refused", REFUSED)
@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
def test_what_torch_refuses_raises_on_all(P_world, refused):
    """The same kind of exception, from the constructor or from the call."""
    options, change, kind = REFUSED[refused]
    options = {"in_channels": 2, "out_channels": 2, "kernel_size": 2, "dtype": torch.float64, **options}
    P_x = grid(P_world, [1, 1, job.size])
    x = change(values([1, 2, 5]))
    with pytest.raises(kind):
        torch.nn.Conv1d(**options)(x)
    raises_everywhere(kind, "DistributedConv1d: ", lambda: dnn.DistributedConv1d(P_x, **options)(block_of(x, P_x)))


def test_mistakes_on_the_last_rank_raise_on_all(P_world):
    last = job.rank == job.size - 1
    P_x = grid(P_world, [1, 1, job.size])
    layer = dnn.DistributedConv1d(P_x, 2, 2, 3, padding=1)
    good = torch.ones(1, 2, 2)
    for bad in (torch.ones(1, 3, 2), torch.ones(1, 2), torch.ones(1, 2, 2, dtype=torch.float64), [1.0]):
        if job.size > 1 or not torch.is_tensor(bad) or bad.dim() != good.dim():
            raises_everywhere(
                (TypeError, ValueError), "DistributedConv1d: ", lambda bad=bad: layer(bad if last else good)
            )
    layer(good)  # and the layer is as good as before
    if job.size > 1:
        raises_everywhere(
            ValueError, "ask for different things", lambda: dnn.DistributedConv1d(P_x, 2, 2, 3 if last else 5)
        )


def test_other_parameters_on_the_owner_raise_on_all(P_world):
    P_x = grid(P_world, [1, 1, job.size])
    layer, x = dnn.DistributedConv1d(P_x, 2, 3, 3, padding=1), torch.ones(1, 2, 2)
    y = layer(x)
    good = layer.weight.data
    if job.rank == 0:
        layer.weight.data = good.double()
    kind, text = (RuntimeError, "but the weight .*float64") if job.size == 1 else (ValueError, "the ranks differ")
    raises_everywhere(kind, text, lambda: layer(x))
    if job.rank == 0:
        layer.weight.data = good.movedim(0, 1)  # as many numbers
    raises_everywhere(ValueError, "meets a weight of shape", lambda: layer(x))
    layer.weight.data = good
    assert torch.equal(layer(x), y)


def test_options_of_any_integer_type(P_world):
    P_x = grid(P_world, [1, 1, 1, job.size])
    kernel = (np.int64(3), np.int64(1))
    layer = dnn.DistributedConv2d(P_x, 1, 1, kernel, padding=(np.int64(1), 0), stride=np.int64(1))
    assert layer.weight.shape == (1 if job.rank == 0 else 0, 1, 3, 1)
    assert layer(torch.ones(1, 1, 4, 2)).shape == (1, 1, 4, 2)
    assert dnn.DistributedConv2d(P_x, 1, 1, 3, stride=[2])(torch.ones(1, 1, 5, 3)).shape[2] == 2
    raises_everywhere(
        TypeError,
        "DistributedConv2d: kernel_size=.*integer",
        lambda: dnn.DistributedConv2d(P_x, 1, 1, 1.5 if job.rank == 0 else 1),
    )


@pytest.mark.parametrize("shape", [[1], [1, 1, 1, 1]], ids=str)
def test_partitions_that_do_not_fit_raise_on_all(P_world, shape):
    P_x = grid(P_world, shape)
    raises_everywhere(ValueError, "spatial dimensions", lambda: dnn.DistributedConv1d(P_x, 2, 2, 3))
    if job.size > 1:
        for channels in ([2, 1], [1, 2, 1]):
            P_x = grid(P_world, channels)
            raises_everywhere(
                ValueError, "channel dimension must be 1", lambda P_x=P_x: dnn.DistributedConv1d(P_x, 2, 2, 3)
            )

"""Convolution over blocks of batch, channels and space at once against torch.nn.Conv."""

import warnings

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import distdl
import distdl.nn as dnn
from support.blocks import OUTPUT_BLOCKS, assemble, block_of, grid
from support.convolutions import Split, assert_like_twin, inputs, splits
from support.ranks import draws, job, on_all_ranks, raises_everywhere
from support.tensors import values

every_dimension = pytest.mark.parametrize("dims", [1, 2, 3])


@st.composite
def convolutions(draw, dims, space=True):
    """A split, the shape of the input and the sizes of its blocks, and arguments for the layers."""
    groups = draw(st.sampled_from([1, 1, 2, 3, 4]))
    channels = [groups * draw(st.integers(1, 3)) for _ in range(2)]
    split = draw(splits(dims, draw(st.booleans()), groups, space))
    mode = draw(st.sampled_from(["zeros", "reflect", "replicate", "circular"]))
    padding = draw(st.one_of(st.integers(0, 3), st.sampled_from(["same", "valid"])))
    options = {
        "kernel_size": draw(st.tuples(*[st.integers(1, 3)] * dims)),
        "stride": 1 if padding == "same" else draw(st.tuples(*[st.integers(1, 3)] * dims)),
        "padding": padding,
        "dilation": draw(st.integers(1, 2)),
        "groups": groups,
        "bias": draw(st.booleans()),
        "padding_mode": mode,
    }
    dtype = draw(st.sampled_from([torch.float64, torch.float64, torch.float32, torch.complex128]))
    return split, *draw(inputs(split, channels[0])), channels, options, dtype


def assert_like_twin_or_refused_by_both(kind, P_world, dims, drawn, output_blocks):
    split, shape, sizes, channels, options, dtype = drawn
    x = values(shape, dtype)
    try:
        getattr(torch.nn, f"Conv{dims}d")(*channels, dtype=dtype, **options)(x)
    except RuntimeError:
        P_x, P_y, P_w = split.of(P_world)
        layer = getattr(dnn, f"Distributed{kind}{dims}d")(P_x, P_y, P_w, *channels, dtype=dtype, **options)
        if P_x.active or P_y.active or P_w.active:
            with pytest.raises(RuntimeError):
                layer(block_of(x, P_x, sizes))
    else:
        blocks = {"sizes": sizes, "output_blocks": output_blocks}
        assert_like_twin(kind, dims, P_world, split, x, *channels, **blocks, **options)


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths")
@every_dimension
@given(data=st.data())
@on_all_ranks
def test_equals_conv(P_world, dims, data):
    """Any options on any grid and any blocks: or both layers refuse the input."""
    assert_like_twin_or_refused_by_both(
        "GeneralConv", P_world, dims, data.draw(convolutions(dims)), data.draw(st.sampled_from(OUTPUT_BLOCKS))
    )


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths")
@every_dimension
@given(data=st.data())
@on_all_ranks
def test_channels_alone_with_any_options(P_world, dims, data):
    assert_like_twin_or_refused_by_both(
        "ChannelConv",
        P_world,
        dims,
        data.draw(convolutions(dims, space=False)),
        data.draw(st.sampled_from(OUTPUT_BLOCKS)),
    )


@pytest.mark.parametrize("kind", ["ChannelConv", "GeneralConv", "Conv"])
@every_dimension
def test_channels_of_either_side(P_world, dims, kind):
    """Fewer channels than workers among them, and more than one layer on the same partitions."""
    everyone = list(range(job.size))
    for p_out, p_in in ((1, job.size), (job.size, 1), (2, job.size // 2)):
        if p_in == 0:
            continue
        split = Split([1], p_out, p_in, [1] * dims, [everyone, everyone[::-1], everyone], short=True)
        for channels in ((3, 5), (1, 1), (8, 2)):
            x = values([2, channels[0], *[4] * dims])
            assert_like_twin(kind, dims, P_world, split, x, *channels, 3, padding=1)


def test_depthwise(P_world):
    """One channel a group: any balanced blocks of channels are whole groups."""
    everyone = list(range(job.size))
    split = Split([1], job.size, 1, [1], [everyone] * 3, grouped=True)
    assert_like_twin("ChannelConv", 1, P_world, split, values([2, 5, 6]), 5, 5, 3, groups=5)


def test_batches_share_the_weight(P_world):
    """Each worker has a part of the batch, a single worker the weight; its gradient is the sum over the batch."""
    everyone = list(range(job.size))
    split = Split([job.size], 1, 1, [1, 1], [everyone] * 3)
    assert_like_twin("ChannelConv", 2, P_world, split, values([5, 2, 4, 4]), 2, 3, 3)
    assert_like_twin("GeneralConv", 2, P_world, split, values([1, 2, 4, 4]), 2, 3, 3)


def test_partial_sums_round_like_a_sum(P_world):
    """Sums over blocks of channels are in another order than those over all: n terms differ by at most n roundings."""
    everyone = list(range(job.size))
    P_x, P_y, P_w = Split([1], 1, job.size, [1, 1], [everyone] * 3).of(P_world)
    torch.manual_seed(3)
    twin = torch.nn.Conv2d(7, 4, 3, dtype=torch.float64)
    torch.manual_seed(3)
    layer = dnn.DistributedChannelConv2d(P_x, P_y, P_w, 7, 4, 3, dtype=torch.float64)
    x = torch.randn(2, 7, 6, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    together = assemble(layer(block_of(x, P_x)), P_y, twin(x).shape)
    magnitudes = torch.nn.functional.conv2d(x.abs(), twin.weight.abs(), twin.bias.abs())
    assert bool(((together - twin(x)).abs() <= (7 * 9 + 1) * torch.finfo(torch.float64).eps * magnitudes).all())


@every_dimension
def test_same_seed_same_parameters_and_state(P_world, dims):
    """Bit for bit as in torch.nn; they load into the sequential layer and back."""
    everyone = list(range(job.size))
    p_out = 2 if job.size % 2 == 0 else 1
    split = Split([1], p_out, job.size // p_out, [1] * dims, [everyone, everyone, everyone[::-1]], short=True)
    torch.manual_seed(11)
    twin = getattr(torch.nn, f"Conv{dims}d")(5, 3, 3)
    after = torch.get_rng_state()
    torch.manual_seed(11)
    layer = getattr(dnn, f"DistributedGeneralConv{dims}d")(*split.of(P_world), 5, 3, 3)
    assert torch.equal(torch.get_rng_state(), after)
    for parameter, whole, owner in zip(layer.parameters(), twin.parameters(), split.owners(P_world), strict=True):
        assert torch.equal(assemble(parameter, owner, whole.shape), whole)
        assert owner.active or parameter.numel() == 0
    state = distdl.sequential_state_dict(layer)
    if job.rank == 0:
        assert all(torch.equal(state[name], whole) for name, whole in twin.state_dict().items())
        state = {name: 2 * whole for name, whole in state.items()}
    distdl.load_sequential(layer, state)
    for parameter, whole, owner in zip(layer.parameters(), twin.parameters(), split.owners(P_world), strict=True):
        assert torch.equal(assemble(parameter, owner, whole.shape), 2 * whole)


@pytest.mark.parametrize("kind", ["FeatureConv", "ChannelConv", "GeneralConv", "ConvTranspose"])
def test_device_and_dtype(P_world, kind):
    """They are the parameters', also where these have no volume. All ranks have to ask for the same."""
    P_x = grid(P_world, [1, 1, 1], [job.size - 1])
    partitions = [P_x] if kind == "FeatureConv" else [P_x, P_x, P_x]
    make = getattr(dnn, f"Distributed{kind}1d")
    for device in ("cpu", torch.device("cpu"), "meta"):
        for dtype in (torch.float32, torch.bfloat16, torch.complex128):
            layer = make(*partitions, 2, 3, 1, device=device, dtype=dtype)
            assert {parameter.device for parameter in layer.parameters()} == {torch.device(device)}
            assert {parameter.dtype for parameter in layer.parameters()} == {dtype}
    assert make(*partitions, 2, 3, 1).weight.dtype == torch.get_default_dtype()
    if job.size > 1:
        last = job.rank == job.size - 1
        for odd in ({"device": "meta" if last else "cpu"}, {"dtype": torch.float64 if last else torch.float32}):
            raises_everywhere(ValueError, "ask for different things", lambda odd=odd: make(*partitions, 2, 3, 1, **odd))


def test_autocast(P_world):
    """The dtype of the result is autocast's, also of workers without outputs."""
    everyone = list(range(job.size))
    P_x, P_y, P_w = Split([1], job.size, 1, [1], [everyone] * 3).of(P_world)
    layer = dnn.DistributedChannelConv1d(P_x, P_y, P_w, 2, 2, 1)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = layer(block_of(torch.ones(1, 2, 3), P_x))
    assert not P_y.active or y.dtype == torch.bfloat16


@pytest.mark.mpi(min_size=2)
def test_partitions_that_do_not_fit_raise_on_all(P_world):
    P_1, P_in, P_x, P_w = (grid(P_world, shape) for shape in ([1, 1, 1], [1, 2, 1], [1, 1, 2], [1, 2]))
    P_2 = grid(P_world, [2, 1, 1])

    def refused(text, make):
        raises_everywhere(ValueError, text, make)

    refused("must be .batch, p_in", lambda: dnn.DistributedGeneralConv1d(P_in, P_in, P_w, 2, 2, 3))
    refused("must be .batch, p_in", lambda: dnn.DistributedGeneralConv1d(P_1, P_1, P_w, 2, 2, 3))
    refused("must be .batch, p_in", lambda: dnn.DistributedGeneralConv1d(P_2, P_2, grid(P_world, [1, 1]), 2, 2, 3))
    refused("must be .batch, p_in", lambda: dnn.DistributedGeneralConv1d(P_in, P_1, grid(P_world, [2]), 2, 2, 3))
    refused("must be .* with groups", lambda: dnn.DistributedGeneralConv1d(P_in, P_1, P_w, 2, 2, 3, groups=2))
    refused("spatial dimensions", lambda: dnn.DistributedGeneralConv2d(P_in, P_1, P_w, 2, 2, 3))
    refused("all of space must be 1", lambda: dnn.DistributedChannelConv1d(P_x, P_x, grid(P_world, [1, 1, 2]), 2, 2, 3))
    refused("needs three partitions", lambda: dnn.DistributedChannelConv1d(P_1, 2, 2, 3))
    refused("needs three partitions", lambda: dnn.DistributedGeneralConv1d(P_1, 2, 2, 3))
    refused("takes one partition", lambda: dnn.DistributedFeatureConv1d(P_in, P_1, P_w, 2, 2, 3))
    P_out = grid(P_world, [2, 1])
    refused("whole groups", lambda: dnn.DistributedGeneralConv1d(P_in, P_in, P_out, 6, 6, 3, groups=3))
    refused("whole groups", lambda: dnn.DistributedGeneralConv1d(P_in, P_in, P_out, 3, 6, 3, groups=3))
    refused("P_w is not given", lambda: dnn.DistributedConv1d(P_in, P_1, 2, 2, 3))
    refused("P_y is not given", lambda: dnn.DistributedConv1d(P_in, 2, 2, 3, P_w=P_w))
    layer = dnn.DistributedConv1d(P_in, in_channels=2, out_channels=2, kernel_size=1, P_y=P_1, P_w=P_w)
    assert isinstance(dnn.DistributedGeneralConv1d(P_in, P_1, P_w, 2, 2, 1), dnn.DistributedConv1d)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        layer(block_of(torch.ones(1, 2, 3), P_in))


@pytest.mark.mpi(min_size=2)
def test_mistakes_raise_on_all_that_are_in_any_partition(P_world):
    """On P_x, P_y and P_w without a rank in common, as far as there are so many."""
    ranks = [[i % job.size] for i in range(3)]
    split = Split([1], 1, 1, [1], ranks)
    P_x, P_y, P_w = split.of(P_world)
    layer = dnn.DistributedGeneralConv1d(P_x, P_y, P_w, 2, 2, 3)
    involved = P_x.active or P_y.active or P_w.active

    def refused(kind, text, x):
        raises_everywhere(kind, text, lambda: layer(x), involved=involved)

    good = block_of(torch.ones(1, 2, 5), P_x)
    refused(RuntimeError, "expected in_channels=2", block_of(torch.ones(1, 3, 5), P_x))
    refused(RuntimeError, "does not fit", block_of(torch.ones(1, 2, 2), P_x))
    refused(RuntimeError, "but the weight", block_of(torch.ones(1, 2, 5, dtype=torch.float64), P_x))
    refused(TypeError, "has to be a torch.Tensor", [1.0] if P_x.active else good)
    weight = layer.weight.data
    if P_w.active:
        layer.weight.data = weight[:1]
    refused(ValueError, "meets a weight of shape", good)
    layer.weight.data = weight
    y = layer(good)  # and the layer is as good as before
    assert not P_y.active or y.shape == (1, 2, 3)


@pytest.mark.mpi(min_size=3)
@pytest.mark.parametrize("layer", ["conv", "linear"])
def test_what_parameters_ask_for_concerns_ranks_that_have_none(P_world, layer):
    """The workers that share the weight are not all ranks of the layer, which raise all the same."""
    if layer == "conv":
        P_x, P_y, P_w = grid(P_world, [1, 1, 1], [0]), grid(P_world, [1, 1, 1], [2]), grid(P_world, [1, 1, 1, 1], [1])
        conv, x = dnn.DistributedConv1d(P_x, P_y, P_w, 1, 1, 1), block_of(torch.ones(1, 1, 4), P_x)
    else:
        P_x, P_y, P_w = grid(P_world, [1, 1], [0]), grid(P_world, [1, 1], [2]), grid(P_world, [1, 1], [1])
        conv, x = dnn.DistributedLinear(P_x, P_y, P_w, 4, 4), block_of(torch.ones(1, 4), P_x)
    involved = job.rank < 3
    for without in range(3):
        with torch.set_grad_enabled(job.rank != without):
            raises_everywhere(RuntimeError, "gradients are asked for on some ranks", lambda: conv(x), involved=involved)
    if job.rank == 2:
        conv.weight.data = torch.ones(1, 1, 1)
    raises_everywhere(ValueError, "meets a weight of shape", lambda: conv(x), involved=involved)


@pytest.mark.mpi(min_size=6)
@pytest.mark.parametrize("kind", ["GeneralConv", "ConvTranspose"])
def test_everything_is_split_at_once(P_world, kind):
    """As many workers in each direction as there is room for, in jobs that are large enough for that."""
    left, split = job.size, [1, 1, 1, 1, 1]
    for d in (2, 1, 3, 0, 4):  # p_in, p_out, height, batch, width
        split[d] = 2 if left >= 2 else 1
        left //= split[d]
    batch, p_out, p_in, *space = split
    ranks = list(range(job.size))
    grids = Split([batch], p_out, p_in, space, [ranks, ranks[::-1], ranks[1:] + ranks[:1]])
    sizes = [[2, 1][:batch] if batch > 1 else [3], *[None] * 3]
    for output_blocks in OUTPUT_BLOCKS:
        options = {"stride": 2, "padding": 1, "sizes": sizes, "output_blocks": output_blocks}
        assert_like_twin(kind, 2, P_world, grids, values([3, 3, 7, 6]), 3, 5, 3, **options)
    depthwise = Split([1], job.size, 1, [1, 1], [ranks] * 3, grouped=True)
    assert_like_twin(kind, 2, P_world, depthwise, values([1, 7, 4, 4]), 7, 7, 3, groups=7)


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths")
@pytest.mark.mpi(min_size=6)
@draws(24)  # each of them makes communicators of ranks that share few cores
@given(data=st.data())
@on_all_ranks
def test_more_blocks_than_channels_and_rows(P_world, data):
    """Draws as above, on the grids of a larger job."""
    split, shape, sizes, channels, options, dtype = data.draw(convolutions(1))
    x = values(shape, dtype)
    try:
        torch.nn.Conv1d(*channels, dtype=dtype, **options)(x)
    except RuntimeError:
        return
    blocks = {"sizes": sizes, "output_blocks": data.draw(st.sampled_from(OUTPUT_BLOCKS))}
    assert_like_twin("GeneralConv", 1, P_world, split, x, *channels, **blocks, **options)

"""DistributedConvTranspose against torch.nn.ConvTranspose, over blocks of batch, channels and space."""

import contextlib
import copy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import distdl
import distdl.nn as dnn
from support.blocks import OUTPUT_BLOCKS, assemble, block_of, grid
from support.convolutions import Split, assert_like_twin, inputs, splits
from support.ranks import job, on_all_ranks, raises_everywhere, together
from support.tensors import fill_with_integers, values

every_dimension = pytest.mark.parametrize("dims", [1, 2, 3])
everyone = list(range(job.size))


@st.composite
def transposed_convolutions(draw, dims):
    """A split, the shape of the input and the sizes of its blocks, and arguments for the layers."""
    groups = draw(st.sampled_from([1, 1, 2, 3, 4]))
    channels = [groups * draw(st.integers(1, 3)) for _ in range(2)]
    split = draw(splits(dims, draw(st.booleans()), groups))
    options = {
        "kernel_size": draw(st.tuples(*[st.integers(1, 3)] * dims)),
        "stride": draw(st.tuples(*[st.integers(1, 4)] * dims)),
        "padding": draw(st.integers(0, 2)),
        "output_padding": draw(st.integers(0, 2)),
        "dilation": draw(st.integers(1, 3)),
        "groups": groups,
        "bias": draw(st.booleans()),
    }
    dtype = draw(st.sampled_from([torch.float64, torch.float64, torch.float32, torch.complex128]))
    return split, *draw(inputs(split, channels[0])), channels, options, dtype


@every_dimension
@given(data=st.data())
@on_all_ranks
def test_equals_conv_transpose(P_world, dims, data):
    """Any options on any grid and any blocks: or both layers refuse the input."""
    split, shape, sizes, channels, options, dtype = data.draw(transposed_convolutions(dims))
    x = values(shape, dtype)
    # torch looks at all of this only where the batch is not empty, and not at the size of a result in float32.
    checked = values([1, *shape[-dims - 1 :]])
    twin = getattr(torch.nn, f"ConvTranspose{dims}d")(*channels, dtype=checked.dtype, **options)
    try:
        twin(checked)
    except RuntimeError:
        if x.numel() == 0:
            with contextlib.suppress(RuntimeError):
                twin(x.to(checked.dtype))
                return  # test_an_empty_batch_with_output_padding, or a result without elements
        P_x, P_y, P_w = split.of(P_world)
        layer = getattr(dnn, f"DistributedConvTranspose{dims}d")(P_x, P_y, P_w, *channels, dtype=dtype, **options)
        if P_x.active or P_y.active or P_w.active:
            with pytest.raises(RuntimeError):
                layer(block_of(x, P_x, sizes))
    else:
        options["output_blocks"] = data.draw(st.sampled_from(OUTPUT_BLOCKS))
        assert_like_twin("ConvTranspose", dims, P_world, split, x, *channels, sizes=sizes, **options)


WIDE = {
    "wide kernel": {"kernel_size": 9, "padding": 2},
    "long stride": {"kernel_size": 2, "stride": 7, "output_padding": 6},
    "dilated": {"kernel_size": 3, "dilation": 5, "stride": 2, "output_padding": 4},
    "outputs between inputs": {"kernel_size": 1, "stride": 5, "output_padding": 3},
    "almost all is cut away": {"kernel_size": 3, "padding": 3},
}


@pytest.mark.parametrize("output_blocks", OUTPUT_BLOCKS)
@pytest.mark.parametrize("options", WIDE.values(), ids=WIDE)
def test_outputs_from_many_blocks_or_none(P_world, options, output_blocks):
    """Inputs come from several workers, of which some have one element and others none; some outputs are bias alone."""
    for sizes in ([2] * job.size, [0] * (job.size - 1) + [8], [5] + [0] * (job.size - 1)):
        if sum(sizes) < 5 and options["kernel_size"] == 3 and "dilation" not in options:
            continue  # nothing is left, and torch.nn refuses it
        split = Split([1], 1, 1, [job.size], [everyone] * 3)
        x = values([2, 2, sum(sizes)])
        blocks = {"sizes": [[2], [2], sizes], "output_blocks": output_blocks}
        assert_like_twin("ConvTranspose", 1, P_world, split, x, 2, 2, **blocks, **options)


def test_fractions_are_equal_bit_by_bit(P_world):
    """Along space each output is a sum of the same terms in the same order, whichever worker computes it."""
    P_x = grid(P_world, [1, 1, job.size])
    torch.manual_seed(5)
    twin = torch.nn.ConvTranspose1d(1, 1, 3, stride=2, dtype=torch.float64)
    torch.manual_seed(5)
    layer = dnn.DistributedConvTranspose1d(P_x, 1, 1, 3, stride=2, dtype=torch.float64)
    x = torch.randn(1, 1, 9, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    assert torch.equal(assemble(layer(block_of(x, P_x)), P_x, twin(x).shape), twin(x))


@every_dimension
def test_output_size(P_world, dims):
    """Given at the call, in any of torch's forms; it may change from call to call."""
    P_x = grid(P_world, [1, 1, job.size, *[1] * (dims - 1)])
    twin = fill_with_integers(getattr(torch.nn, f"ConvTranspose{dims}d")(2, 3, 3, stride=3, padding=1))
    layer = getattr(dnn, f"DistributedConvTranspose{dims}d")(P_x, 2, 3, 3, stride=3, padding=1)
    distdl.load_sequential(layer, twin.state_dict())
    x = values([2, 2, *[5] * dims], torch.float32)
    for size in ([13] * dims, [15] * dims, torch.Size([2, 3, *[14] * dims]), None, [13] * dims):
        expected = twin(x, output_size=None if size is None else list(size))
        y = layer(block_of(x, P_x), output_size=size)
        assert torch.equal(assemble(y, P_x, expected.shape), expected)
    for size in ([12] * dims, [16] * dims, [13] * (dims + 1)):
        with pytest.raises(ValueError, match="output"):
            twin(x, output_size=size)
        raises_everywhere(
            ValueError, "DistributedConvTranspose.*output", lambda size=size: layer(block_of(x, P_x), output_size=size)
        )
    if job.size > 1:
        size = [13 if job.rank == 0 else 14] * dims
        raises_everywhere(ValueError, "the ranks differ", lambda: layer(block_of(x, P_x), output_size=size))
    assert torch.equal(assemble(layer(block_of(x, P_x)), P_x, twin(x).shape), twin(x))


@every_dimension
@pytest.mark.parametrize(("bias", "stride"), [(False, 3), (True, 3), (True, 1)])
def test_an_empty_batch_with_output_padding(P_world, dims, bias, stride):
    """Which torch takes, even of more than the stride, with gradients of zero."""
    options = {"stride": stride, "padding": 1, "output_padding": 2, "bias": bias}
    P_x = grid(P_world, [1, 1, job.size, *[1] * (dims - 1)])
    twin = getattr(torch.nn, f"ConvTranspose{dims}d")(2, 3, 3, **options)
    layer = getattr(dnn, f"DistributedConvTranspose{dims}d")(P_x, 2, 3, 3, **options)
    x = torch.empty(0, 2, *[5] * dims)
    expected, y = twin(x), layer(block_of(x, P_x).requires_grad_())
    y.sum().backward()
    shapes = together(list(y.shape))
    assert [*shapes[0][:2], sum(shape[2] for shape in shapes), *shapes[0][3:]] == list(expected.shape)
    assert not any(parameter.grad.any() for parameter in layer.parameters())


@every_dimension
@pytest.mark.parametrize("options", [(1, 1, 2), (3, 2, 2), (2, 1, 1)], ids=str)
def test_an_empty_batch_without_outputs(P_world, dims, options):
    """Which torch takes in every dtype; of other batches it depends on the dtype, and all are refused."""
    kernel_size, padding, size = options
    twin = getattr(torch.nn, f"ConvTranspose{dims}d")(2, 3, kernel_size, padding=padding)
    P_x = grid(P_world, [1, 1, min(size, job.size), *[1] * (dims - 1)])
    layer = getattr(dnn, f"DistributedConvTranspose{dims}d")(P_x, 2, 3, kernel_size, padding=padding)
    x = torch.empty(0, 2, *[size] * dims)
    y = layer(block_of(x, P_x).requires_grad_())
    y.sum().backward()
    assert all(together(not P_x.active or y.shape == twin(x).shape))
    assert not any(parameter.grad.any() for parameter in layer.parameters())
    full = torch.ones(2, 2, *[size] * dims)
    outcomes = together(_raised(lambda: layer(block_of(full, P_x))) if P_x.active else None)
    assert all("leave 0 outputs" in outcome for outcome in outcomes if outcome is not None)
    outcomes = together(_raised(lambda: layer(block_of(x[:, :, :0], P_x))) if P_x.active else None)
    assert all("only the batch may be" in outcome for outcome in outcomes if outcome is not None)


def _raised(action):
    with pytest.raises(RuntimeError) as raised:
        action()
    return str(raised.value)


@pytest.mark.parametrize("kind", ["Conv1d", "ConvTranspose1d"])
def test_a_copy_goes_its_own_way(P_world, kind):
    """After a call too, and with inputs of other shapes than the original's."""
    P_x = grid(P_world, [1, 1, job.size])
    layer = getattr(dnn, f"Distributed{kind}")(P_x, 2, 2, 3)
    twin = getattr(torch.nn, kind)(2, 2, 3)
    distdl.load_sequential(layer, fill_with_integers(twin).state_dict())
    small, large = values([1, 2, 5], torch.float32), values([2, 2, 9], torch.float32)
    layer(block_of(small, P_x))
    other = copy.deepcopy(layer)
    for module, x in ((layer, large), (other, small), (layer, large), (other, large), (layer, small)):
        assert torch.equal(assemble(module(block_of(x, P_x)), P_x, twin(x).shape), twin(x))


@every_dimension
def test_same_seed_same_parameters_and_state(P_world, dims):
    """Bit for bit as in torch.nn; they load into the sequential layer."""
    p_out = 2 if job.size % 2 == 0 else 1
    for groups in (1, 2):
        p_in = job.size // p_out if groups == 1 else 1
        split = Split([1], p_out, p_in, [1] * dims, [everyone] * 3, grouped=groups > 1)
        torch.manual_seed(11)
        twin = getattr(torch.nn, f"ConvTranspose{dims}d")(4, 6, 3, groups=groups)
        after = torch.get_rng_state()
        torch.manual_seed(11)
        layer = getattr(dnn, f"DistributedConvTranspose{dims}d")(*split.of(P_world), 4, 6, 3, groups=groups)
        assert torch.equal(torch.get_rng_state(), after)
        owners = split.owners(P_world, transposed=True)
        for parameter, whole, owner in zip(layer.parameters(), twin.parameters(), owners, strict=True):
            assert torch.equal(assemble(parameter, owner, whole.shape), whole)
        state = distdl.sequential_state_dict(layer)
        if job.rank == 0:
            assert all(torch.equal(state[name], whole) for name, whole in twin.state_dict().items())


REFUSED = {
    "channels": ({}, lambda x: x[:, :1], RuntimeError),
    "dtype": ({}, lambda x: x.float(), RuntimeError),
    "output padding as large as the stride": ({"output_padding": 2, "stride": 2}, lambda x: x, RuntimeError),
    "nothing is left": ({"padding": 4}, lambda x: x[..., :2], RuntimeError),
    "no elements": ({}, lambda x: x[..., :0], RuntimeError),
    "negative padding": ({"padding": -1}, lambda x: x, RuntimeError),
    "negative output padding": ({"output_padding": -1, "stride": 2}, lambda x: x, RuntimeError),
    "stride 0": ({"stride": 0}, lambda x: x, RuntimeError),
    "dilation 0": ({"dilation": 0}, lambda x: x, RuntimeError),
    "groups that do not divide in_channels": ({"groups": 4}, lambda x: x, ValueError),
    "padding mode": ({"padding_mode": "circular"}, lambda x: x, ValueError),
}


@pytest.mark.parametrize("refused", REFUSED)
def test_what_torch_refuses_raises_on_all(P_world, refused):
    """The same kind of exception, from the constructor or from the call."""
    options, change, kind = REFUSED[refused]
    options = {"in_channels": 2, "out_channels": 2, "kernel_size": 2, "dtype": torch.float64, **options}
    P_x = grid(P_world, [1, 1, job.size])
    x = change(values([1, 2, 5]))
    with pytest.raises(kind):
        torch.nn.ConvTranspose1d(**options)(x)
    raises_everywhere(
        kind,
        "DistributedConvTranspose1d: ",
        lambda: dnn.DistributedConvTranspose1d(P_x, **options)(block_of(x, P_x)),
    )

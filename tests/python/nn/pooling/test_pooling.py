"""DistributedMaxPool, AvgPool and LPPool against torch.nn's, in one, two and three dimensions."""

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

import distdl.nn as dnn
from support.blocks import OUTPUT_BLOCKS, assemble, block_of, grid
from support.poolings import (
    CONTENTS,
    assert_like_twin,
    assert_same_indices,
    one_or_each,
    powers_close,
    refused_by_both,
    split_tensors,
    twins,
)
from support.ranks import job, on_all_ranks, raises_everywhere
from support.tensors import same_bits, values

every_dimension = pytest.mark.parametrize("dims", [1, 2, 3])
every_kind = pytest.mark.parametrize("kind", ["MaxPool", "AvgPool", "LPPool"])


def pool(kind, dims):
    """The sequential and the distributed layer, LPPool's of norm 2."""
    layers = twins(f"{kind}{dims}d")
    if kind != "LPPool":
        return layers
    sequential, distributed = layers
    return (
        lambda *options, **named: sequential(2, *options, **named),
        lambda P_x, *options, **named: distributed(P_x, 2, *options, **named),
    )


@st.composite
def poolings(draw, kind, dims):
    """Options for the layers."""
    # LPPool1d alone refuses a tuple of one kernel size.
    kernel_size = draw(st.integers(1, 5)) if kind == "LPPool" else one_or_each(draw, st.integers(1, 5), dims)
    smallest = min(kernel_size) if isinstance(kernel_size, tuple) else kernel_size
    options = {
        "kernel_size": kernel_size,
        "stride": draw(st.sampled_from([None, 1])) or one_or_each(draw, st.integers(1, 6), dims),
        "ceil_mode": draw(st.booleans()),
    }
    if kind == "LPPool":
        options["norm_type"] = draw(st.sampled_from([1, 2, 3, 0.5, -1, torch.inf, -torch.inf]))
    else:
        options["padding"] = one_or_each(draw, st.sampled_from([0, smallest // 2, (smallest + 1) // 2]), dims)
    if kind == "MaxPool":
        options["dilation"] = one_or_each(draw, st.integers(1, 3), dims)
    if kind == "AvgPool":
        options["count_include_pad"] = draw(st.booleans())
        if dims > 1:
            options["divisor_override"] = draw(st.sampled_from([None, 1, 3, -2]))
    return options


@pytest.mark.parametrize("content", CONTENTS)
@every_dimension
@given(data=st.data())
@on_all_ranks
def test_equals_max_pool(P_world, dims, content, data):
    """Any options on any blocks, balanced or not, of space, channels and batch: or both layers refuse them."""
    options = data.draw(poolings("MaxPool", dims))
    shape, P_x, sizes = data.draw(split_tensors(P_world, dims))
    x = torch.tensor(CONTENTS[content], dtype=torch.float64)[values(shape).long()]
    if refused_by_both(f"MaxPool{dims}d", P_x, x, sizes, options):
        return
    # Where a window of torch.nn's reads nothing but padding, its backward pass writes anywhere.
    assume(not pool("MaxPool", dims)[0](**options)(torch.zeros(shape)).isneginf().any())
    output_blocks = data.draw(st.sampled_from(OUTPUT_BLOCKS))
    assert_like_twin(f"MaxPool{dims}d", P_x, dims, x, sizes, options, output_blocks=output_blocks)
    assert_same_indices(f"MaxPool{dims}d", P_x, dims, x, sizes, output_blocks, **options)


def assume_not_smaller_than_the_kernel(dims, shape, options):
    """AvgPool3d alone refuses inputs smaller than the kernel even where padding or ceil_mode make up for it."""
    if dims == 3:
        kernel = torch.tensor(options["kernel_size"]).expand(dims)
        assume(bool((torch.tensor(shape[-dims:]) >= kernel).all()))


@every_dimension
@given(data=st.data())
@on_all_ranks
def test_equals_avg_pool(P_world, dims, data):
    options = data.draw(poolings("AvgPool", dims))
    shape, P_x, sizes = data.draw(split_tensors(P_world, dims))
    assume_not_smaller_than_the_kernel(dims, shape, options)
    x = torch.randn(shape, dtype=torch.float64, generator=torch.Generator())
    if refused_by_both(f"AvgPool{dims}d", P_x, x, sizes, options):
        return

    def close(result, whole):
        """Gradients are sums of quotients of one sign, one for each window, and added in another order."""
        windows = torch.Size(pool("AvgPool", dims)[0](**options)(x).shape[-dims:]).numel()
        return torch.allclose(result, whole, atol=0, rtol=2 * windows * torch.finfo(x.dtype).eps)

    output_blocks = data.draw(st.sampled_from(OUTPUT_BLOCKS))
    assert_like_twin(
        f"AvgPool{dims}d", P_x, dims, x, sizes, options, equal_derivatives=close, output_blocks=output_blocks
    )


@every_dimension
@given(data=st.data())
@on_all_ranks
def test_equals_lp_pool(P_world, dims, data):
    options = data.draw(poolings("LPPool", dims))
    shape, P_x, sizes = data.draw(split_tensors(P_world, dims))
    assume_not_smaller_than_the_kernel(dims, shape, options)
    x = torch.rand(shape, dtype=torch.float64, generator=torch.Generator()) + 0.5
    if refused_by_both(f"LPPool{dims}d", P_x, x, sizes, options):
        return
    windows = twins(f"LPPool{dims}d")[0](**options)(x).shape[-dims:].numel()

    close = powers_close(windows, x.dtype)
    # Squares and their roots are exactly rounded. Other powers torch computes by one method or another, depending on
    # the place in memory.
    equal = same_bits if options["norm_type"] in (1, 2, torch.inf, -torch.inf) else close
    output_blocks = data.draw(st.sampled_from(OUTPUT_BLOCKS))
    assert_like_twin(f"LPPool{dims}d", P_x, dims, x, sizes, options, equal, close, output_blocks)


@every_dimension
@pytest.mark.parametrize(
    "dtype", [torch.uint8, torch.int8, torch.int32, torch.int64, torch.bfloat16, torch.half], ids=str
)
def test_max_pool_of_other_dtypes(P_world, dims, dtype):
    """The padding is below every number, also below the lowest of the dtype."""
    P_x = grid(P_world, [1, 1, *[1] * (dims - 1), job.size])
    negative = -values([1, 2, *[5] * dims], torch.int64) if dtype != torch.uint8 else values([1, 2, *[5] * dims])
    for x in (negative.to(dtype), torch.zeros_like(negative).sub(128 if dtype == torch.int8 else 0).to(dtype)):
        options = {"kernel_size": 3, "stride": 2, "padding": 1, "dilation": 1 + (dims < 3), "ceil_mode": True}
        assert_same_indices(f"MaxPool{dims}d", P_x, dims, x, **options)


@every_dimension
@pytest.mark.parametrize("dtype", [torch.int64, torch.float32, torch.bfloat16, torch.half], ids=str)
@pytest.mark.parametrize("count_include_pad", [True, False])
def test_avg_pool_of_other_dtypes(P_world, dims, dtype, count_include_pad):
    """Sums of half precision are in single precision; averages of integers are rounded towards zero."""
    sequential, distributed = pool("AvgPool", dims)
    options = {"kernel_size": 3, "stride": 2, "padding": 1, "count_include_pad": count_include_pad}
    P_x = grid(P_world, [1, 1, job.size, *[1] * (dims - 1)])
    x = torch.randn([2, 3, *[7] * dims], generator=torch.Generator()).mul(30000).to(dtype)
    if dims == 3 and dtype in (torch.bfloat16, torch.half):  # which AvgPool3d does not have
        expected = sequential(**options)(x.float()).to(dtype)
    else:
        expected = sequential(**options)(x)
    y = distributed(P_x, **options)(block_of(x, P_x))
    assert y.dtype == dtype
    assert same_bits(assemble(y, P_x, expected.shape), expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.half], ids=str)
@pytest.mark.parametrize("norm_type", [1, 2, torch.inf])
@pytest.mark.parametrize("dims", [1, 2])
def test_lp_pool_in_half_precision(P_world, dims, norm_type, dtype):
    """Each step is rounded where torch.nn rounds it. In 3-d torch has none to compare with."""
    sequential, distributed = twins(f"LPPool{dims}d")
    P_x = grid(P_world, [1, 1, job.size, *[1] * (dims - 1)])
    x = torch.rand([2, 3, *[7] * dims], generator=torch.Generator()).to(dtype)
    expected = sequential(norm_type, 3, 2, ceil_mode=True)(x)
    y = assemble(distributed(P_x, norm_type, 3, 2, ceil_mode=True)(block_of(x, P_x)), P_x, expected.shape)
    assert same_bits(y, expected)


def test_elements_that_no_window_reads(P_world):
    """Their gradient is 0, as torch.nn's is, which is NaN where their power is not a number."""
    P_x = grid(P_world, [1, 1, job.size])
    whole = torch.tensor([[[1.0, 4.0, -1.0, 4.0, -1.0]]])
    x = block_of(whole, P_x).requires_grad_()
    dnn.DistributedLPPool1d(P_x, 1.5, 2)(x).nan_to_num().sum().backward()
    gradient = assemble(x.grad, P_x, whole.shape)
    assert gradient[0, 0, 2].isnan()
    assert gradient[0, 0, 4] == 0


@pytest.mark.parametrize("kind", ["MaxPool", "AvgPool"])
def test_infinities_and_nans_stay_in_their_windows(P_world, kind):
    P_x = grid(P_world, [1, 1, job.size])
    x = torch.tensor([[[1.0, torch.inf, 2.0, -torch.inf, 3.0, torch.nan, 4.0, 5.0, 6.0]]])
    sequential, distributed = pool(kind, 1)
    for sizes in (None, [[1], [1], [0] * (job.size - 1) + [9]]):
        y = distributed(P_x, 2, 1, 1)(block_of(x, P_x, sizes))
        assert same_bits(assemble(y, P_x, [1, 1, 10]), sequential(2, 1, 1)(x))


def test_more_workers_than_channels(P_world):
    """Workers without channels have nothing to do."""
    P_x = grid(P_world, [1, job.size, 1])
    for kind in ("MaxPool", "AvgPool"):
        assert_like_twin(f"{kind}1d", P_x, 1, values([2, 1, 5]), None, {"kernel_size": 2, "padding": 1}, torch.equal)


@pytest.mark.parametrize("kind", ["MaxPool", "AvgPool"])
def test_one_layer_for_many_inputs(P_world, kind):
    """Batch, extents, blocks and memory format may change at any time."""
    sequential, distributed = pool(kind, 2)
    P_x = grid(P_world, [1, 1, job.size, 1])
    twin, layer = sequential(3, 2, 1), distributed(P_x, 3, 2, 1)
    for shape, sizes in (([2, 2, 9, 4], None), ([1, 2, 9, 4], None), ([1, 2, 6, 4], [6] + [0] * (job.size - 1))):
        x = torch.randn(shape, generator=torch.Generator())
        block = block_of(x, P_x, [None, None, sizes, None])
        y = layer(block)
        assert same_bits(assemble(y, P_x, twin(x).shape), twin(x))
        assert same_bits(layer(block.movedim(1, -1).contiguous().movedim(-1, 1)), y)


REFUSED = {
    "kernel larger than the input": {"kernel_size": 6},
    "padding larger than half of the kernel": {"kernel_size": 3, "padding": 2},
    "negative padding": {"kernel_size": 3, "padding": -1},
    "stride 0": {"kernel_size": 3, "stride": 0},
    "kernel 0": {"kernel_size": 0},
    "kernel of three dimensions": {"kernel_size": (2, 2, 2)},
    "padding of no dimensions": {"kernel_size": 2, "padding": ()},
}


@pytest.mark.parametrize("kind", ["MaxPool", "AvgPool"])
@pytest.mark.parametrize("refused", REFUSED)
def test_what_torch_refuses_raises_on_all(P_world, kind, refused):
    sequential, distributed = pool(kind, 2)
    P_x = grid(P_world, [1, 1, job.size, 1])
    x = values([1, 2, 5, 5])
    with pytest.raises(RuntimeError):
        sequential(**REFUSED[refused])(x)
    raises_everywhere(
        RuntimeError, f"Distributed{kind}2d: ", lambda: distributed(P_x, **REFUSED[refused])(block_of(x, P_x))
    )


@pytest.mark.parametrize("kind", ["MaxPool", "AvgPool"])
def test_a_sequence_of_one_stands_for_all_dimensions(P_world, kind):
    P_x, x = grid(P_world, [1, 1, job.size, 1]), values([1, 2, 7, 7])
    options = {"kernel_size": (3,), "stride": [2], "padding": (1,)}
    sequential, distributed = pool(kind, 2)
    expected = sequential(**options)(x)
    assert same_bits(assemble(distributed(P_x, **options)(block_of(x, P_x)), P_x, expected.shape), expected)


def test_divisor_zero_raises_on_all(P_world):
    with pytest.raises(RuntimeError):
        torch.nn.AvgPool2d(2, divisor_override=0)(values([1, 1, 4, 4]))
    P_x = grid(P_world, [1, 1, job.size, 1])
    raises_everywhere(RuntimeError, "divisor", lambda: dnn.DistributedAvgPool2d(P_x, 2, divisor_override=0))


@pytest.mark.parametrize("kind", ["MaxPool", "AvgPool"])
def test_mistakes_on_the_last_rank_raise_on_all(P_world, kind):
    last = job.rank == job.size - 1
    P_x = grid(P_world, [1, 1, job.size])
    _, distributed = pool(kind, 1)
    layer, good = distributed(P_x, 2), torch.ones(1, 2, 2)
    bads = [torch.ones(1, 2), [1.0]]
    if job.size > 1:
        bads += [torch.ones(1, 3, 2), good.double()]
        wrong = {"kernel_size": 3} if last else {"kernel_size": 2}
        raises_everywhere(ValueError, "ask for different things", lambda: distributed(P_x, **wrong))
    for bad in bads:
        raises_everywhere((TypeError, ValueError), f"{kind}1d: ", lambda bad=bad: layer(bad if last else good))
    assert layer(good).numel() == 2  # and the layer is as good as before
    for shape in ([1], [1, 1, 1, 1]):
        P_bad = grid(P_world, shape)
        raises_everywhere(ValueError, "spatial dimensions", lambda P_bad=P_bad: distributed(P_bad, 2))


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("MaxPool2d", {"kernel_size": 3, "stride": 2, "padding": 1}),
        ("AvgPool2d", {"kernel_size": 4, "stride": 4}),
        ("LPPool2d", {"norm_type": 1, "kernel_size": 4, "stride": 2}),
        ("AdaptiveMaxPool2d", {"output_size": (2, 5)}),
        ("AdaptiveAvgPool2d", {"output_size": (8, 4)}),
        ("Upsample", {"size": (17, 5), "mode": "nearest-exact"}),
        ("Upsample", {"scale_factor": (0.5, 2.0), "mode": "bilinear"}),
    ],
    ids=str,
)
@pytest.mark.mpi(min_size=6)
def test_on_a_grid(P_world, name, options):
    """Whole numbers and weights that are powers of two: all sums are exact."""
    P_x = grid(P_world, [1, 1, 3, 2], [5, 3, 1, 0, 2, 4])
    x = values([2, 2, 16, 8])
    for sizes in (None, [None, None, [1, 0, 15], [7, 1]]):
        for output_blocks in OUTPUT_BLOCKS:
            assert_like_twin(name, P_x, 2, x, sizes, options, output_blocks=output_blocks)


@pytest.mark.parametrize("norm_type", [0, "many", None], ids=str)
def test_norms_that_torch_refuses_raise_on_all(P_world, norm_type):
    P_x, x = grid(P_world, [1, 1, job.size]), values([1, 2, 4])
    with pytest.raises((ZeroDivisionError, ValueError, TypeError)) as refused:
        torch.nn.LPPool1d(norm_type, 2)(x)
    raises_everywhere(
        refused.type, "DistributedLPPool1d: norm_type", lambda: dnn.DistributedLPPool1d(P_x, norm_type, 2)
    )

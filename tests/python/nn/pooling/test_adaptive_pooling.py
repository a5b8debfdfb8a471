"""DistributedAdaptiveMaxPool and DistributedAdaptiveAvgPool against torch.nn's, in one, two and three dimensions."""

import contextlib

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from support.blocks import OUTPUT_BLOCKS, assemble, block_of, grid
from support.poolings import (
    CONTENTS,
    assert_like_twin,
    assert_same_indices,
    one_or_each,
    refused_by_both,
    split_tensors,
    twins,
)
from support.ranks import job, on_all_ranks, raises_everywhere
from support.tensors import same_bits, values

every_dimension = pytest.mark.parametrize("dims", [1, 2, 3])
every_kind = pytest.mark.parametrize("kind", ["AdaptiveMaxPool", "AdaptiveAvgPool"])


def output_sizes(draw, dims):
    size = st.integers(1, 12)
    return one_or_each(draw, size if dims == 1 else st.one_of(st.none(), size), dims) or 3


@pytest.mark.parametrize("content", CONTENTS)
@every_dimension
@given(data=st.data())
@on_all_ranks
def test_equals_adaptive_max_pool(P_world, dims, content, data):
    """In every bit: gradients are sums of small whole numbers."""
    name, output_size = f"AdaptiveMaxPool{dims}d", output_sizes(data.draw, dims)
    shape, P_x, sizes = data.draw(split_tensors(P_world, dims))
    x = torch.tensor(CONTENTS[content], dtype=torch.float64)[values(shape).long()]
    if refused_by_both(name, P_x, x, sizes, {"output_size": output_size}):
        return
    output_blocks = data.draw(st.sampled_from(OUTPUT_BLOCKS))
    assert_like_twin(name, P_x, dims, x, sizes, {"output_size": output_size}, output_blocks=output_blocks)
    assert_same_indices(name, P_x, dims, x, sizes, output_blocks, output_size=output_size)


@every_dimension
@given(data=st.data())
@on_all_ranks
def test_equals_adaptive_avg_pool(P_world, dims, data):
    name, output_size = f"AdaptiveAvgPool{dims}d", output_sizes(data.draw, dims)
    dtype = data.draw(st.sampled_from([torch.float32, torch.float64]))
    shape, P_x, sizes = data.draw(split_tensors(P_world, dims))
    x = torch.randn(shape, dtype=dtype, generator=torch.Generator())
    if refused_by_both(name, P_x, x, sizes, {"output_size": output_size}):
        return

    def close(result, whole):
        """Gradients are sums of quotients of one sign, at most one for each output, added in another order; each was
        divided by two or three lengths, in another order."""
        outputs = twins(name)[0](output_size)(x).shape[-dims:].numel()
        return torch.allclose(result, whole, atol=0, rtol=(outputs + 6) * torch.finfo(dtype).eps)

    assert_like_twin(
        name, P_x, dims, x, sizes, {"output_size": output_size}, equal_derivatives=close,
        output_blocks=data.draw(st.sampled_from(OUTPUT_BLOCKS)),
    )  # fmt: skip


@every_dimension
@every_kind
@pytest.mark.parametrize("dtype", [torch.half, torch.bfloat16], ids=str)
@pytest.mark.parametrize("output_size", [1, 3])
def test_half_precision(P_world, dims, kind, dtype, output_size):
    P_x = grid(P_world, [1, 1, job.size, *[1] * (dims - 1)])
    x = torch.randn([2, 3, *[7] * dims], generator=torch.Generator()).to(dtype)
    sequential, distributed = twins(f"{kind}{dims}d")
    expected = sequential(output_size)(x)
    y = assemble(distributed(P_x, output_size)(block_of(x, P_x)), P_x, expected.shape)
    assert y.dtype == dtype
    if kind == "AdaptiveAvgPool" and dims == 3:  # torch.nn's rounds each partial sum, to the dtype
        magnitudes = sequential(output_size)(x.abs().float())
        assert bool(((y.float() - expected.float()).abs() <= 5**3 * torch.finfo(dtype).eps * magnitudes).all())
    else:
        assert same_bits(y, expected)


@every_dimension
@every_kind
@pytest.mark.parametrize("output_blocks", OUTPUT_BLOCKS)
def test_fewer_outputs_than_workers(P_world, kind, dims, output_blocks):
    """Workers without outputs take part in the exchange, of gradients too."""
    P_x = grid(P_world, [1, 1, *[1] * (dims - 1), job.size])
    on_the_last, some_empty = [0] * (job.size - 1) + [6], [3, *[0] * (job.size - 2), 3][: job.size]
    for output_size in (1, job.size - 1):
        for along in (on_the_last, some_empty, None):
            if output_size == 0 or (along and sum(along) != 6):
                continue
            sizes = [*[None] * (dims + 1), along]
            options = {"output_size": output_size}
            # Of whole numbers, means over 6 or fewer elements: one rounding where the product of lengths is divided by.
            equal = same_bits if kind == "AdaptiveMaxPool" else torch.allclose
            x = values([2, 2, *[6] * dims])
            assert_like_twin(f"{kind}{dims}d", P_x, dims, x, sizes, options, equal, equal, output_blocks)


@every_dimension
@every_kind
def test_no_outputs_and_no_batch(P_world, kind, dims):
    P_x = grid(P_world, [1, 1, *[1] * (dims - 1), job.size])
    sequential, distributed = twins(f"{kind}{dims}d")
    for shape, output_size in (([2, 3, *[5] * dims], 0), ([0, 3, *[5] * dims], 2)):
        x = values(shape)
        y = distributed(P_x, output_size)(block_of(x, P_x))
        assert same_bits(assemble(y, P_x, sequential(output_size)(x).shape), sequential(output_size)(x))


def test_one_layer_for_many_inputs(P_world):
    """Batch, extents, blocks and memory format may change at any time."""
    P_x = grid(P_world, [1, 1, job.size, 1])
    for kind in ("AdaptiveMaxPool2d", "AdaptiveAvgPool2d"):
        sequential, distributed = twins(kind)
        twin, layer = sequential((4, None)), distributed(P_x, (4, None))
        for shape, sizes in (([2, 2, 9, 4], None), ([1, 2, 9, 4], None), ([1, 2, 6, 3], [6] + [0] * (job.size - 1))):
            x = torch.randn(shape, generator=torch.Generator())
            block = block_of(x, P_x, [None, None, sizes, None])
            y = layer(block)
            assert same_bits(assemble(y, P_x, twin(x).shape), twin(x))
            assert same_bits(layer(block.movedim(1, -1).contiguous().movedim(-1, 1)), y)


def test_another_default_device(P_world):
    """On one rank: its layer reads its windows where its input is."""
    P_x = grid(P_world, (1, 1, job.size))
    x, layer = block_of(values((1, 2, 5 * job.size)), P_x), twins("AdaptiveMaxPool1d")[1](P_x, 3 * job.size)
    with torch.device("meta") if job.rank == job.size - 1 else contextlib.nullcontext():
        y = layer(x)
    assert same_bits(y, layer(x))


@every_dimension
@every_kind
@pytest.mark.parametrize("output_size", [-1, (2, 2, 2, 2), None, 1.5, (1.5, 1.5, 1.5), (-1, None, None)], ids=str)
def test_output_sizes_that_torch_refuses(P_world, kind, dims, output_size):
    sequential, distributed = twins(f"{kind}{dims}d")
    if isinstance(output_size, tuple):
        output_size = output_size[: dims + (len(output_size) == 4)]
    P_x, x = grid(P_world, [1, 1, job.size, *[1] * (dims - 1)]), torch.ones(1, 2, *[4] * dims)
    with pytest.raises((RuntimeError, TypeError, ValueError)) as refused:
        sequential(output_size)(x)
    raises_everywhere(refused.type, f"Distributed{kind}", lambda: distributed(P_x, output_size)(block_of(x, P_x)))


@every_dimension
@every_kind
def test_inputs_that_torch_refuses(P_world, kind, dims):
    """Also on workers that have nothing to compute."""
    sequential, distributed = twins(f"{kind}{dims}d")
    P_x = grid(P_world, [1, 1, job.size, *[1] * (dims - 1)])
    layer = distributed(P_x, 2)
    for x in (values([1, 2, *[4] * dims], torch.int64), torch.ones(1, 2, *[4] * (dims - 1), 0)):
        with pytest.raises((NotImplementedError, RuntimeError)) as refused:
            sequential(2)(x)
        raises_everywhere(refused.type, f"Distributed{kind}", lambda x=x: layer(block_of(x, P_x)))
    no_channels = torch.ones(2, 0, *[4] * dims)
    if kind == "AdaptiveMaxPool" or dims == 3:
        with pytest.raises(RuntimeError):
            sequential(2)(no_channels)
        raises_everywhere(RuntimeError, f"Distributed{kind}", lambda: layer(block_of(no_channels, P_x)))
    else:
        y = layer(block_of(no_channels, P_x))
        assert assemble(y, P_x, [2, 0, *[2] * dims]).shape == sequential(2)(no_channels).shape


@every_kind
def test_mistakes_on_the_last_rank_raise_on_all(P_world, kind):
    last = job.rank == job.size - 1
    P_x = grid(P_world, [1, 1, job.size])
    _, distributed = twins(f"{kind}1d")
    layer, good = distributed(P_x, 2), torch.ones(1, 2, 2)
    bads = [torch.ones(1, 2), [1.0]]
    if job.size > 1:
        bads += [torch.ones(1, 3, 2), good.double()]
        wrong = 3 if last else 2
        raises_everywhere(ValueError, "ask for different things", lambda: distributed(P_x, wrong))
        raises_everywhere(TypeError, "output_size=1.5", lambda: distributed(P_x, 1.5 if last else 2))
    for bad in bads:
        raises_everywhere((TypeError, ValueError), f"{kind}1d: ", lambda bad=bad: layer(bad if last else good))
    assert layer(good).numel() == (4 if job.size == 1 else 2 * (job.rank < 2))  # and the layer is as good as before
    for shape in ([1], [1, 1, 1, 1]):
        P_bad = grid(P_world, shape)
        raises_everywhere(ValueError, "spatial dimensions", lambda P_bad=P_bad: distributed(P_bad, 2))

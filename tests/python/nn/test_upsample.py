"""DistributedUpsample and functional.interpolate against torch.nn's, in one, two and three dimensions.

Bit for bit where the result is a copy of inputs, and for mode 'area'. Weighted sums are within the bound that
`rounding` computes.
"""

import functools

import pytest
import torch
import torch.nn.functional as F
from hypothesis import assume, given
from hypothesis import strategies as st

import distdl
import distdl.nn as dnn
from support.blocks import OUTPUT_BLOCKS, assemble, block_of, grid
from support.poolings import assert_like_twin, one_or_each, refused_by_both, split_tensors
from support.ranks import job, on_all_ranks, raises_everywhere
from support.tensors import same_bits, values

every_dimension = pytest.mark.parametrize("dims", [1, 2, 3])
WEIGHTED = {1: ["linear"], 2: ["bilinear", "bicubic"], 3: ["trilinear"]}
BATCHES = ([1, 1], [1, 2], [2, 1], [0, 1], [2, 4])


def resized(draw, dims):
    """Arguments of the layers for a result of less than fifty elements in each dimension."""
    options = {"mode": draw(st.sampled_from(["nearest", "nearest-exact", "area", *2 * WEIGHTED[dims]]))}
    if draw(st.booleans()):
        options["size"] = one_or_each(draw, st.integers(1, 25), dims)
    else:
        factors = st.one_of(st.sampled_from([0.5, 1.0, 1.5, 2.0, 3.0]), st.floats(0.3, 5.0))
        options["scale_factor"] = one_or_each(draw, factors, dims)
        options["recompute_scale_factor"] = draw(st.sampled_from([None, False, True]))
    if options["mode"] in WEIGHTED[dims]:
        options["align_corners"] = draw(st.sampled_from([None, False, True]))
    return options


def rounding(dims, mode, x, y):
    """By how much two ways of adding up weighted sums may differ, relative to the largest element.

    Along each dimension a value is a sum of at most four products. Weights are functions of a coordinate, which is
    rounded to a place among the inputs, of which the slope is at most two; those of bicubic interpolation are
    polynomials whose terms are up to six, and their magnitudes add up to less than one and a half. An element's
    gradient is a sum over the outputs that read it, of which there are no more than there are outputs.
    """
    n, m = max(x.shape[-dims:]), y.shape[-dims:].numel()
    each = 2 * n + 4 + (4 * 6 if mode == "bicubic" else 0)
    largest = 1.5**dims if mode == "bicubic" else 1.0
    return dims * each * largest * torch.finfo(x.dtype).eps, m


@every_dimension
@given(data=st.data())
@on_all_ranks
def test_equals_upsample(P_world, dims, data):
    """Any options on any blocks, balanced or not, of space, channels and batch: or both layers refuse them."""
    options = resized(data.draw, dims)
    shape, P_x, sizes = data.draw(split_tensors(P_world, dims, BATCHES))
    x = torch.randn(
        shape, dtype=data.draw(st.sampled_from([torch.float32, torch.float64])), generator=torch.Generator()
    )
    if refused_by_both("Upsample", P_x, x, sizes, options):
        return
    mode = options["mode"]
    y = torch.nn.Upsample(**options)(x)
    # Of a result as large as the input, torch passes the gradient on as it is, even if a factor made it another tensor.
    assume(mode != "bicubic" or y.shape != x.shape or torch.equal(x, y))
    assume(0 not in y.shape[-dims:])  # an area's factor may leave nothing, which torch does not differentiate
    error, terms = rounding(dims, mode, x, y)

    def close(result, whole, terms=1):
        scale = max(float(whole.abs().max()), float(x.abs().max())) if whole.numel() else 0.0
        return torch.allclose(result, whole, rtol=0, atol=error * terms * scale)

    equal, equal_derivatives = close, functools.partial(close, terms=terms)
    if mode in ("nearest", "nearest-exact"):
        assume(adjoint_of_itself(options, x))
        equal = equal_derivatives = same_bits
    elif mode == "area":
        equal = same_bits
    output_blocks = data.draw(st.sampled_from(OUTPUT_BLOCKS))
    assert_like_twin("Upsample", P_x, dims, x, sizes, options, equal, equal_derivatives, output_blocks)


def adjoint_of_itself(options, x):
    """Whether the gradient of torch.nn's nearest inputs is the gradient of what it computes: it is not for some sizes,
    since backward computes the inputs in another way."""
    places = torch.arange(x.numel(), dtype=x.dtype).view(x.shape).requires_grad_()
    y = torch.nn.Upsample(**options)(places)
    (gradient,) = torch.autograd.grad(y.sum(), places)
    return torch.equal(gradient.flatten().long(), torch.bincount(y.detach().flatten().long(), minlength=x.numel()))


@pytest.mark.parametrize("mode", ["nearest", "nearest-exact"])
def test_nearest_inputs_where_rounding_decides(P_world, mode):
    """All small sizes, in both precisions; more than 128 rows and columns make torch compute in another way."""
    x = {n: torch.arange(1.0, n + 1).view(1, 1, n, 1) for n in (7, 14, 26, 39, 50)}
    P_x = grid(P_world, [1, 1, job.size, 1])
    for dtype in (torch.float32, torch.float64):
        for n in x:
            for kwargs in [{"size": (m, 1)} for m in (3, 22, 44, 46, 61, 77, 131, 150)] + [
                {"scale_factor": (3.7, 1.0)}
            ]:
                whole = x[n].to(dtype)
                expected = F.interpolate(whole, mode=mode, **kwargs)
                y = distdl.functional.interpolate(block_of(whole, P_x), P_x, mode=mode, **kwargs)
                assert same_bits(assemble(y, P_x, expected.shape), expected)


def test_gradients_are_those_of_the_result_where_torch_computes_others(P_world):
    """In double precision 26 elements are resized to 22 by one rule, and their gradient computed by another."""
    whole = torch.arange(26.0, dtype=torch.float64).view(1, 1, 26)
    read = F.interpolate(whole, size=22).flatten().long()
    P_x = grid(P_world, [1, 1, job.size])
    x = block_of(whole, P_x).requires_grad_()
    dnn.DistributedUpsample(P_x, 22)(x).sum().backward()
    assert torch.equal(assemble(x.grad, P_x, whole.shape).flatten().long(), torch.bincount(read, minlength=26))


@every_dimension
@pytest.mark.parametrize("dtype", [torch.half, torch.bfloat16], ids=str)
def test_half_precision(P_world, dims, dtype):
    """torch rounds some of the weights and sums to the dtype, once per dimension or more often; distdl the result."""
    P_x = grid(P_world, [1, 1, job.size, *[1] * (dims - 1)])
    x = torch.rand([2, 3, *[7] * dims], generator=torch.Generator()).to(dtype)
    for mode in ("nearest", "nearest-exact", "area", *WEIGHTED[dims]):
        expected = F.interpolate(x, 11, mode=mode)
        y = distdl.functional.interpolate(block_of(x, P_x), P_x, 11, mode=mode)
        y = assemble(y, P_x, expected.shape)
        assert y.dtype == dtype
        if mode.startswith("nearest"):
            assert same_bits(y, expected)
        else:
            largest = 1.5**2 if mode == "bicubic" else 1.0
            atol = 4 * dims * largest * torch.finfo(dtype).eps
            assert torch.allclose(y.double(), expected.double(), rtol=0, atol=atol)


def test_bytes(P_world):
    """Nearest inputs; torch's weighted sums of bytes, in 2-d, have integer weights, and are refused here."""
    P_x = grid(P_world, [1, 1, job.size, 1])
    x = values([2, 3, 7, 5], torch.int64).to(torch.uint8)
    for mode in ("nearest", "nearest-exact"):
        expected = F.interpolate(x, 9, mode=mode)
        y = distdl.functional.interpolate(block_of(x, P_x), P_x, 9, mode=mode)
        assert same_bits(assemble(y, P_x, expected.shape), expected)
    layer = dnn.DistributedUpsample(P_x, 9, mode="bilinear")
    raises_everywhere(NotImplementedError, "not implemented for torch.uint8", lambda: layer(block_of(x, P_x)))


def test_one_layer_for_many_inputs(P_world):
    """Batch, extents, blocks, dtype and memory format may change at any time."""
    P_x = grid(P_world, [1, 1, job.size, 1])
    twin, layer = torch.nn.Upsample(scale_factor=1.7), dnn.DistributedUpsample(P_x, scale_factor=1.7)
    for shape, sizes in (([2, 2, 9, 4], None), ([1, 2, 9, 4], None), ([1, 2, 6, 3], [6] + [0] * (job.size - 1))):
        for dtype in (torch.float32, torch.float64):
            x = torch.randn(shape, dtype=dtype, generator=torch.Generator())
            block = block_of(x, P_x, [None, None, sizes, None])
            y = layer(block)
            assert same_bits(assemble(y, P_x, twin(x).shape), twin(x))
            assert same_bits(layer(block.movedim(1, -1).contiguous().movedim(-1, 1)), y)


REFUSED = {
    "neither size nor factor": {},
    "both": {"size": 4, "scale_factor": 2},
    "corners of the nearest": {"size": 4, "align_corners": True},
    "corners of areas": {"size": 4, "mode": "area", "align_corners": False},
    "sizes for other dimensions": {"size": (4, 4, 4)},
    "factors for other dimensions": {"scale_factor": (2.0, 2.0, 2.0)},
    "a size to recompute": {"size": 4, "recompute_scale_factor": True},
    "a mode for other dimensions": {"size": 4, "mode": "trilinear"},
    "an unknown mode": {"size": 4, "mode": "quadratic"},
    "sizes that are no integers": {"size": (4.5, 4)},
    "a factor that is no number": {"scale_factor": "twice"},
    "no output": {"size": 0},
    "a factor that leaves no output": {"scale_factor": 0.1},
    "a negative factor": {"scale_factor": -1.0, "mode": "bilinear"},
    "a negative area": {"size": (-1, 2), "mode": "area"},
}


@pytest.mark.parametrize("refused", REFUSED)
def test_what_torch_refuses_raises_on_all(P_world, refused):
    P_x, x = grid(P_world, [1, 1, job.size, 1]), torch.ones(1, 2, 5, 5)
    with pytest.raises((ValueError, TypeError, RuntimeError)) as expected:
        torch.nn.Upsample(**REFUSED[refused])(x)
    raises_everywhere(
        expected.type,
        "DistributedUpsample: ",
        lambda: dnn.DistributedUpsample(P_x, **REFUSED[refused])(block_of(x, P_x)),
    )


def test_inputs_that_torch_refuses(P_world):
    P_x = grid(P_world, [1, 1, job.size, 1])
    for mode in ("nearest", "bilinear", "area"):
        layer = dnn.DistributedUpsample(P_x, 2, mode=mode)
        for x in (values([1, 2, 5, 5], torch.int64), torch.ones(1, 2, 5, 0), torch.ones(1, 0, 5, 5)):
            if mode == "area" and 0 in x.shape[:2]:
                continue
            with pytest.raises((NotImplementedError, RuntimeError)) as expected:
                F.interpolate(x, 2, mode=mode)
            raises_everywhere(expected.type, "DistributedUpsample: ", lambda layer=layer, x=x: layer(block_of(x, P_x)))


def test_antialias_raises_on_all(P_world):
    P_x, x = grid(P_world, [1, 1, job.size, 1]), torch.ones(1, 2, 2, 5)
    smooth = lambda: distdl.functional.interpolate(x, P_x, 4, mode="bilinear", antialias=True)  # noqa: E731
    raises_everywhere(NotImplementedError, "antialias", smooth)


def test_mistakes_on_the_last_rank_raise_on_all(P_world):
    last = job.rank == job.size - 1
    P_x = grid(P_world, [1, 1, job.size])
    layer, good = dnn.DistributedUpsample(P_x, scale_factor=2), torch.ones(1, 2, 2)
    bads = [torch.ones(1, 2), [1.0]]
    if job.size > 1:
        bads += [torch.ones(1, 3, 2), good.double()]
        wrong = {"size": 3} if last else {"size": 4}
        raises_everywhere(ValueError, "ask for different things", lambda: dnn.DistributedUpsample(P_x, **wrong))
    for bad in bads:
        raises_everywhere((TypeError, ValueError), "Upsample: ", lambda bad=bad: layer(bad if last else good))
    assert layer(good).shape == (1, 2, 4)  # and the layer is as good as before
    for shape in ([1], [1, 1], [1, 1, 1, 1, 1, 1]):
        P_bad = grid(P_world, shape)
        raises_everywhere(ValueError, "spatial dimensions", lambda P_bad=P_bad: dnn.DistributedUpsample(P_bad, 2))


def test_a_factor_of_zero(P_world):
    """It counts as none, as in torch.nn, and the message says so."""
    P_x = grid(P_world, (1, 1, 1, job.size))
    match = "scale_factor of 0 counts as none"
    raises_everywhere(ValueError, match, lambda: dnn.DistributedUpsamplingNearest2d(P_x, scale_factor=0.0))

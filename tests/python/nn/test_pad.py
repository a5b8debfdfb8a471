"""DistributedPad against torch.nn.functional.pad: padding only copies elements, so everything is equal bit by bit."""

import contextlib

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

import distdl.nn as dnn
from support.blocks import OUTPUT_BLOCKS, block_of, blocks_of, grid, grid_shapes, spatial_sizes
from support.ranks import draws, job, on_all_ranks, raises_everywhere
from support.tensors import ALL_DTYPES, same_bits, values
from support.twins import assert_equals_twin

MODES = ["constant", "reflect", "replicate", "circular"]


class Pad(torch.nn.Module):
    """The sequential twin."""

    def __init__(self, pad, mode, value):
        super().__init__()
        self.arguments = pad, mode, value

    def forward(self, x):
        return F.pad(x, *self.arguments)


@st.composite
def paddings(draw):
    """Arguments of F.pad, a shape, its partition's shape, and the sizes of its blocks."""
    mode = draw(st.sampled_from(MODES))
    padded = draw(st.integers(1, 3))
    dims = padded + draw(st.integers(1, 2) if mode != "constant" else st.integers(0, 2))
    pad = draw(st.lists(st.integers(-3, 5), min_size=2 * padded, max_size=2 * padded))
    shape = draw(st.lists(st.integers(0 if mode == "constant" else 1, 7), min_size=dims, max_size=dims))
    workers = list(draw(st.sampled_from(grid_shapes(dims, job.size))))
    value = draw(st.sampled_from([None, 2.0])) if mode == "constant" else None
    ranks = draw(st.permutations(range(job.size)))[: torch.Size(workers).numel()]
    return pad, mode, value, shape, workers, ranks, draw(blocks_of(shape, workers))


def wraps_what_is_not_there(shape, pad):
    """Torch then returns memory that it has not written."""
    kept = [n + min(left, 0) + min(right, 0) for n, left, right in zip(shape[::-1], pad[::2], pad[1::2], strict=False)]
    return any(max(left, right) > max(n, 0) for n, left, right in zip(kept, pad[::2], pad[1::2], strict=True))


@draws(300)
@given(paddings(), st.sampled_from(OUTPUT_BLOCKS))
@on_all_ranks
def test_equals_pad(P_world, drawn, output_blocks):
    """In all modes, on any blocks of any dimensions, up to the second derivatives: or both refuse the input."""
    pad, mode, value, shape, workers, ranks, sizes = drawn
    P_x, x = grid(P_world, workers, ranks), values(shape)
    layer = dnn.DistributedPad(P_x, pad, mode, value, output_blocks=output_blocks)
    with contextlib.suppress(RuntimeError):
        y = F.pad(x.clone().requires_grad_(), pad, mode, value)
        try:
            y.sum().backward()
        except RuntimeError:  # of torch 2.9, for what is empty
            return
    try:
        F.pad(x, pad, mode, value)
        refused = mode == "circular" and wraps_what_is_not_there(shape, pad)
    except RuntimeError:
        refused = True
    if refused:
        if P_x.active:
            with pytest.raises(RuntimeError, match="DistributedPad: "):
                layer(block_of(x, P_x, sizes))
        return
    if mode != "constant" and F.pad(x, pad, mode, value).numel() == 0:  # torch's gradient is memory not written then
        block = block_of(x, P_x, sizes).requires_grad_()
        layer(block).sum().backward()
        assert torch.equal(block.grad, torch.zeros_like(block))
        return
    padded = len(pad) // 2
    kept = len(shape) - padded
    in_place = spatial_sizes(
        output_blocks,
        lambda d, o, n, m: o - pad[2 * (padded - 1 - d)],
        padded,
        x.shape,
        F.pad(x, pad, mode, value).shape,
        workers,
        sizes,
    )
    y_sizes = [*sizes[:kept], *in_place]
    assert_equals_twin(layer, Pad(pad, mode, value), x, P_x, P_x, sizes=sizes, y_sizes=y_sizes)


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
@pytest.mark.parametrize("mode", MODES)
def test_dtypes(P_world, mode):
    """All that torch pads; what it does not raises on all ranks what torch raises."""
    P_x = grid(P_world, [1, 1, job.size])
    layer = dnn.DistributedPad(P_x, (3, 2), mode)
    for dtype in ALL_DTYPES:
        x = values([2, 1, 5], dtype)
        try:
            expected = F.pad(x, (3, 2), mode)
        except RuntimeError as error:
            raises_everywhere(type(error), "DistributedPad: ", lambda x=x: layer(block_of(x, P_x)))
        else:
            assert same_bits(layer(block_of(x, P_x)), block_of(expected, P_x))


def test_special_values_travel_as_they_are(P_world):
    """Nothing is computed with what is padded: infinities, NaN and negative zero stay themselves."""
    P_x = grid(P_world, [1, job.size])
    x = torch.tensor([[float("nan"), -0.0, float("inf"), 1.0, -float("inf"), 2.0]])
    for mode in MODES:
        y = dnn.DistributedPad(P_x, (3, 4), mode)(block_of(x, P_x))
        assert same_bits(y, block_of(F.pad(x, (3, 4), mode), P_x))


def test_wider_than_many_blocks(P_world):
    """All of the tensor on the first worker, on the last, or one element on each."""
    P_x = grid(P_world, [1, 1, job.size])
    for sizes in ([1] * job.size, [0] * (job.size - 1) + [6], [6] + [0] * (job.size - 1)):
        n = sum(sizes)
        for mode, pad in (
            ("constant", (17, 9)), ("replicate", (17, 9)), ("reflect", (n - 1, n - 1)), ("circular", (n, n)),
        ):  # fmt: skip
            blocks = [[1], [2], sizes]
            assert_equals_twin(
                dnn.DistributedPad(P_x, pad, mode), Pad(pad, mode, None), values([1, 2, n]), P_x, P_x, sizes=blocks,
                y_sizes=[None] * 3,
            )  # fmt: skip


@pytest.mark.parametrize("output_blocks", OUTPUT_BLOCKS)
@pytest.mark.parametrize("pad", [(-3, 1), (1, -3), (-1, 0), (0, -1), (-2, -1)], ids=str)
def test_blocks_that_are_cut_away(P_world, pad, output_blocks):
    """All of some blocks, from either end; circular padding wraps what is left."""
    P_x = grid(P_world, [1, job.size])
    for sizes in ([4, *[0] * (job.size - 1)], [*[0] * (job.size - 1), 4], [1] * job.size, [3, *[1] * (job.size - 1)]):
        x = values([1, sum(sizes)])
        for mode in ("circular", "constant"):
            if sum(sizes) + min(pad[0], 0) + min(pad[1], 0) < max(*pad, 1):
                continue  # torch.nn refuses it, or has nothing to wrap
            layer = dnn.DistributedPad(P_x, pad, mode, output_blocks=output_blocks)
            twin = Pad(pad, mode, None)
            y_sizes = spatial_sizes(
                output_blocks, lambda d, o, n, m: o - pad[0], 1, x.shape, twin(x).shape, P_x.shape, [None, sizes]
            )
            assert_equals_twin(layer, twin, x, P_x, P_x, sizes=[None, sizes], y_sizes=[None, *y_sizes])


REFUSED = {
    "odd": ([1, 1, 1], "constant", None, RuntimeError),
    "reflect too much": ([5, 0], "reflect", None, RuntimeError),
    "circular too much": ([6, 0], "circular", None, RuntimeError),
    "crop too much": ([-3, -3], "constant", None, RuntimeError),
    "crop all": ([-2, -3], "replicate", None, RuntimeError),
    "unknown mode": ([1, 1], "wrap", None, NotImplementedError),
    "a value that is not used": ([1, 1], "reflect", 1.0, RuntimeError),
    "too many dimensions": ([1] * 8, "constant", None, RuntimeError),
    "dimensions that this mode does not pad": ([1] * 6, "reflect", None, NotImplementedError),
}


@pytest.mark.parametrize("refused", REFUSED)
def test_what_torch_refuses_raises_on_all(P_world, refused):
    pad, mode, value, kind = REFUSED[refused]
    x, P_x = values([2, 1, 5]), grid(P_world, [1, 1, job.size])
    with pytest.raises(kind):
        F.pad(x, pad, mode, value)
    raises_everywhere(kind, "DistributedPad: ", lambda: dnn.DistributedPad(P_x, pad, mode, value)(block_of(x, P_x)))


def test_a_value_that_the_dtype_does_not_have_raises_on_all(P_world):
    """Also where one element alone is padded, on one rank alone."""
    x, P_x = values([2, 1, 5], torch.uint8), grid(P_world, [1, 1, job.size])
    raises_everywhere(
        RuntimeError, "DistributedPad: ", lambda: dnn.DistributedPad(P_x, [1, 0], value=300.0)(block_of(x, P_x))
    )


def test_mistakes_raise_on_all(P_world):
    P_x = grid(P_world, [1, 1, job.size])
    layer = dnn.DistributedPad(P_x, (1, 1))
    raises_everywhere(ValueError, "as many dimensions as the tensor", lambda: layer(values([5, 5])))
    raises_everywhere(TypeError, "integer", lambda: dnn.DistributedPad(P_x, (1.5, 1) if job.rank == 0 else (1, 1)))
    raises_everywhere(TypeError, "iterable", lambda: dnn.DistributedPad(P_x, 1))
    if job.size > 1:
        pad = (1, 1) if job.rank == 0 else (1, 2)
        raises_everywhere(ValueError, "ask for different things", lambda: dnn.DistributedPad(P_x, pad))

"""Every layer beside its sequential twin: on every partition that it takes, in every precision, and with mistakes.

The examples, and what they are, stand in tests/python/support/families.
"""

import dataclasses
import functools
import inspect
import os
import random
import warnings

import pytest
import torch
from hypothesis import given, strategies

import distdl
from support.blocks import grid
from support.families import EXAMPLES, FAMILIES, splits
from support.ranks import draws, job, on_all_ranks, raises_everywhere
from support.sequential import as_tuple, assert_equals_sequential, block, joined_blocks

SAMPLES = {name: number for family in FAMILIES for name, number in getattr(family, "SAMPLES", {}).items()}
DESCRIBED = {name: make for family in FAMILIES for name, make in getattr(family, "described", {}).items()}
# The examples that are drawn: those of a layer alone where DISTDL_LAYER names it.
DRAWN = [example for name, example in EXAMPLES.items() if os.environ.get("DISTDL_LAYER", "").lower() in name.lower()]
every_example = pytest.mark.parametrize("example", EXAMPLES.values(), ids=EXAMPLES)


@pytest.mark.shared
@every_example
def test_equals_the_twin(P_world, example):
    for shape in splits(example):
        assert_equals_sequential(example, grid(P_world, shape))
    if job.size > 1:  # beside ranks that have no part; parameters spread over all workers
        assert_equals_sequential(example, grid(P_world, splits(example, job.size - 1)[-1]), layout="sharded")


@pytest.mark.ranks(2, 3)
@draws(240)
@given(data=strategies.data())
@on_all_ranks
def test_blocks_of_any_sizes(P_world, data):
    example = data.draw(strategies.sampled_from(DRAWN))
    shape = data.draw(strategies.sampled_from(splits(example)))
    extents: dict[int, int] = {}
    for x, cut in zip(example.inputs(), example.cuts, strict=True):
        for n, axis in zip(x.shape, cut, strict=True):
            if axis is not None:
                extents.setdefault(axis, n)

    def along(axis):
        n, p = extents.get(axis, 0), shape[axis]
        cuts = sorted(data.draw(strategies.lists(strategies.integers(0, n), min_size=p - 1, max_size=p - 1)))
        return [stop - start for start, stop in zip([0, *cuts], [*cuts, n], strict=True)]

    sizes = [None if axis in example.balanced or axis not in extents else along(axis) for axis in range(example.dims)]
    assert_equals_sequential(example, grid(P_world, shape), sizes)


def halved(inputs, dtype):
    """In another precision, what is of floating point."""
    return tuple(x.to(dtype) if x.is_floating_point() else x for x in inputs)


@pytest.mark.ranks(2)
@every_example
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_precisions(P_world, example, dtype):
    """The dtypes that torch has; values as near as its own to double precision."""
    twin, inputs = example.twin(), example.inputs()
    exact = [y.detach() for y in as_tuple(twin(*inputs, **example.call))]
    twin = example.twin().to(dtype)
    try:
        expected = as_tuple(twin(*halved(inputs, dtype), **example.call))
    except (RuntimeError, NotImplementedError):  # torch has no kernel
        return
    for shape in splits(example):
        P = grid(P_world, shape)
        layer = example.make(example.twin().to(dtype), P)
        own = [block(x, P, cut) for x, cut in zip(halved(inputs, dtype), example.cuts, strict=True)]
        for y, whole, true, cut in zip(
            as_tuple(layer(*own, **example.call)), expected, exact, example.results, strict=True
        ):
            assert y.dtype == whole.dtype
            if cut is not None:
                y = joined_blocks(y, P, whole.shape, cut, None, example.first_of)
            error, allowed = ((tensor.detach().double() - true).abs().max() for tensor in (y, whole))
            scale = max(1.0, float(true.abs().max()))
            assert error <= 2 * allowed + 8 * torch.finfo(dtype).eps * scale, (error, allowed)


@pytest.mark.ranks(2)
@every_example
def test_autocast(P_world, example):
    """The dtypes that torch.nn gives under autocast."""
    inputs = halved(example.inputs(), torch.float32)
    P = grid(P_world, splits(example)[-1])
    with torch.autocast("cpu", torch.bfloat16):
        try:
            expected = as_tuple(example.twin().float()(*inputs, **example.call))
        except RuntimeError:
            return
        layer = example.make(example.twin().float(), P)
        own = [block(x, P, cut) for x, cut in zip(inputs, example.cuts, strict=True)]
        results = as_tuple(layer(*own, **example.call))
    assert [y.dtype for y in results] == [y.dtype for y in expected]


@pytest.mark.mpi(min_size=2)
@pytest.mark.ranks(2, 3)
@every_example
def test_mistakes_of_one_rank(P_world, example):
    """Another dtype, another number of dimensions, no tensor: the same on all ranks, and a good call works after it."""
    P = grid(P_world, splits(example)[-1])
    layer = example.make(example.twin(), P)
    good = [block(x, P, cut) for x, cut in zip(example.inputs(), example.cuts, strict=True)]
    layer(*good, **example.call)
    for i, x in enumerate(good):
        for wrong in (None, x.to(torch.complex64), x.unsqueeze(0).unsqueeze(0)):
            inputs = [*good[:i], wrong, *good[i + 1 :]] if job.rank == job.size - 1 and P.active else good
            raises_everywhere(Exception, ".", lambda inputs=inputs: layer(*inputs, **example.call), seconds=5.0)
            layer(*good, **example.call)


@pytest.mark.ranks(3)
@every_example
def test_first_values(P_world, example):
    """With the same seed the parameters are the twin's."""
    if example.layer is not None or not list(example.twin().parameters()):
        return
    torch.manual_seed(3)
    kind = type(example.twin())
    layer = example.layer_class(example.twin())
    options = {**layer.options_of(example.twin()), **example.options}
    torch.manual_seed(3)
    made = layer(grid(P_world, splits(example)[-1]), **options)
    torch.manual_seed(3)
    twin = kind(**{name: options[name] for name in inspect.signature(kind).parameters if name in options})
    state = distdl.sequential_state_dict(made)
    if state:
        for name, value in twin.state_dict().items():
            assert torch.equal(state[name], value), name


@functools.cache
def module_infos():
    """torch's infos of modules, by name. Imported here, since large jobs, which do not run these tests, would wait."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torch.testing._internal.common_modules import module_db

    return {info.module_cls.__name__: info for info in module_db}


# Of hundreds of samples, or of slow samples, each so many-th is run, from a drawn number on; with --whole all of them.
STEPS = {
    "CrossEntropyLoss": 3,
    "LinearCrossEntropyLoss": 37,
    "MultiheadAttention": 5,
    "Transformer": 13,
    "TransformerDecoderLayer": 13,
    "TransformerEncoder": 7,
    "TransformerEncoderLayer": 7,
}


@pytest.mark.ranks(2, 3, 4)
@pytest.mark.shared
@pytest.mark.parametrize("name", SAMPLES)
@pytest.mark.filterwarnings("ignore")
def test_samples_of_torch(P_world, name, pytestconfig):
    """PyTorch's own samples, on partitions that differ from sample to sample."""
    info, count = module_infos()[name], 0
    step = 1 if pytestconfig.getoption("--whole") else STEPS.get(name, 1)
    first = random.Random(f"{os.environ.get('DISTDL_SEED', '')} {name}").randrange(step)
    for training in (True, False):
        torch.manual_seed(7)
        samples = info.module_inputs_func(
            info, device="cpu", dtype=torch.float64, requires_grad=False, training=training
        )
        for number, sample in enumerate(samples):
            torch.manual_seed(5)
            options = dict(sample.constructor_input.kwargs)
            if "dtype" in inspect.signature(info.module_cls).parameters:
                options["dtype"] = torch.float64
            twin = info.module_cls(*sample.constructor_input.args, **options).train(training)
            state = {key: value.clone() for key, value in twin.state_dict().items()}

            def again(twin=twin, state=state):
                twin.load_state_dict(state)
                return twin

            call = sample.forward_input
            call = inspect.signature(twin.forward).bind(*call.args, **call.kwargs)
            example = DESCRIBED[name](twin, *call.args, **call.kwargs)
            if example is None:
                continue
            count += 1
            if count % step != first:
                continue
            wholes = tuple(x.detach() for x in example.inputs())
            example = dataclasses.replace(
                example, twin=again, inputs=lambda wholes=wholes: tuple(x.clone() for x in wholes)
            )
            shapes = splits(example)
            for shape in {shapes[number % len(shapes)], shapes[-1 - number % len(shapes)]}:
                assert_equals_sequential(example, grid(P_world, shape))
    assert count >= SAMPLES[name]  # newer versions of torch have more

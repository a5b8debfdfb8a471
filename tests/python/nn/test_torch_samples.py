"""The inputs with which PyTorch tests its own modules, through the distributed layers.

They come from ``torch.testing._internal``, which may change with any version of torch. How many there are is asserted,
so that none goes missing unnoticed.
"""

import functools
import inspect

import pytest
import torch
import torch.nn.functional as F

import distdl.nn as dnn
from support.blocks import assemble, block_of, grid, grid_shapes
from support.poolings import powers_close
from support.ranks import job, raises_everywhere
from support.tensors import fill_with_integers
from support.twins import assert_equals_twin

# How many samples there are of each module, in one, two and three dimensions.
SAMPLES = {
    "Conv": (4, 4, 4),
    "ConvTranspose": (2, 2, 2),
    "MaxPool": (3, 3, 4),
    "AvgPool": (4, 7, 15),
    "LPPool": (3, 3, 3),
    "AdaptiveMaxPool": (2, 4, 6),
    "AdaptiveAvgPool": (3, 5, 5),
    "ConstantPad": (2, 2, 2),
    "ZeroPad": (2, 2, 2),
    "ReflectionPad": (2, 2, 2),
    "ReplicationPad": (2, 2, 2),
    "CircularPad": (4, 4, 4),
}
# And of those that a module refuses.
REFUSED = {"MaxPool2d": 3, "CircularPad1d": 1, "CircularPad2d": 1, "CircularPad3d": 1}

# DistributedPad is torch.nn.functional.pad, of which these modules are the modes.
PAD_MODES = {
    "ConstantPad": "constant",
    "ZeroPad": "constant",
    "ReflectionPad": "reflect",
    "ReplicationPad": "replicate",
    "CircularPad": "circular",
}


@functools.cache
def module_infos():
    """torch's infos of modules, by name. Imported here, since large jobs, which do not run these tests, would wait."""
    from torch.testing._internal.common_modules import module_db

    return {info.module_cls.__name__: info for info in module_db}


def samples_of(info, function, dtype):
    """The same on all ranks."""
    torch.manual_seed(7)
    return function(info, device="cpu", dtype=dtype, requires_grad=False, training=True)


def sequential(info, sample, dtype):
    """The module, the arguments that it was made from, and its input."""
    arguments, options = sample.constructor_input.args, dict(sample.constructor_input.kwargs)
    if "dtype" in inspect.signature(info.module_cls).parameters:
        options["dtype"] = dtype
    (x,) = sample.forward_input.args
    assert not sample.forward_input.kwargs
    return info.module_cls(*arguments, **options), arguments, options, x


def distributed(kind, P_x, twin, arguments, options):
    """The layer like this twin."""
    if kind in PAD_MODES:
        return dnn.DistributedPad(P_x, twin.padding, PAD_MODES[kind], getattr(twin, "value", None))
    return getattr(dnn, f"Distributed{type(twin).__name__}")(P_x, *arguments, **options)


def splits_of_space_and_batch(P_world, dims, x):
    """The partitions of all ranks that do not split channels."""
    shapes = grid_shapes(x.dim(), job.size, fixed=[x.dim() - dims - 1])
    return [grid(P_world, workers) for workers in shapes if torch.Size(workers).numel() == job.size]


def comparable(kind, x):
    """The sample's input, but for what would hide a difference behind roundings or NaN."""
    if kind.startswith("Conv"):  # -1, 0 and 1 for numbers from -9 to 9: sums of products are exact, in any order
        return torch.complex(comparable(kind, x.real), comparable(kind, x.imag)) if x.is_complex() else (x / 9).round()
    return x.abs() if kind == "LPPool" else x  # fractional powers of negative numbers are not numbers


def equalities(kind, dtype, outputs):
    """How results and derivatives are compared: exactly, but for derivatives of averages, and for powers."""

    def close(result, whole):
        """Sums of quotients of one sign, at most one for each output, in another order, divided by several lengths."""
        return torch.allclose(result, whole, atol=0, rtol=(2 * outputs + 6) * torch.finfo(dtype).eps)

    if kind == "LPPool":
        return {"equal": powers_close(outputs, dtype)}
    return {"equal_derivatives": close} if "Avg" in kind else {}


def first(module, arguments, result):
    """A forward hook for max pooling, which may return indices too."""
    return result[0] if isinstance(result, tuple) else result


@pytest.mark.ranks(2, 3, 4)
@pytest.mark.shared
@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize("kind", SAMPLES)
def test_sample(P_world, kind, dims):
    """Values, indices, gradients of input and parameters, and second gradients.

    Every sample in every dtype, and on every partition in one dtype or another.
    """
    info = module_infos()[f"{kind}{dims}d"]
    # torch does not pickle complex32, so that blocks of it cannot be put together.
    dtypes = [dtype for dtype in info.dtypes if dtype != torch.complex32]
    for i, dtype in enumerate(dtypes):
        samples = samples_of(info, info.module_inputs_func, dtype)
        assert len(samples) == SAMPLES[kind][dims - 1]
        for sample in samples:
            twin, arguments, options, x = sequential(info, sample, dtype)
            fill_with_integers(twin)
            x = comparable(kind, x)
            _, *indices = y if isinstance(y := twin(x), tuple) else (y,)
            twin.register_forward_hook(first)
            equals = equalities(kind, dtype, twin(x).shape[-dims:].numel())
            splits = splits_of_space_and_batch(P_world, dims, x)
            for P_x in splits[i :: len(dtypes)] or splits:
                layer = distributed(kind, P_x, twin, arguments, options)
                for whole in indices:
                    assert torch.equal(assemble(layer(block_of(x, P_x))[1], P_x, whole.shape), whole)
                layer.register_forward_hook(first)
                owners = [grid(P_world, [1] * parameter.dim()) for parameter in twin.parameters()]
                assert_equals_twin(layer, twin, x, P_x, P_x, owners, **equals)


@pytest.mark.shared
@pytest.mark.parametrize("name", REFUSED)
def test_refused_sample(P_world, name):
    """The same kind of exception on all ranks.

    A number of dimensions that a layer does not have, its partition must not have: always a ValueError. And
    DistributedPad refuses what torch.nn.functional.pad refuses, in place of the modules, each for one number of them.
    """
    kind, dims, info = name[:-2], int(name[-2]), module_infos()[name]
    refused = info.module_error_inputs_func  # of MaxPool2d, torch 2.11 has none
    samples = samples_of(info, refused, torch.float64) if refused else []
    assert len(samples) == (REFUSED[name] if refused else 0)
    for sample in samples:
        twin, arguments, options, x = sequential(info, sample.module_error_input, torch.float64)
        with pytest.raises(sample.error_type, match=sample.error_regex):
            twin(x)
        error = sample.error_type if x.dim() in (dims + 1, dims + 2) else ValueError
        if kind in PAD_MODES:
            with pytest.raises((RuntimeError, NotImplementedError)) as refused:
                F.pad(x, twin.padding, PAD_MODES[kind])
            error = refused.type
        P_x = grid(P_world, [1] * (x.dim() - 1) + [job.size])

        def refuse(made=(kind, P_x, twin, arguments, options), x=x, P_x=P_x):
            distributed(*made)(block_of(x, P_x))

        raises_everywhere(error, "Distributed", refuse)

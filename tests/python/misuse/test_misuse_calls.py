"""Wrong calls of layers: on whichever rank, they raise the same on all ranks, and a good call follows."""

import re

import numpy as np
import pytest
import torch
from mpi4py import MPI

import distdl
import distdl.nn as dnn
from support import families
from support.blocks import grid
from support.families import splits
from support.misuses.table import grid_of
from support.ranks import job, raises_everywhere
from support.sequential import as_tuple, block
from support.tensors import same_bits, values

more_than_one_rank = pytest.mark.mpi(min_size=2)
double = torch.double


def on_grid(dims, make):
    """A layer on all ranks along the last dimension, and how it is called: (N, C, *space) in blocks of four."""

    def made(P):
        layer = make(grid_of(P, dims + 2))
        return layer, (values((2, 4, *[4] * dims), seed=job.rank),)

    return made


def linear(P):
    """In blocks of features."""
    P_x, P_y = grid_of(P, 2), P.create_cartesian_topology_partition([1, 1])
    return dnn.DistributedLinear(P_x, P_y, P_x, 3 * P.size, 2, dtype=double), (values((2, 3), seed=job.rank),)


def mse(P):
    """On blocks of the batch."""
    return dnn.DistributedMSELoss(P), (values((3,)), values((3,), seed=1))


def cross_entropy(P):
    """On blocks of the batch."""
    layer = dnn.DistributedCrossEntropyLoss(P.create_cartesian_topology_partition([P.size, 1]))
    return layer, (values((2, 3)), torch.tensor([0, 2]))


def experts(P):
    """On blocks of the tokens."""
    layer = dnn.DistributedMixtureOfExperts(grid(P, (P.size, 1)), 3, 3, lambda number: torch.nn.Tanh(), dtype=double)
    return layer, (values((2, 3), seed=job.rank),)


def attention(P):
    """On blocks of the tokens."""
    layer = dnn.DistributedScaledDotProductAttention(grid(P, (1, 1, P.size, 1)))
    return layer, tuple(values((1, 2, 2, 3), seed=3 * job.rank + i) for i in range(3))


def along(make, *shape):
    """A primitive on all ranks in a row."""
    return lambda P: (make(grid_of(P, len(shape))), (values(shape, seed=job.rank),))


LAYERS = {
    "Broadcast": along(lambda P: dnn.Broadcast(P, P), 2, 3),
    "SumReduce": along(lambda P: dnn.SumReduce(P, P.create_cartesian_topology_partition([1, 1])), 2, 3),
    "AllSumReduce": along(lambda P: dnn.AllSumReduce(P, [1]), 2, 3),
    "AllGather": along(lambda P: dnn.AllGather(P, [1]), 2, 3),
    "ReduceScatter": along(lambda P: dnn.ReduceScatter(P, [1]), 2, 3),
    "Repartition": along(lambda P: dnn.Repartition(P, P), 2, 3),
    "HaloExchange": along(lambda P: dnn.HaloExchange(P, [0, 1]), 2, 3),
    "HaloExchange in its room": along(lambda P: dnn.HaloExchange(P, [[0, 0], [1, 1]], [[0, 0], [1, 1]], None), 2, 5),
    "DistributedLinear": linear,
    "DistributedMSELoss": mse,
    "DistributedCrossEntropyLoss": cross_entropy,
    "DistributedPad": on_grid(1, lambda P: dnn.DistributedPad(P, (1, 1))),
    **{
        f"Distributed{kind}{dims}d": on_grid(
            dims, lambda P, kind=kind, dims=dims: getattr(dnn, f"Distributed{kind}{dims}d")(P, 4, 4, 3, dtype=double)
        )
        for kind in ("Conv", "ConvTranspose")
        for dims in (1, 2, 3)
    },
    **{
        f"Distributed{kind}{dims}d": on_grid(
            dims, lambda P, kind=kind, dims=dims: getattr(dnn, f"Distributed{kind}{dims}d")(P, 2)
        )
        for kind in ("MaxPool", "AvgPool", "AdaptiveMaxPool", "AdaptiveAvgPool")
        for dims in (1, 2, 3)
    },
    "DistributedMixtureOfExperts": experts,
    "DistributedScaledDotProductAttention": attention,
    "Local": on_grid(1, lambda P: dnn.Local(P, torch.nn.Tanh())),
    "DistributedLPPool2d": on_grid(2, lambda P: dnn.DistributedLPPool2d(P, 2.0, 2)),
    "DistributedUpsample": on_grid(2, lambda P: dnn.DistributedUpsample(P, scale_factor=2.0)),
}


def of_example(example):
    """The layer of a family's example, on all ranks where it can be."""

    def made(P):
        P_x = grid(P, splits(example, P.size)[-1])
        inputs, layer = zip(example.inputs(), example.cuts, strict=True), example.make(example.twin(), P_x)
        if vars(layer).pop("forward", None):  # which takes masks by their names, in place of the layer's own
            inputs = [(x, cut) for x, cut in inputs if x.is_floating_point() and x.dim() == example.dims]
        return layer, tuple(block(x, P_x, cut) for x, cut in inputs)

    return made


# Every other layer by its first example; of the layers with the same code in several dimensions, those in one.
for _name, _examples in families.LAYERS.items():
    if not (_examples[0].kind or _examples[0].layer) or _examples[0].dims < 4:
        LAYERS.setdefault(_name, of_example(_examples[0]))


def emptied(x):
    """A tensor whose memory was taken away, as programs do that shard parameters by themselves."""
    x.untyped_storage().resize_(0)
    return x


WRONG = {
    "None": (lambda x: None, TypeError, "has to be a torch.Tensor"),
    "a text": (lambda x: "x", TypeError, "has to be a torch.Tensor"),
    "a number": (lambda x: 1.0, TypeError, "has to be a torch.Tensor"),
    "a list": (lambda x: x.tolist(), TypeError, "has to be a torch.Tensor"),
    "a list of tensors": (lambda x: [x], TypeError, "has to be a torch.Tensor"),
    "an array": (lambda x: x.numpy(), TypeError, "has to be a torch.Tensor"),
    "a number of numpy": (lambda x: np.float64(1), TypeError, "has to be a torch.Tensor"),
    "a dtype": (lambda x: torch.float32, TypeError, "has to be a torch.Tensor"),
    "a layer": (lambda x: torch.nn.Linear(1, 1), TypeError, "has to be a torch.Tensor"),
    "an exception": (lambda x: KeyError("it"), TypeError, "it"),
    "sparse": (lambda x: x.to_sparse(), TypeError, "only strided"),
    "compressed": (lambda x: torch.eye(3).to_sparse_csr(), TypeError, "only strided"),
    "quantized": (lambda x: torch.quantize_per_tensor(x.float(), 0.1, 0, torch.quint8), TypeError, "only strided"),
    "nested": (lambda x: torch.nested.nested_tensor([x]), TypeError, "only strided"),
    "jagged": (lambda x: torch.nested.nested_tensor([x], layout=torch.jagged), TypeError, "only strided"),
    "meta": (lambda x: x.to("meta"), TypeError, "meta device"),
    "without its memory": (lambda x: emptied(x.clone()), TypeError, "a storage that was resized to 0"),
    "without a dtype to copy": (
        lambda x: torch.empty(2, dtype=torch.uint4),
        (TypeError, ValueError),
        "can copy no values|room",
    ),
    "40 dimensions": (lambda x: torch.empty((1,) * 40), ValueError, "at most 32|room"),
}
DIFFERENT = {
    "another dtype": (lambda x: x.float(), (TypeError, ValueError, RuntimeError), "dtype|float|Float"),
    "complex": (lambda x: x.to(torch.complex128), (TypeError, ValueError, RuntimeError), "dtype|complex|Complex"),
    "integers": (lambda x: x.long(), (TypeError, ValueError, RuntimeError, NotImplementedError), "dtype|int|Long"),
    "one dimension more": (lambda x: x.unsqueeze(-1), (ValueError, RuntimeError), "dimension|shape"),
    "one dimension less": (lambda x: x.sum(0), (ValueError, RuntimeError), "dimension|shape"),
    "another shape": (lambda x: torch.cat([x, x]), (ValueError, RuntimeError), "shape|size"),
    "zero volume": (
        lambda x: distdl.zero_volume_tensor(dtype=x.dtype),
        (ValueError, RuntimeError),
        "dimension|shape|volume",
    ),
}
# Layers with code of their own for what they are called with; of what the others share, a part is enough.
OWN_CODE = (
    "Broadcast",
    "SumReduce",
    "HaloExchange in its room",
    "DistributedLinear",
    "DistributedCrossEntropyLoss",
    "DistributedPad",
    "DistributedConv2d",
    "DistributedMaxPool2d",
    "DistributedUpsample",
)
SHARED = ("None", "sparse", "meta", "another dtype", "one dimension less")
every_layer = pytest.mark.parametrize("make", LAYERS.values(), ids=LAYERS)


@pytest.mark.ranks(1)
def test_every_layer_is_called():
    """Each layer has a row in LAYERS of this file, or an example; layers in several dimensions share it."""
    families = {name.rstrip("1234d") for name in LAYERS}
    chosen = re.compile("Distributed(Channel|Feature|General)Conv")
    layers = {name for name in dnn.__all__ if isinstance(getattr(dnn, name), type) and not chosen.fullmatch(name[:-2])}
    bases_and_aliases = {"Layer", "Module", "DistributedTranspose"}
    assert {name for name in layers if name.rstrip("1234d") not in families} == bases_and_aliases


def of_each(misuses):
    """Parameters for a test: a layer and a misuse."""
    chosen = {
        f"{layer}-{name}": (make, *misuse)
        for layer, make in LAYERS.items()
        for name, misuse in misuses.items()
        if layer in OWN_CODE or name in SHARED
    }
    return pytest.mark.parametrize(("make", "wrong", "kind", "match"), chosen.values(), ids=chosen)


def check(P, make, kind, match, call):
    """`call` of a layer and its arguments raises everywhere; its arguments stay, and good calls are as before."""
    layer, arguments = make(P)
    copies = [x.clone() for x in arguments]

    def results():
        torch.manual_seed(0)
        return as_tuple(layer(*arguments))

    before = results()
    for rank in {job.size - 1, 0}:
        act = call if job.rank == rank else lambda layer, *arguments: layer(*arguments)
        text = raises_everywhere(kind, match, lambda act=act: act(layer, *arguments))
        assert type(layer).__name__ in text, text
        assert all(same_bits(x, copy) for x, copy in zip(arguments, copies, strict=True))
        assert all(same_bits(y, other) for y, other in zip(results(), before, strict=True))


@pytest.mark.shared
@of_each(WRONG)
@pytest.mark.filterwarnings("ignore:.*quantize_per_tensor.*", "ignore:.*CSR.*", "ignore:.*nested.*")
def test_what_no_layer_takes(P_world, make, wrong, kind, match):
    _, (x, *targets) = make(P_world)
    bad = wrong(x)
    check(P_world, make, kind, match, lambda layer, x, *others: layer(bad, *others))
    if targets:
        check(P_world, make, kind, match, lambda layer, x, target, *others: layer(x, bad, *others))


@pytest.mark.shared
@more_than_one_rank
@of_each(DIFFERENT)
def test_what_differs_on_one_rank(P_world, make, wrong, kind, match):
    if make is LAYERS["Broadcast"] and "dtype" not in match:
        return  # each source may send any shape
    bad = wrong(make(P_world)[1][0])
    check(P_world, make, kind, match, lambda layer, x, *others: layer(bad, *others))


@pytest.mark.shared
@every_layer
def test_arguments_that_do_not_fit(P_world, make):
    check(P_world, make, TypeError, "missing a required argument", lambda layer, *arguments: layer())
    check(P_world, make, TypeError, "too many positional", lambda layer, *arguments: layer(*arguments, *range(20)))
    check(P_world, make, TypeError, "unexpected keyword argument 'twice'", lambda layer, *a: layer(*a, twice=True))


@pytest.mark.shared
@more_than_one_rank
@every_layer
def test_gradients_disabled_on_one_rank(P_world, make):
    def call(layer, *arguments):
        with torch.no_grad():
            return layer(*arguments)

    def make_with_gradients(P):
        layer, (x, *others) = make(P)
        return layer, (x.requires_grad_(x.is_floating_point()), *others)

    check(P_world, make_with_gradients, RuntimeError, "disabled on others", call)


@pytest.mark.shared
@more_than_one_rank
@every_layer
def test_inference_tensors_on_one_rank(P_world, make):
    """Autograd does not save these tensors; the other ranks ask for gradients."""
    layer, arguments = make(P_world)
    for rank in {job.size - 1, 0}:
        inputs = [x.clone().requires_grad_(x.is_floating_point()) for x in arguments]
        torch.manual_seed(0)
        expected = as_tuple(layer(*inputs))
        if job.rank == rank:
            with torch.inference_mode():
                inputs = [x.clone() for x in arguments]
        for _ in range(2):
            torch.manual_seed(0)
            results = as_tuple(layer(*inputs))
            assert all(same_bits(y.detach(), other.detach()) for y, other in zip(results, expected, strict=True))
            torch.autograd.backward([y.abs().sum() for y in results if y.requires_grad])


@pytest.mark.ranks(2)
@pytest.mark.parametrize("split", [False, True], ids=["whole", "split"])
def test_parameters_without_values_on_one_rank(P_world, split):
    """Parameters travel from their owner, or are used where they are."""
    kind, shape = (dnn.DistributedLayerNorm, (1, job.size)) if split else (dnn.DistributedRMSNorm, (job.size, 1))
    x = torch.ones(2, 4 // shape[1])
    for rank in range(job.size):
        layer = kind(grid(P_world, shape), 4)
        layer(x)
        if job.rank == rank:
            layer.to("meta")
        raises_everywhere(TypeError, "on the meta device", lambda layer=layer: layer(x))
        layer.to_empty(device="cpu")
        layer(x)


def options_of(layer):
    """The names of the options that are attributes, without modules, which torch keeps elsewhere once assigned."""
    if not isinstance(layer, dnn.Layer):
        return []
    return [name for name in layer.options if not isinstance(vars(layer).get(name, layer), torch.nn.Module)]


@pytest.mark.shared
@more_than_one_rank
@every_layer
def test_options_assigned_on_one_rank(P_world, make):
    layer, arguments = make(P_world)
    layer(*arguments)
    for option in options_of(layer):
        value = getattr(layer, option)
        for rank, other in ((job.size - 1, "another"), (0, -77)):
            if job.rank == rank:
                setattr(layer, option, other)
            text = raises_everywhere((ValueError, TypeError), f"{option}=|cannot be", lambda: layer(*arguments))
            assert type(layer).__name__ in text, text
            setattr(layer, option, value)
        layer(*arguments)


@pytest.mark.shared
@every_layer
def test_a_freed_communicator(make):
    comm = MPI.COMM_WORLD.Dup()
    layer, arguments = make(distdl.Partition(comm))
    layer(*arguments)
    comm.Free()
    raises_everywhere(RuntimeError, "was freed", lambda: layer(*arguments))


@pytest.mark.shared
@every_layer
def test_constructing_on_a_freed_communicator(make):
    comm = MPI.COMM_WORLD.Dup()
    P = distdl.Partition(comm)
    comm.Free()
    raises_everywhere(RuntimeError, "was freed", lambda: make(P))


@more_than_one_rank
@pytest.mark.parametrize("primitive", [dnn.Broadcast, dnn.Repartition])
def test_data_of_a_rank_that_has_no_part(P_world, primitive):
    layer = primitive(P_world.create_partition_inclusive([0]), P_world)
    good = torch.ones(2) if job.rank == 0 else distdl.zero_volume_tensor()
    bad = torch.ones(2) if job.rank == job.size - 1 else good
    raises_everywhere(ValueError, "zero_volume_tensor", lambda: layer(bad))
    layer(good)

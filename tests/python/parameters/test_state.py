"""Weights from a sequential model to a distributed one and back, bit for bit."""

from collections import OrderedDict

import pytest
import torch
from mpi4py import MPI

import distdl
import distdl.nn as dnn
from distdl import load_sequential, sequential_state_dict
from support.blocks import block_of, grid
from support.ranks import job, raises_everywhere
from support.tensors import same_bits

roots = pytest.mark.parametrize("root", ["first", "last"])


def rank_of(root):
    """Its number in the job."""
    return 0 if root == "first" else job.size - 1


def sequential():
    """Distributed and local layers, buffers, a scalar, an integer, half precision."""
    return torch.nn.Sequential(
        OrderedDict(
            conv=torch.nn.Conv1d(2, 3, 3, padding=1, dtype=torch.float64),
            pool=torch.nn.MaxPool1d(2),
            norm=torch.nn.BatchNorm1d(
                3, dtype=torch.float64
            ),  # its running mean is a buffer, its count an int64 scalar
            inner=torch.nn.Sequential(torch.nn.Linear(7, 5, dtype=torch.bfloat16), torch.nn.PReLU()),
        )
    )


def distributed(P):
    """The distributed twin on all ranks of a partition; the linear layer's weight in reversed order."""
    P_space = grid(P, [1, 1, P.size])
    P_x, P_y = grid(P, [1, 1]), grid(P, [1, P.size], range(P.size - 1, -1, -1))
    P_W = grid(P, [P.size, 1], range(P.size - 1, -1, -1))
    return torch.nn.Sequential(
        OrderedDict(
            conv=dnn.DistributedConv1d(P_space, 2, 3, 3, padding=1, dtype=torch.float64),
            pool=dnn.DistributedMaxPool1d(P_space, 2),
            norm=torch.nn.BatchNorm1d(3, dtype=torch.float64),
            inner=torch.nn.Sequential(
                dnn.DistributedLinear(P_x, P_y, P_W, 7, 5, dtype=torch.bfloat16), torch.nn.PReLU()
            ),
        )
    )


def equal_states(a, b):
    return list(a) == list(b) and all(same_bits(a[name], b[name]) for name in a)


@roots
def test_there_and_back(P_world, root):
    """What the root loads is what it gets back; every rank has its blocks in between."""
    root = rank_of(root)
    torch.manual_seed(100 + job.rank)  # other values on every rank: only those of the root count
    state = sequential().state_dict()
    state["norm.num_batches_tracked"] += 7 + job.rank
    model = distributed(P_world)
    load_sequential(model, state if job.rank == root else None, root)
    back = sequential_state_dict(model, root)
    assert equal_states(back, state) if job.rank == root else back == {}

    whole = {name: job.bcast(value, root) for name, value in state.items()}
    P_W = model.inner[0].P_W
    assert same_bits(model.inner[0].weight.detach(), block_of(whole["inner.0.weight"], P_W))
    assert same_bits(model.norm.running_mean, whole["norm.running_mean"])
    assert same_bits(model.inner[1].weight.detach(), whole["inner.1.weight"])


def test_what_was_given_and_what_comes_back_are_copies(P_world):
    model = distributed(P_world)
    state = sequential_state_dict(model)
    load_sequential(model, state)
    if job.rank == 0:
        for value in state.values():
            value.fill_(0)
    assert torch.count_nonzero(model.inner[1].weight) == 1
    assert job.rank != 0 or torch.count_nonzero(model.conv.weight) > 0


def test_the_same_seed_gives_the_same_state(P_world):
    torch.manual_seed(1)
    expected = sequential().state_dict()
    torch.manual_seed(1)
    state = sequential_state_dict(distributed(P_world))
    assert job.rank != 0 or equal_states(state, expected)


def test_a_single_layer_and_other_dtypes(P_world):
    """A layer of its own; values are converted to the dtype of the layer, as load_state_dict does."""
    P_x = grid(P_world, [1, 1, job.size])
    twin, layer = torch.nn.Conv1d(1, 1, 3), dnn.DistributedConv1d(P_x, 1, 1, 3, dtype=torch.float64)
    load_sequential(layer, twin.state_dict() if job.rank == 0 else {})
    state = sequential_state_dict(layer)
    assert job.rank != 0 or equal_states(state, twin.double().state_dict())


def test_ranks_outside(P_world):
    """A model on some ranks of its communicator; a communicator of some ranks."""
    P_x = grid(P_world, [1, 1, 1], [job.size - 1])
    layer = dnn.DistributedConv1d(P_x, 1, 1, 1)
    load_sequential(layer, {"weight": torch.full((1, 1, 1), 7.0), "bias": torch.ones(1)})
    assert layer.weight.tolist() == ([[[7.0]]] if P_x.active else [])

    some = MPI.COMM_WORLD.Split(0 if job.rank > 0 or job.size == 1 else MPI.UNDEFINED)
    layer = dnn.DistributedConv1d(distdl.Partition(some).create_cartesian_topology_partition([1, 1, 1]), 1, 1, 1)
    state = {"weight": torch.full((1, 1, 1), 5.0), "bias": torch.ones(1)}
    load_sequential(layer, state)
    assert equal_states(sequential_state_dict(layer), state if some != MPI.COMM_NULL and some.rank == 0 else {})
    if some != MPI.COMM_NULL:
        some.Free()


def test_replicas_on_subgrids(P_world):
    """Each sub-grid has its own model and its own root."""
    rows = 2 if job.size % 2 == 0 else 1
    P_row = grid(P_world, [rows, job.size // rows]).create_cartesian_subtopology_partition([False, True])
    first = job.rank // P_row.size * P_row.size
    layer = dnn.DistributedConv1d(P_row.create_cartesian_topology_partition([1, 1, P_row.size]), 1, 1, 1)
    state = {"weight": torch.full((1, 1, 1), float(first)), "bias": torch.zeros(1)}
    load_sequential(layer, state, root=first)
    y = layer(torch.ones(1, 1, 2))
    assert y.tolist() == [[[float(first)] * 2]]
    whole = sequential_state_dict(layer, root=first)
    assert equal_states(whole, state if job.rank == first else {})


def test_models_without_distributed_parameters(P_world):
    """Their state is that of each rank."""
    model = torch.nn.Sequential(dnn.DistributedMaxPool1d(grid(P_world, [1, 1, job.size]), 2), torch.nn.PReLU())
    with torch.no_grad():
        model[1].weight.fill_(job.rank)
    assert equal_states(sequential_state_dict(model), {"1.weight": torch.tensor([float(job.rank)])})
    load_sequential(model, {"1.weight": torch.tensor([9.0])})
    assert model[1].weight == 9
    with pytest.raises(RuntimeError, match=r"missing 1\.weight"):
        load_sequential(model)


WRONG_STATES = {
    "missing": ("missing conv.bias", lambda state: state.pop("conv.bias")),
    "unknown": ("unknown other", lambda state: state.update(other=torch.ones(1))),
    "shape": (r"conv.weight has shape \[2\]", lambda state: state.update({"conv.weight": torch.ones(2)})),
    "shape of a local parameter": (
        r"inner.1.weight has",
        lambda state: state.update({"inner.1.weight": torch.ones(2)}),
    ),
    "several": (
        r"missing conv.bias \(and 1 more\)",
        lambda state: [state.pop("conv.bias"), state.update(other=torch.ones(1))],
    ),
    "meta": ("inner.1.weight is on the meta device", lambda state: change(state, lambda tensor: tensor.to("meta"))),
    "sparse": ("inner.1.weight is of layout torch.sparse_coo", lambda state: change(state, torch.Tensor.to_sparse)),
    "mkldnn": ("inner.1.weight is of layout torch._mkldnn", lambda state: change(state, torch.Tensor.to_mkldnn)),
    "quantized": (
        "inner.1.weight is quantized",
        lambda state: change(state, lambda tensor: torch.quantize_per_tensor(tensor, 0.1, 0, torch.qint8)),
    ),
    "conversion": (
        "inner.1.weight does not become torch.float32: not today",
        lambda state: change(state, lambda tensor: tensor.as_subclass(Unwilling)),
    ),
}


class Unwilling(torch.Tensor):
    """A tensor that cannot be converted."""

    def to(self, *args, **kwargs):
        raise LookupError("not today")


def change(state, function):
    """Of the last value, which would be written when all others are."""
    state["inner.1.weight"] = function(state["inner.1.weight"])


@pytest.mark.filterwarnings("ignore:.*quantized tensor creation functions")
@roots
@pytest.mark.parametrize(("match", "spoil"), WRONG_STATES.values(), ids=WRONG_STATES)
def test_a_wrong_state_raises_on_all_and_loads_nothing(P_world, match, spoil, root):
    root = rank_of(root)
    model, state = distributed(P_world), sequential().state_dict()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    spoil(state)
    raises_everywhere(RuntimeError, match, lambda: load_sequential(model, state if job.rank == root else None, root))
    assert equal_states(model.state_dict(), before)


def test_other_arguments_on_the_last_rank_raise_on_all(P_world):
    model, last = distributed(P_world), job.rank == job.size - 1
    state = sequential().state_dict()
    raises_everywhere(ValueError, "root 99 is none of", lambda: sequential_state_dict(model, 99))
    raises_everywhere(ValueError, "root -1 is none of", lambda: load_sequential(model, state, -1))
    if job.size > 1:
        raises_everywhere(ValueError, "different things", lambda: sequential_state_dict(model, 1 if last else 0))
        raises_everywhere(ValueError, "different things", lambda: load_sequential(model, state, 1 if last else 0))
        long = torch.nn.Sequential(OrderedDict({"x" * 300: torch.nn.PReLU(), "y" if last else "z": model.conv}))
        said = raises_everywhere(ValueError, r"names=\.\.\.x+\.weight', '[yz]\.", lambda: sequential_state_dict(long))
        assert len(said) < 1000
        model.norm = torch.nn.BatchNorm1d(4 if last else 3, dtype=torch.float64)
        raises_everywhere(ValueError, "norm.weight has other shapes", lambda: load_sequential(model, state))


def test_the_first_difference_alone_is_named(P_world):
    """A state of a hundred other names: kilobytes, if all of them were said."""
    model, state = distributed(P_world), {f"layer{i}.weight": torch.ones(1) for i in range(100)}
    said = raises_everywhere(RuntimeError, "missing conv.weight", lambda: load_sequential(model, state))
    assert len(said) < 100


class Silent(torch.nn.Module):
    """Cannot say its state, or cannot take it, on the last rank alone."""

    says = True

    def get_extra_state(self):
        if not self.says and job.rank == job.size - 1:
            raise LookupError("not today")
        return "something"

    def set_extra_state(self, state):
        if job.rank == job.size - 1:
            raise LookupError("not now")


def test_a_state_that_one_rank_cannot_have(P_world, tmp_path):
    model = torch.nn.Sequential(distributed(P_world), Silent())
    path = job.bcast(tmp_path / "model")
    state = sequential_state_dict(model)
    distdl.save(path, model)
    raises_everywhere(RuntimeError, "not now", lambda: load_sequential(model, state))
    raises_everywhere(RuntimeError, "not now", lambda: distdl.load(path, model))
    model[1].says = False
    raises_everywhere(RuntimeError, "not today", lambda: sequential_state_dict(model))
    raises_everywhere(RuntimeError, "not today", lambda: load_sequential(model, state))
    raises_everywhere(RuntimeError, "not today", lambda: distdl.save(path, model))
    raises_everywhere(RuntimeError, "not today", lambda: distdl.load(path, model))

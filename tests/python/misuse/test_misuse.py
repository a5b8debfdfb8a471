"""A mistake on a rank raises the same exception on all ranks within a second, and loses nothing."""

import importlib
import zipfile

import pytest
import torch
from mpi4py import MPI

import distdl
import distdl.nn as dnn
from support.blocks import grid
from support.cases import CASES
from support.ranks import job, raises_everywhere
from support.tensors import values

every_operator = pytest.mark.parametrize("make", CASES.values(), ids=CASES)
more_than_one_rank = pytest.mark.mpi(min_size=2)


def the_wrong_one(case):
    """The last rank that has a part of the input, when several have: the others disagree with it."""
    active = [rank for rank, shape in enumerate(job.allgather(case.shape)) if shape != (0,)]
    return active[-1] if len(active) > 1 else None


def check(case, wrong, kind, match, of_rank):
    """`wrong` on one rank raises everywhere, before and after a good call; good calls give the same as before."""
    good = values(case.shape, torch.float64, seed=job.rank)
    involved = case.operator._operator.active
    call = lambda: case.operator(wrong if job.rank == of_rank else good)  # noqa: E731
    raises_everywhere(kind, match, call, involved=involved)
    before = case.operator(good)
    text = raises_everywhere(kind, match, call, involved=involved)
    assert not involved or type(case.operator).__name__ in text
    assert torch.equal(case.operator(good), before)


@pytest.mark.shared
@every_operator
def test_wrong_dtype(P_world, make):
    case = make(P_world)
    rank = the_wrong_one(case)
    if rank is not None:
        check(case, values(case.shape, torch.float32), TypeError, "dtype", rank)


@pytest.mark.shared
@every_operator
def test_wrong_number_of_dimensions(P_world, make):
    case = make(P_world)
    rank = the_wrong_one(case)
    if rank is not None:
        check(case, torch.ones((*case.shape, 1), dtype=torch.float64), ValueError, "dimensions", rank)


@pytest.mark.shared
@every_operator
def test_wrong_shape(P_world, make):
    """Where blocks have to fit each other; a broadcast takes any shape from each of its sources."""
    case = make(P_world)
    rank = the_wrong_one(case)
    if rank is None or "broadcast" in make.__name__ or all(n == 1 for n in getattr(case.operator, "_shape", (2,))):
        return
    shape = list(case.shape)
    # Changes a dimension along which the blocks are not free: several workers share it.
    shape = [n + 1 for n in shape]
    wrong = torch.ones(shape, dtype=torch.float64)
    if make.__name__ in ("repartition_fewer_elements", "halo_wide", "halo_cut"):
        return  # one-dimensional: blocks of any sizes are a decomposition
    if make.__name__ == "all_sum_reduce_columns" and job.size < 4:
        return  # each is alone
    check(case, wrong, ValueError, "shape|size", rank)


@pytest.mark.shared
@every_operator
@pytest.mark.parametrize("bad", ["text", None, 3.0, [1.0]], ids=str)
def test_what_is_no_tensor(P_world, make, bad):
    case = make(P_world)
    rank = job.size - 1 if case.operator._operator.active else None
    active = job.allgather(case.operator._operator.active)
    if all(active):
        check(case, bad, TypeError, "has to be a torch.Tensor", rank)


@pytest.mark.shared
@every_operator
@pytest.mark.parametrize("kind", ["sparse", "quantized", "meta", "shell dtype", "40-d"])
@pytest.mark.filterwarnings("ignore:.*quantize_per_tensor.*")
def test_tensors_that_do_not_travel(P_world, make, kind):
    case = make(P_world)
    bad = {
        "sparse": lambda: torch.eye(2).to_sparse(),
        "quantized": lambda: torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.quint8),
        "meta": lambda: torch.empty(2, device="meta"),
        "shell dtype": lambda: torch.empty(2, dtype=torch.uint4),
        "40-d": lambda: torch.empty((1,) * 40),
    }[kind]()
    if all(job.allgather(case.operator._operator.active)):
        check(case, bad, (TypeError, ValueError), "only strided|meta device|at most 32|can copy no values", 0)


def test_a_second_backward_pass_of_a_graph_that_was_freed(P_world):
    layer, x = dnn.AllSumReduce(grid(P_world, [job.size]), [0]), torch.ones(3, requires_grad=True)
    total = layer(x).sum()
    total.backward()
    raises_everywhere(RuntimeError, "backward through the graph a second time", total.backward)


@more_than_one_rank
@pytest.mark.parametrize("letters", range(188, 200))
def test_long_names_that_are_not_ascii(P_world, letters):
    """Text that travels between ranks is cut between two letters."""
    layer, bad = dnn.AllSumReduce(P_world, [0]), type("x" + "\u00e9" * letters, (), {})()
    raises_everywhere(TypeError, "\u00e9", lambda: layer(bad if job.rank == 0 else torch.ones(2)))
    raises_everywhere(TypeError, "x\u00e9", lambda: layer(type("\u00e9x" + "\u00e9" * letters, (), {})()))


@more_than_one_rank
@pytest.mark.parametrize("differentiated", [False, True])
@pytest.mark.parametrize("make", CASES.values(), ids=CASES)
def test_the_structure_check_on_some_ranks(P_world, make, differentiated):
    case = make(P_world)
    x = values(case.shape, seed=job.rank).requires_grad_(differentiated)
    y = case.operator(x)

    def act():
        with distdl.structure_check(job.rank != 1):
            y.sum().backward() if differentiated else case.operator(x)

    if all(job.allgather(case.operator._operator.active)):
        text = raises_everywhere(RuntimeError, "do not make the same call", act)
        assert "without the structure check" in text
    assert torch.equal(case.operator(x), y)


SECOND = "backward through the graph a second time"


@more_than_one_rank
@pytest.mark.parametrize("halves", [False, True])
@pytest.mark.parametrize("make", CASES.values(), ids=CASES)
def test_a_graph_that_some_ranks_keep(P_world, make, halves):
    """A second backward pass through it raises on the ranks that keep it, too."""
    case = make(P_world)
    involved = case.operator._operator.active
    x = values(case.shape, seed=job.rank).requires_grad_()
    total = (case.operator.wait(case.operator.start(x)) if halves else case.operator(x)).sum()
    total.backward(retain_graph=job.rank == 0)
    if all(job.allgather(involved)):
        text = raises_everywhere(RuntimeError, SECOND, total.backward)
        assert "rank 0: could run" in text
    good = values(case.shape, seed=job.rank).requires_grad_()
    case.operator(good).sum().backward()
    assert torch.equal(good.grad, x.grad)


@more_than_one_rank
def test_a_graph_of_attention_that_some_ranks_keep(P_world):
    """Its backward pass agrees by itself."""
    P_x = grid(P_world, [1, 1, job.size, 1])
    q = values([2, 2, 3, 4], seed=job.rank).requires_grad_()
    total = distdl.functional.scaled_dot_product_attention(q, q, q, P_x).sum()
    total.backward(retain_graph=job.rank == 0)
    raises_everywhere(RuntimeError, SECOND, total.backward)


@more_than_one_rank
def test_data_where_a_rank_is_not_active(P_world):
    P_x, P_y = grid(P_world, [1], [0]), grid(P_world, [job.size])
    for primitive in (dnn.Broadcast, dnn.Repartition):
        layer = primitive(P_x, P_y)
        good = torch.ones(3) if P_x.active else distdl.zero_volume_tensor()
        bad = torch.ones(3)
        text = raises_everywhere(
            ValueError,
            "pass distdl.zero_volume_tensor",
            lambda layer=layer, good=good, bad=bad: layer(bad if job.rank == 1 else good),
        )
        assert "rank 1 is not in P_x" in text
        layer(good)


@more_than_one_rank
def test_no_grad_on_some_ranks(P_world):
    layer = dnn.AllSumReduce(P_world, axes_reduce=[0])
    x = torch.ones(2, requires_grad=True)

    def call():
        with torch.set_grad_enabled(job.rank != 0):
            layer(x)

    text = raises_everywhere(RuntimeError, "disabled on others", call)
    assert "rank 0: disabled" in text
    assert torch.equal(layer(x), torch.full((2,), float(job.size)))


@more_than_one_rank
def test_create_graph_on_some_ranks(P_world):
    layer = dnn.AllSumReduce(P_world, axes_reduce=[0])
    x = torch.ones(2, requires_grad=True)
    y = layer(x)
    gradient = torch.ones(2, requires_grad=True)
    torch.autograd.grad(y, x, gradient, create_graph=True)  # the first takes torch a second, elsewhere
    y = layer(x)
    raises_everywhere(
        RuntimeError,
        "disabled on others",
        lambda: torch.autograd.grad(y, x, gradient, create_graph=job.rank != 0),
    )


@more_than_one_rank
def test_the_line_of_a_module_in_an_archive(P_world, tmp_path, monkeypatch):
    """Which only the loader of the module can read."""
    with zipfile.ZipFile(tmp_path / "archive.zip", "w") as archive:
        archive.writestr("archived.py", "def call(layer, x):\n    return layer(x)\n")
    monkeypatch.syspath_prepend(tmp_path / "archive.zip")
    archived = importlib.import_module("archived")
    layers, x = [dnn.AllSumReduce(P_world, [0]) for _ in range(2)], torch.ones(2)
    raises_everywhere(
        RuntimeError, r"2 in call: return layer\(x\)", lambda: archived.call(layers[int(job.rank == 0)], x)
    )


@more_than_one_rank
def test_different_operators(P_world):
    first, second = dnn.AllSumReduce(P_world, [0]), dnn.Broadcast(P_world, P_world)
    text = raises_everywhere(
        RuntimeError,
        "the ranks do not make the same call",
        lambda: (first if job.rank == 0 else second)(torch.ones(2)),
    )
    assert "AllSumReduce number" in text
    assert "Broadcast number" in text
    assert torch.equal(second(torch.ones(2)), torch.ones(2))


@more_than_one_rank
def test_forward_on_some_ranks_and_backward_on_others(P_world):
    layer = dnn.AllSumReduce(P_world, axes_reduce=[0])
    x = torch.ones(2, requires_grad=True)
    y = layer(x)
    raises_everywhere(
        RuntimeError,
        "the ranks do not make the same call",
        lambda: y.sum().backward() if job.rank == 0 else layer(x),
    )


OTHER_THINGS = {
    "construction": ("construction of Broadcast", lambda P: dnn.Broadcast(P, P)),
    "partition": ("create_partition_inclusive", lambda P: P.create_partition_inclusive([0])),
    "data": ("allgather_data", lambda P: P.allgather_data(1)),
}


@more_than_one_rank
@pytest.mark.parametrize(("name", "action"), OTHER_THINGS.values(), ids=OTHER_THINGS)
@pytest.mark.parametrize("order", ["same", "reversed"])
def test_an_operator_on_some_ranks_and_something_else_on_others(P_world, name, action, order):
    """Also where the two have the same ranks in another order."""
    ranks = range(job.size) if order == "same" else range(job.size - 1, -1, -1)
    layer = dnn.AllSumReduce(grid(P_world, [job.size], ranks), axes_reduce=[0])
    x = torch.ones(2)
    text = raises_everywhere(
        RuntimeError,
        "the ranks do not make the same call",
        lambda: layer(x) if job.rank == 0 else action(P_world),
    )
    assert "AllSumReduce number" in text
    assert name in text
    assert torch.equal(layer(x), torch.full((2,), float(job.size)))


CONSTRUCTIONS = {
    "broadcast": lambda P: dnn.Broadcast(P, P),
    "sum_reduce": lambda P: dnn.SumReduce(P, P),
    "all_sum_reduce": lambda P: dnn.AllSumReduce(P, axes_reduce=[0]),
    "all_gather": lambda P: dnn.AllGather(P, axes_all_gather=[0]),
    "reduce_scatter": lambda P: dnn.ReduceScatter(P, axes_reduce_scatter=[0]),
    "repartition": lambda P: dnn.Repartition(P, P),
    "halo_exchange": lambda P: dnn.HaloExchange(P, 0),
}
every_construction = pytest.mark.parametrize("construct", CONSTRUCTIONS.values(), ids=CONSTRUCTIONS)


@more_than_one_rank
@every_construction
@pytest.mark.parametrize("other", ["shape", "order", "fewer"])
def test_another_partition_on_one_rank(P_world, construct, other):
    P = grid(P_world, [1, job.size])
    wrong = {
        "shape": grid(P_world, [job.size, 1]),
        "order": grid(P_world, [1, job.size], range(job.size - 1, -1, -1)),
        "fewer": grid(P_world, [1, job.size - 1]),
    }[other]
    raises_everywhere(
        ValueError, "ask for different things", lambda: construct(wrong if job.rank == job.size - 1 else P)
    )
    construct(P)


@more_than_one_rank
@every_construction
def test_a_layer_constructed_on_some_ranks_only_meets_another(P_world, construct):
    """A rank skips a construction and is at the next."""
    other = lambda: dnn.Broadcast(grid_of_one, P_world)  # noqa: E731
    grid_of_one = grid(P_world, [1])
    raises_everywhere(ValueError, "ask for different things", lambda: other() if job.rank == 0 else construct(P_world))


@pytest.mark.parametrize("bad", [None, 3, "P", [0]], ids=str)
def test_what_is_no_partition(P_world, bad):
    """The ranks of the other partition are told."""
    last = job.rank == job.size - 1
    raises_everywhere(
        TypeError,
        "has to be a distdl.Partition or an mpi4py",
        lambda: dnn.Repartition(P_world, bad if last else P_world),
    )
    raises_everywhere(TypeError, "has to be a distdl.Partition", lambda: dnn.AllSumReduce(bad, [0]))


AXES = {
    "neither": ({}, "got neither"),
    "both": ({"axes": [0], "axes_keep": [1]}, "not both"),
    "outside": ({"axes": [2]}, "axis 2 is not an axis"),
    "twice": ({"axes": [0, -2]}, "given twice"),
}


def test_axes_that_are_no_integers_on_one_rank(P_world):
    P = grid(P_world, [1, job.size])
    wrong = [0.5] if job.rank == job.size - 1 else [0]
    raises_everywhere(TypeError, "integer", lambda: dnn.AllSumReduce(P, wrong))


@pytest.mark.shared
@pytest.mark.parametrize(("arguments", "match"), AXES.values(), ids=AXES)
@pytest.mark.parametrize(
    ("layer", "name"),
    [
        (dnn.AllSumReduce, "axes_reduce"),
        (dnn.AllGather, "axes_all_gather"),
        (dnn.ReduceScatter, "axes_reduce_scatter"),
    ],
)
def test_bad_axes(P_world, layer, name, arguments, match):
    P = grid(P_world, [1, job.size])
    named = {name if key == "axes" else key: value for key, value in arguments.items()}
    raises_everywhere(ValueError, match, lambda: layer(P, **named))


def test_disjoint_bare_communicators_cannot_find_each_other():
    if job.size < 2:
        return
    halves = MPI.COMM_WORLD.Split(job.rank % 2)
    communicators = [halves, MPI.COMM_NULL] if job.rank % 2 == 0 else [MPI.COMM_NULL, halves]
    with pytest.raises(ValueError, match="no rank of these knows"):
        dnn.Repartition(*communicators)
    halves.Free()


def test_a_freed_communicator(P_world):
    comm = MPI.COMM_WORLD.Dup()
    layer = dnn.AllSumReduce(distdl.Partition(comm), [0])
    layer(torch.ones(2))
    comm.Free()
    raises_everywhere(RuntimeError, "was freed", lambda: layer(torch.ones(2)))


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.bits8], ids=str)
def test_dtypes_without_a_sum(P_world, dtype):
    x = torch.zeros(3, dtype=torch.uint8).view(dtype)
    layer = dnn.AllSumReduce(P_world, [0])
    if dtype == torch.bits8:
        raises_everywhere(TypeError, "cannot be summed", lambda: layer(x))
    else:
        assert layer(x).dtype == dtype


@pytest.mark.parametrize("on_all", [True, False])
def test_one_partition_too_few_names_it(P_world, on_all):
    P_x = grid(P_world, [job.size, 1])
    partitions = (P_x, P_x) if on_all or job.rank == 0 else (P_x,)
    rule = "DistributedLinear: P_W is not given; it takes P_x alone, or P_x, P_y and P_W"
    raises_everywhere(ValueError, rule, lambda: distdl.nn.DistributedLinear(*partitions, 3, 2))

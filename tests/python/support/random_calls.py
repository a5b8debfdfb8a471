"""Random calls of every primitive: partitions, ranks, shapes and options, all that fits the job."""

import itertools
import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from hypothesis import strategies as st
from mpi4py import MPI

import distdl
import distdl.nn as dnn
from distdl import operators
from support import dense
from support.blocks import balanced, grid, grid_shapes
from support.ranks import job

RANKS = range(job.size)
# All orders of a few ranks, some of many.
ORDERS = (
    list(itertools.permutations(RANKS))
    if job.size <= 4
    else [tuple(random.Random(i).sample(RANKS, job.size)) for i in range(12)]
)
SHAPES = {dims: grid_shapes(dims, job.size) for dims in range(1, 5)}


class Partitions:
    """Partitions on a communicator of their own, which is freed now and then: MPI has two thousand of them."""

    def __init__(self):
        self.comm, self.made = MPI.COMM_NULL, {}
        self.draws = self.cases = 0

    def __call__(self, workers: dense.Grid) -> distdl.Partition:
        if workers not in self.made:
            self.made[workers] = grid(self.world, workers.shape, workers.ranks)
        return self.made[workers]

    def next_draw(self):
        if self.draws % 100 == 0:
            self.free()
            self.comm = MPI.COMM_WORLD.Dup()
            self.world = distdl.Partition(self.comm)
        self.draws += 1

    def free(self):
        self.made.clear()
        if self.comm != MPI.COMM_NULL:
            self.comm.Free()


@dataclass
class Draw:
    """A primitive as it is constructed and as it is defined, and the shapes of what each rank passes."""

    kind: Callable[..., Any]
    arguments: tuple[Any, ...]
    definition: tuple[Any, ...]  # a function of dense.py and its arguments after the tensors
    shapes: list[tuple[int, ...]]
    linear: bool = True

    def construct(self, partitions):
        return self.kind(*(partitions(arg) if isinstance(arg, dense.Grid) else arg for arg in self.arguments))

    def define(self, tensors: dense.Tensors) -> dense.Tensors:
        function, *arguments = self.definition
        return function(tensors, *arguments)


@st.composite
def grids(draw, dims=None):
    shape = draw(st.sampled_from(SHAPES[dims or draw(st.integers(1, 4))]))
    return dense.Grid(shape, draw(st.sampled_from(ORDERS))[: math.prod(shape)])


@st.composite
def matching(draw):
    """Two grids by the matching rules: the roots, the many, and how each is read."""
    many = draw(st.sampled_from(SHAPES[draw(st.integers(1, 4))]))
    collapsed = draw(st.lists(st.booleans(), min_size=len(many), max_size=len(many)))
    roots = [1 if alone else n for alone, n in zip(collapsed, many, strict=True)]
    roots = roots[draw(st.integers(0, len(many) - 1)) :]  # the extension to the left adds extents of 1
    transposed = draw(st.booleans()), draw(st.booleans())
    pair = [
        dense.Grid(tuple(shape[:: -1 if backwards else 1]), draw(st.sampled_from(ORDERS))[: math.prod(shape)])
        for shape, backwards in zip((roots, many), transposed, strict=True)
    ]
    return *pair, *transposed


@st.composite
def outside(draw):
    """The inputs of ranks that have no part of the tensor."""
    return draw(st.sampled_from([(0,), (0,), (3, 0)]))


@st.composite
def any_shape(draw, largest=4):
    return tuple(draw(st.lists(st.integers(0, 4), max_size=largest)))


def grown(shape, by):
    """Another shape of as many dimensions."""
    return (*shape[:-1], shape[-1] + by) if shape else ()


@st.composite
def broadcasts(draw):
    roots, many, *transposed = draw(matching())
    shape, nowhere, batch = draw(any_shape()), draw(outside()), draw(st.booleans())
    shapes = [grown(shape, rank % 3) if rank in roots.ranks else nowhere for rank in RANKS]
    arguments = (roots, many, *transposed, batch)
    return Draw(dnn.Broadcast, arguments, (dense.broadcast, *arguments), shapes)


@st.composite
def sum_reductions(draw):
    roots, many, *transposed = draw(matching())
    shape, nowhere, batch = draw(any_shape()), draw(outside()), draw(st.booleans())
    target = dense.matches(roots, many, *transposed)
    shapes = [grown(shape, target[rank] % 3) if rank in many.ranks else nowhere for rank in RANKS]
    arguments = (many, roots, *transposed[::-1], batch)
    return Draw(dnn.SumReduce, arguments, (dense.sum_reduce, *arguments), shapes)


@st.composite
def axes_of(draw, P):
    """Some axes of a grid, as the primitives take them: these or the others, from either end."""
    dims = len(P.shape)
    along = [d for d in range(dims) if draw(st.booleans())]
    axes = along if (themselves := draw(st.booleans())) else [d for d in range(dims) if d not in along]
    signed = [d - dims if draw(st.booleans()) else d for d in axes]
    return along, (signed, None) if themselves else (None, signed)


@st.composite
def all_sum_reductions(draw):
    P_x = draw(grids())
    along, arguments = draw(axes_of(P_x))
    shape, nowhere = draw(any_shape()), draw(outside())
    shapes = [nowhere] * job.size
    for index, rank in P_x.workers:
        shapes[rank] = grown(shape, sum(i for d, i in enumerate(index) if d not in along))
    return Draw(dnn.AllSumReduce, (P_x, *arguments), (dense.all_sum_reduce, P_x, along), shapes)


@st.composite
def sizes_on(draw, P):
    """The sizes of blocks along each dimension, balanced or not."""
    sizes = []
    for n in P.shape:
        if draw(st.booleans()):
            sizes.append([stop - start for start, stop in (balanced(draw(st.integers(0, 9)), n, i) for i in range(n))])
        else:
            sizes.append(draw(st.lists(st.integers(0, 4), min_size=n, max_size=n)))
    return sizes


@st.composite
def shapes_on(draw, P_x, whole_along=()):
    """The shapes of blocks on a grid, along some axes of the whole extent, and of what the other ranks pass."""
    sizes, nowhere = draw(sizes_on(P_x)), draw(outside())
    shapes = [nowhere] * job.size
    for index, rank in P_x.workers:
        own = [along[i] for along, i in zip(sizes, index, strict=True)]
        shapes[rank] = tuple(sum(sizes[d]) if d in whole_along else n for d, n in enumerate(own))
    return shapes


@st.composite
def all_gathers(draw):
    P_x = draw(grids())
    shapes = draw(shapes_on(P_x))
    along, arguments = draw(axes_of(P_x))
    return Draw(dnn.AllGather, (P_x, *arguments), (dense.all_gather, P_x, along), shapes)


@st.composite
def reduce_scatters(draw):
    P_x = draw(grids())
    along, arguments = draw(axes_of(P_x))
    shapes = draw(shapes_on(P_x, along))
    return Draw(dnn.ReduceScatter, (P_x, *arguments), (dense.reduce_scatter, P_x, along), shapes)


@st.composite
def repartitions(draw):
    P_x = draw(grids())
    shapes = draw(shapes_on(P_x))
    P_y, batch = draw(grids(len(P_x.shape))), draw(st.booleans())
    return Draw(dnn.Repartition, (P_x, P_y, batch), (dense.repartition, P_x, P_y, batch), shapes)


@st.composite
def beyond(draw, dims):
    """The surroundings of a tensor of so many dimensions: where it wraps, and the value elsewhere."""
    return [draw(st.booleans()) for _ in range(dims)], draw(st.sampled_from([0.0, 0.0, 0.0, 2.0]))


@st.composite
def halo_exchanges(draw):
    P_x = draw(grids())
    shapes = draw(shapes_on(P_x))
    dims = len(P_x.shape)
    periodic, fill = draw(beyond(dims))
    width = st.integers(-2, 5 if dims < 3 else 2)
    for_all = [(draw(width), draw(width)) for _ in range(dims)] if draw(st.booleans()) else None
    widths = {}
    for rank in P_x.ranks:
        drawn = for_all or [(draw(width), draw(width)) for _ in range(dims)]
        # No more can be cut away than there is.
        widths[rank] = [(left, max(right, -left - n)) for (left, right), n in zip(drawn, shapes[rank], strict=True)]
    layer = partial(dnn.HaloExchange, periodic=periodic, fill_value=fill)
    definition = (dense.halo_exchange, P_x, widths, periodic, fill)
    return Draw(layer, (P_x, widths.get(job.rank, 0)), definition, shapes, linear=fill == 0)


@st.composite
def interval_exchanges(draw):
    """The exchange behind layers that read windows."""
    P_x = draw(grids())
    shapes = draw(shapes_on(P_x))
    P_y = draw(grids(len(P_x.shape)))
    periodic, fill = draw(beyond(len(P_x.shape)))
    wanted = []
    for n in P_y.shape:
        starts = draw(st.lists(st.integers(-3, 9), min_size=n, max_size=n))
        wanted.append([(start, start + draw(st.integers(0, 5))) for start in starts])
    arguments = (P_x, P_y, wanted, periodic, fill)

    def layer(P_x, P_y, *others):
        return operators.interval_exchange("Intervals", P_x.grid, P_y.grid, *others)

    return Draw(layer, arguments, (dense.interval_exchange, *arguments), shapes, linear=fill == 0)


EVERY = {
    "broadcast": broadcasts,
    "sum_reduce": sum_reductions,
    "all_sum_reduce": all_sum_reductions,
    "all_gather": all_gathers,
    "reduce_scatter": reduce_scatters,
    "repartition": repartitions,
    "halo_exchange": halo_exchanges,
    "interval_exchange": interval_exchanges,
}

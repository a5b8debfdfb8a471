"""Every primitive on random partitions, ranks, shapes, dtypes and strides, against its definition on whole tensors.

Hypothesis draws the same examples on all ranks. The values are small integers, of which all sums are exact, and rounded
once to dtypes that do not have them: so everything is equal bit by bit. DISTDL_DRAWS is the number of draws in a job;
with it, jobs of more than four ranks draw too.
"""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import distdl
from support.random_calls import EVERY, Partitions
from support.ranks import draws, job, on_all_ranks, together
from support.strides import PLAIN, STRIDES
from support.tensors import ALL_DTYPES, COMPLEX, REAL, same_bits, values


@pytest.fixture(scope="module")
def partitions():
    made = Partitions()
    yield made
    made.free()
    if job.rank == 0:
        print(f"{made.draws} draws, {made.cases} calls on {job.size} ranks")


def wide(dtype):
    """A dtype in which all sums of the test are exact."""
    if dtype.is_complex:
        return torch.complex128
    return torch.float64 if dtype.is_floating_point else torch.int64


def derivatives(function, x, v, w):
    """y = A x, A* v, and what <A* v, w> gives by v, which is A w: of lists of tensors."""
    leaves, cotangents = ([tensor.detach().requires_grad_() for tensor in tensors] for tensors in (x, v))

    def gradients(of, by, along):
        pairs = [(y, direction) for y, direction in zip(of, along, strict=True) if y.requires_grad]
        if not pairs:
            return [torch.zeros_like(leaf) for leaf in by]
        of, along = zip(*pairs, strict=True)
        return torch.autograd.grad(of, by, along, create_graph=True, allow_unused=True, materialize_grads=True)

    y = function(leaves)
    first = gradients(y, leaves, cotangents)
    second = gradients(first, cotangents, w)
    return [[tensor.detach() for tensor in tensors] for tensors in (y, first, second)]


def check(layer, drawn, dtype, how, halves):
    """A call: values, gradients and second gradients, and that the call and its backward pass are adjoint."""
    function = (lambda x: distdl.functional.wait(layer.start(x))) if halves else layer
    x = [how(values(shape, dtype, seed)) for seed, shape in enumerate(drawn.shapes)]
    exact = [tensor.to(wide(dtype)) for tensor in x]
    if dtype not in (*REAL, *COMPLEX):
        assert same_bits(function(x[job.rank]), drawn.define(exact)[job.rank].to(dtype))
        return
    shapes = [y.shape for y in drawn.define(exact)]
    v = [how(values(shape, dtype, 100 + seed)) for seed, shape in enumerate(shapes)]
    w = [how(values(shape, dtype, 200 + seed)) for seed, shape in enumerate(drawn.shapes)]
    expected = derivatives(drawn.define, exact, *([tensor.to(wide(dtype)) for tensor in some] for some in (v, w)))
    results = derivatives(lambda inputs: [function(inputs[0])], *([some[job.rank]] for some in (x, v, w)))
    for (result,), whole in zip(results, expected, strict=True):
        assert same_bits(result, whole[job.rank].to(dtype)), (result, whole[job.rank])
    if drawn.linear and dtype.itemsize >= 8:
        (y,), (gradient,), _ = results
        both = [inner(y, v[job.rank]), inner(x[job.rank], gradient)]
        left, right = (sum(terms) for terms in zip(*together(both), strict=True))
        assert left == right


def inner(a, b):
    return complex((a.conj() * b).sum())


@st.composite
def calls(draw):
    """A dtype, how the input lies in memory, and whether the call is made in two halves."""
    dtype = draw(st.sampled_from(ALL_DTYPES))
    how = draw(st.sampled_from(STRIDES if dtype in (*REAL, *COMPLEX) else PLAIN))
    return dtype, how, draw(st.booleans())


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
@draws(1000)
@given(st.sampled_from(list(EVERY.values())).flatmap(lambda make: make()), st.lists(calls(), min_size=1, max_size=5))
@on_all_ranks
def test_equals_its_definition(partitions, drawn, made_calls):
    partitions.next_draw()
    layer = drawn.construct(partitions)
    for call in made_calls:
        check(layer, drawn, *call)
        together(None)  # or a rank on which this call failed would miss at the next call
        partitions.cases += 1

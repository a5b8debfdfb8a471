"""Tensors of a user's own class: a layer is one function to them, and all ranks raise their errors."""

import pytest
import torch

import distdl.nn as dnn
from support.blocks import grid
from support.families import EXAMPLES, splits
from support.ranks import job, raises_everywhere
from support.sequential import as_tuple, block
from support.tensors import same_bits, values

pytestmark = pytest.mark.ranks(1, 2, 3)
last = job.rank == job.size - 1


class Marked(torch.Tensor):
    """With a mark, which results have as well."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        result = super().__torch_function__(func, types, args, kwargs)
        for tensor in as_tuple(result):
            if isinstance(tensor, cls):
                tensor.mark = next((x.mark for x in (*args, *(kwargs or {}).values()) if hasattr(x, "mark")), None)
        return result


class Unwilling(torch.Tensor):
    """Takes part in no function but those that layers are."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func.__name__ != "layer":
            raise RuntimeError(f"not {func.__name__}")
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))


class Refusing(torch.Tensor):
    """Takes part in no function."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        raise RuntimeError("not at all")


class Silent(torch.Tensor):
    """Has a result of its own for each function."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        return 3


class Dispatching(torch.Tensor):
    """Carries out torch's operators itself, in the midst of a call."""

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        raise RuntimeError("not this one")


def softmax(P):
    return dnn.DistributedSoftmax(grid(P, [1, job.size]), 1), values((2, 3), seed=job.rank)


@pytest.mark.drawn(20)
@pytest.mark.parametrize("example", EXAMPLES.values(), ids=EXAMPLES)
def test_the_class_of_the_result(P_world, example):
    """The first input's, on the rank where it has a class of its own; the numbers are a plain tensor's."""
    P = grid(P_world, splits(example)[-1])
    layer, inputs = example.make(example.twin(), P), [block(x, P, c) for x, c in zip(example.inputs(), example.cuts)]  # noqa: B905
    torch.manual_seed(3)
    expected = as_tuple(layer(*inputs, **example.call))
    torch.manual_seed(3)
    if last:
        inputs[0] = inputs[0].as_subclass(Marked)
        inputs[0].mark = "mine"
    results = as_tuple(layer(*inputs, **example.call))
    for y, whole in zip(results, expected, strict=True):
        assert type(y) is (Marked if last and isinstance(layer, dnn.Layer) else type(y))
        assert getattr(y, "mark", "mine") == "mine"
        assert same_bits(y.as_subclass(torch.Tensor), whole)


def test_gradients_reach_it(P_world):
    layer, x = softmax(P_world)
    leaf = x.clone().requires_grad_()
    y = layer((leaf * 1).as_subclass(Marked) if last else leaf * 1)
    y.square().sum().backward()
    expected = x.clone().requires_grad_()
    layer(expected).square().sum().backward()
    assert torch.equal(leaf.grad, expected.grad)


def test_it_is_not_asked_within_the_call(P_world):
    layer, x = softmax(P_world)
    assert torch.equal(layer(x.as_subclass(Unwilling) if last else x), layer(x))


def local(P):
    torch.manual_seed(0)
    return dnn.Local(grid(P, [job.size, 1]), torch.nn.Linear(3, 2, dtype=torch.float64)), values((2, 3), seed=job.rank)


@pytest.mark.parametrize("make", [softmax, local])
@pytest.mark.parametrize(("kind", "words"), [(Refusing, "not at all"), (Silent, "does not make the call")])
def test_what_it_raises_is_raised_on_all_ranks(P_world, kind, words, make):
    layer, x = make(P_world)
    before = layer(x)
    raises_everywhere(TypeError, words, lambda: layer(x.as_subclass(kind) if last else x))
    raises_everywhere(TypeError, words, lambda: layer(input=x.as_subclass(kind) if last else x))
    assert torch.equal(layer(x), before)


@pytest.mark.parametrize("make", [softmax, lambda P: (dnn.AllSumReduce(grid(P, [job.size]), [0]), values((2,)))])
def test_operators_of_its_own_are_refused(P_world, make):
    """By layers and primitives. Others would not hear of an error in the midst of a call."""
    layer, x = make(P_world)
    before = layer(x)
    tensor = torch.Tensor._make_subclass(Dispatching, x) if last else x
    raises_everywhere(TypeError, "__torch_dispatch__ of its own", lambda: layer(tensor))
    assert torch.equal(layer(x), before)

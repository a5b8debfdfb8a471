"""Results of distributed models: structures, classes and objects of any kind."""

import dataclasses
import types

import pytest
import torch
from torch.utils._pytree import MappingKey, register_pytree_node, tree_leaves

import distdl
from support.distributed import assert_none, off, over_rows, whole
from support.ranks import raises_everywhere


@dataclasses.dataclass
class Result:
    scores: torch.Tensor
    count: int = 0


class Returning(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.conv, self.function = torch.nn.Conv2d(2, 3, 1), function
        self.register_buffer("ones", torch.ones(3))

    def forward(self, x):
        return self.function(self, self.conv(x))


def test_a_dataclass_is_returned():
    model = Returning(lambda model, y: {"results": [Result(y, 7), Result(y.mean())]})
    ours, P_x = over_rows(model)
    image = torch.rand(2, 2, 5, 7)
    results = whole(ours, distdl.scatter(image, P_x))["results"]
    assert [(type(result), result.count) for result in results] == [(Result, 7), (Result, 0)]
    expected = model(image)["results"]
    assert_none([off(results[i].scores, expected[i].scores, 1e-5) for i in range(2)])


class Output(dict):
    """Results without those that are None, as transformers has them."""

    def __init__(self, **results):
        super().__init__({name: result for name, result in results.items() if result is not None})


register_pytree_node(
    Output,
    lambda output: ([*output.values()], [*output]),
    lambda values, names: Output(**dict(zip(names, values, strict=True))),
    flatten_with_keys_fn=lambda output: ([(MappingKey(name), y) for name, y in output.items()], [*output]),
)


def test_results_that_are_whole_may_be_left_out_of_the_partitions():
    model = Returning(lambda model, y: Output(pooled=y.mean((0, 2, 3)), loss=y.mean(), last=y, states=[y, y.sum()]))
    ours, P_x = over_rows(model)
    image = torch.rand(2, 2, 5, 7)
    results, expected = whole(ours, distdl.scatter(image, P_x)), model(image)
    assert [*results] == [*expected]
    leaves, others = tree_leaves(results), tree_leaves(expected)
    assert_none([off(y, other, 1e-5) for y, other in zip(leaves, others, strict=True)])
    y = ours(distdl.scatter(image, P_x))
    raises_everywhere(TypeError, "tensors and 2 partitions", lambda: distdl.gather(y, [P_x, P_x]))


class Cache:
    """An object with tensors in its attributes, in lists of other objects, and with others."""

    def __init__(self, y):
        self.layers = [types.SimpleNamespace(keys=y, values=2 * y, kind=torch.float64), None]
        self.limits, self.make, self.count = {"length": 7}, dict, y.shape[0]


class Named(dict):
    """A dict with an attribute."""


def test_objects_are_returned():
    def make(model, y):
        named = Named(scores=y)
        named.total = y.sum()
        return Cache(y), named

    model = Returning(make)
    ours, P_x = over_rows(model)
    image = torch.rand(2, 2, 5, 7)
    for _ in range(2):
        cache, named = whole(ours, distdl.scatter(image, P_x))
        expected, others = model(image)
        layer, of_model = cache.layers[0], expected.layers[0]
        assert (type(cache), cache.limits, cache.make, cache.count) == (Cache, {"length": 7}, dict, 2)
        assert (layer.kind, cache.layers[1]) == (torch.float64, None)
        pairs = [(layer.keys, of_model.keys), (layer.values, of_model.values), (named["scores"], others["scores"])]
        assert_none([off(*pair, 1e-5) for pair in [*pairs, (named.total, others.total)]])


@pytest.mark.parametrize(
    "make",
    [lambda y: torch.nn.ParameterList([y]), lambda y: {y}, lambda y: iter([y])],
    ids=["module", "set", "iterator"],
)
def test_objects_that_hide_tensors_are_refused(make):
    ours, P_x = over_rows(Returning(lambda model, y: make(y)))
    x = distdl.scatter(torch.rand(2, 2, 5, 7), P_x)
    raises_everywhere(NotImplementedError, "in which tensors cannot be found", lambda: ours(x), seconds=20.0)


def test_results_without_derivatives_ask_for_none():
    model = Returning(lambda model, y: (y, y.detach(), torch.zeros_like(y) + 1, model.ones, y > 0))
    ours, P_x = over_rows(model)
    image = torch.rand(2, 2, 5, 7)
    results, expected = ours(distdl.scatter(image, P_x)), model(image)
    assert [tensor.requires_grad for tensor in results] == [tensor.requires_grad for tensor in expected]


def test_values_as_arrays_are_refused_with_the_line():
    ours, P_x = over_rows(Returning(lambda model, y: y * y.detach().numpy().sum()))
    x = distdl.scatter(torch.rand(2, 2, 5, 7), P_x)
    raises_everywhere(
        NotImplementedError, r"numpy looks at the values .*test_returned.py", lambda: ours(x), seconds=20.0
    )

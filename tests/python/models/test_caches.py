"""Caches that models fill, and results with more dimensions than P_x, in later calls."""

import copy

import pytest
import torch
import torch.nn.functional as F

import distdl
from support.blocks import grid
from support.distributed import P_world, assert_none, noise, off
from support.ranks import job, raises_everywhere


class Layer:
    """The keys and values of a layer."""

    def __init__(self):
        self.keys = self.values = None

    def update(self, keys, values):
        self.keys = keys if self.keys is None else torch.cat([self.keys, keys], 2)
        self.values = values if self.values is None else torch.cat([self.values, values], 2)
        return self.keys, self.values


class Cache:
    """Of several layers, as transformers has it: models fill the one that they are passed, or make one."""

    def __init__(self):
        self.layers, self.length = [], 0

    def update(self, i, keys, values):
        while len(self.layers) <= i:
            self.layers.append(Layer())
        self.length += keys.shape[2] if i == 0 else 0
        return self.layers[i].update(keys, values)


class Decoder(torch.nn.Module):
    """Attention of tokens to those of earlier calls, too, in so many layers that a call has many tensors."""

    def __init__(self, returns=True):
        super().__init__()
        self.tokens, self.returns = torch.nn.Embedding(11, 8), returns
        self.projections = torch.nn.ModuleList(torch.nn.Linear(8, 24) for _ in range(9))

    def forward(self, tokens, cache=None):
        cache = Cache() if cache is None else cache
        x, before = self.tokens(tokens), cache.length
        for i, projection in enumerate(self.projections):
            q, k, v = projection(x).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)
            k, v = cache.update(i, k, v)
            mask = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).tril(before)
            x = x + F.scaled_dot_product_attention(q, k, v, mask).transpose(1, 2).flatten(2)
        return (x, cache) if self.returns else x


def decoded(split, step):
    """What is wrong with the results of calls of a model, of which `step` makes one with the cache of the last."""
    torch.manual_seed(0)
    model = Decoder().double()
    P_x, expected = grid(P_world, split), copy.deepcopy(model)
    ours = distdl.distribute(model, P_x)
    caches, problems = [None, None], []
    for length in (5, 4, 1, 2):
        tokens = torch.randint(11, (4, length), generator=torch.Generator().manual_seed(length))
        y, caches[0] = step(ours, distdl.scatter(tokens, P_x), caches[0])
        y = distdl.gather(y, ours.output_partition[0])
        other, caches[1] = step(expected, tokens, caches[1])
        problems.append(off(y, other.detach()))
        assert caches[0].length == caches[1].length
    return problems


def passed_on(model, tokens, cache):
    return model(tokens) if cache is None else model(tokens, cache=cache)


def filled(model, tokens, cache):
    cache = cache or Cache()
    y, own = model(tokens, cache)
    assert own is cache
    return y, cache


@pytest.mark.parametrize("along", [0, 1], ids=["batch", "sequence"])
@pytest.mark.parametrize("step", [passed_on, filled])
def test_caches_are_passed_from_call_to_call(step, along):
    assert_none(decoded([job.size if d == along else 1 for d in range(2)], step))


def test_a_cache_that_is_changed_and_not_returned_is_refused():
    P_x, cache = grid(P_world, [job.size, 1]), Cache()
    ours = distdl.distribute(Decoder(returns=False), P_x)
    tokens = distdl.scatter(torch.ones(4, 3, dtype=torch.long), P_x)
    raises_everywhere(NotImplementedError, "a Cache, and does not return it", lambda: ours(tokens, cache), seconds=20.0)
    assert not cache.layers
    assert ours(tokens).shape[1:] == (3, 8)


class Folding(torch.nn.Module):
    """Returns its input with a further dimension, or takes such a tensor."""

    def forward(self, x, folded=None):
        return x.unflatten(1, (2, -1)) * 2 if folded is None else x + folded.flatten(1, 2)


def test_results_with_more_dimensions_are_known_in_the_next_call():
    """Of the same model, not of a copy."""
    P_x = grid(P_world, [job.size, 1])
    ours, x = distdl.distribute(Folding(), P_x), noise((4, 6))
    block = distdl.scatter(x, P_x)
    folded = ours(block)
    y = ours(block, folded)
    assert_none([off(distdl.gather(y, P_x), 3 * x)])
    other = copy.deepcopy(ours)
    for model in (ours, other):
        raises_everywhere(ValueError, "more dimensions than P_x", lambda m=model: m(block, folded + 0), seconds=20.0)
    raises_everywhere(ValueError, "more dimensions than P_x", lambda: other(block, folded), seconds=20.0)


class Turning(torch.nn.Module):
    """Returns two tensors of one shape in different blocks, or takes both."""

    def forward(self, x, first=None, second=None):
        y = x.unflatten(1, (2, -1))
        return (y + 1, y.transpose(0, 2)) if first is None else x + (first + second.transpose(0, 2)).flatten(1, 2)


def test_results_of_one_shape_keep_their_blocks():
    P_x = grid(P_world, [job.size, 1])
    ours, x = distdl.distribute(Turning(), P_x), noise((2 * job.size, 4 * job.size))
    block = distdl.scatter(x, P_x)
    y, z = ours(block)
    assert_none([off(distdl.gather(ours(block, y, z), P_x), 3 * x + 1)])
    if job.size > 1:
        other = y if job.rank else y + 0
        raises_everywhere(ValueError, "the ranks differ", lambda: ours(block, other, z), seconds=20.0)


class Calling(torch.nn.Module):
    """A function of a tensor and an object."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x, held):
        return self.function(x, held)


class Counted(Layer):
    """Its text says nothing of its number."""

    def __init__(self, number):
        super().__init__()
        self.number = number

    def __repr__(self):
        return "Counted"


def added(x, held):
    held.keys = held.keys + x
    return held.keys * 2


def added_to_a_view(x, held):
    held.keys.view(-1).add_(1)
    return x * 2


def inserted(x, held):
    held.insert(0, x)
    return held[0] * 2, held


def assigned(x, held):
    held["keys"] = x
    return x * 2, held


@pytest.mark.parametrize(
    ("function", "kind"), [(added, "Layer"), (added_to_a_view, "Layer"), (inserted, "list"), (assigned, "dict")]
)
def test_what_would_be_lost_is_refused(function, kind):
    P_x = grid(P_world, [job.size, 1])
    ours, block = distdl.distribute(Calling(function), P_x), distdl.scatter(noise((4, 6)), P_x)
    held = {"Layer": Layer(), "list": [], "dict": {}}[kind]
    if kind == "Layer":
        held.keys = block.clone()
    raises_everywhere(NotImplementedError, f"changes an argument, a {kind}", lambda: ours(block, held), seconds=20.0)


def test_objects_in_lists_and_without_texts_of_their_own():
    def summed(x, held):
        first, second = held
        first.keys = second.keys = x if first.keys is None else first.keys + second.keys
        return first.keys * 2, first, second

    P_x, held = grid(P_world, [job.size, 1]), [Layer(), Layer()]
    ours, x = distdl.distribute(Calling(summed), P_x), noise((4, 6))
    for factor in (2, 4, 8):
        y = ours(distdl.scatter(x, P_x), held)[0]
        assert_none([off(distdl.gather(y, P_x), factor * x), off(distdl.gather(held[1].keys, P_x), factor / 2 * x)])


def test_what_a_text_hides_counts():
    P_x = grid(P_world, [job.size, 1])
    ours, x = distdl.distribute(Calling(lambda x, held: x * held.number), P_x), noise((4, 6))
    for number in (1, 2, 1):
        y = ours(distdl.scatter(x, P_x), Counted(number))
        assert_none([off(distdl.gather(y, P_x), number * x)])

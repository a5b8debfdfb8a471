"""Each argument of each function that has a rule: the result is torch's, or the function or the argument is refused."""

import inspect
import re
from dataclasses import replace

import pytest
import torch
from torch.overrides import handle_torch_function, has_torch_function
from torch.utils._pytree import tree_map_only

from distdl.models.rules import RULES
from support.arguments.calls import calls_of
from support.arguments.signatures import functions
from support.models import Function
from support.ranks import together
from support.splitting import numbers, off_when_split, splits, step
from support.versions import TORCH

FUNCTIONS = functions()
pytestmark = pytest.mark.filterwarnings("ignore")  # of torch, about deprecated arguments


def problems_of(call):
    """Problems of a distributed model that makes a call."""
    whole = numbers(*call.shape, seed=9)
    try:
        _, loss = step(call, whole.clone().requires_grad_())
    except Exception as error:
        return [] if call.may_be_refused else [f"{call}: torch says {error}"]
    derived = has_derivatives(loss)
    draws = getattr(RULES.get(call.key), "__module__", "").endswith("drawing") or "dropout" in call.argument
    options = {"as_sequential": True} if draws else {}
    problems = []
    for split in splits(len(call.shape))[: len(call.shape)]:
        wrong, refusal = [], None
        try:
            wrong = off_when_split(lambda: Function(call), whole, split, derived, **options)
        except Exception as error:
            refusal = f"{type(error).__name__}: {error}".partition(" (raised on rank")[0]
        refusals = together(refusal)
        if len(set(refusals)) > 1:
            problems.append(f"{call}: {split}: {refusals}")
        elif refusal is None:
            problems += [f"{call}: {problem}" for problem in together(wrong)[0]]
        elif TORCH < (2, 13) and refusal == "AssertionError: distribute: ":
            continue  # an assertion of torch's own: they have no text there
        elif not names(refusal, call.key) and not names(refusal, call.argument):
            problems.append(f"{call}: {split}: {refusal}")
    return problems


def names(refusal, name):
    """Whether a message names a function or an argument, be it as torch.nn's layer does."""
    text, _, _ = refusal.partition(", at calls.py")
    plain = name.replace("_", "")
    words = re.findall("[a-zA-Z0-9]+", text.replace("_", ""))
    return bool(name) and any(word.lower().startswith(plain) or word.lower().endswith(plain) for word in words)


def has_derivatives(loss):
    """Whether torch has derivatives of a loss."""
    try:
        loss.backward()
    except (AttributeError, RuntimeError):
        return False
    return True


@pytest.mark.ranks(2)
@pytest.mark.drawn(12)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_each_argument_counts_or_is_refused(name):
    problems = [problem for call in calls_of(FUNCTIONS[name]) for problem in problems_of(call)]
    assert not problems, "\n".join(problems)


def newer(function):
    """A function as a newer torch may have it: with a further argument, which makes its results others."""

    def call(*args, novelty=False, **kwargs):
        if has_torch_function(args):
            return handle_torch_function(call, args, *args, novelty=novelty, **kwargs)
        return tree_map_only(torch.Tensor, lambda y: y + novelty, function(*args, **kwargs))

    call.__name__ = function.__name__
    try:
        own = inspect.signature(function)
        further = inspect.Parameter("novelty", inspect.Parameter.KEYWORD_ONLY, default=False)
        call.__signature__ = own.replace(parameters=[*own.parameters.values(), further])
    except ValueError:
        pass
    return call


@pytest.mark.ranks(2)
@pytest.mark.drawn(12)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_an_argument_of_a_newer_torch_counts_or_is_refused(name):
    problems = []
    for call in calls_of(FUNCTIONS[name]):
        if not call.how:
            kwargs = {**call.kwargs, "novelty": True}
            problems += problems_of(replace(call, function=newer(call.function), argument="novelty", kwargs=kwargs))
    assert not problems, "\n".join(problems)

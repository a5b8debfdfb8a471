"""The rules of operations: for each a small function, split in all ways, beside itself in one process."""

import pytest
import torch.nn.functional as F

import distdl
from distdl.models.capture.decompositions import DECOMPOSITIONS, INLINED
from distdl.models.capture.functions import key_of
from distdl.models.rules import RULES
from support.blocks import grid
from support.growth import assert_stays
from support.models import Function
from support.ranks import job, together
from support.rules import CASES
from support.splitting import numbers, off_when_split, splits, step
from support.versions import TORCH

P_world = distdl.Partition(job)


@pytest.mark.shared
@pytest.mark.filterwarnings("ignore:.*weight_norm:FutureWarning")
@pytest.mark.parametrize("name", CASES)
def test_rule(name):
    function, shape = CASES[name]
    make = function if function.__name__ == "made" else lambda: Function(function)
    problems = []
    for split in splits(len(shape)):
        problems += off_when_split(make, numbers(*shape, seed=9), split)
    assert not any(together(problems)), problems


@pytest.mark.ranks(2)
@pytest.mark.drawn(30)
@pytest.mark.filterwarnings("ignore:.*weight_norm:FutureWarning")
@pytest.mark.parametrize("name", CASES)
def test_nothing_grows(name):
    function, shape = CASES[name]
    P_x = grid(P_world, splits(len(shape))[-2])
    make = function if function.__name__ == "made" else lambda: Function(function)
    step(make(), numbers(*shape, seed=9))  # from now on its numbers are constants
    model = distdl.distribute(make(), P_x)
    x = distdl.scatter(numbers(*shape, seed=9), P_x).detach().requires_grad_()

    def forward_and_backward():
        x.grad = None
        model.zero_grad()
        _, loss = step(model, x)
        if any(together(loss is not None)):
            (x.sum() * 0 if loss is None else loss).backward()

    assert_stays(forward_and_backward, name)


WITHOUT_A_RULE = {"scaled_grouped_mm", "scaled_mm"} if TORCH >= (2, 10) else set()
"""Functions of torch.nn.functional that are refused by name."""
OF_OTHERS = {"assert_int_or_pair", "boolean_dispatch", "upsample", "upsample_bilinear", "upsample_nearest"}
"""Functions that only call others."""


@pytest.mark.ranks(1)
def test_functions_of_torch_have_a_rule_or_are_known_to_have_none():
    modules = ("torch.nn.functional", "torch._jit_internal", "torch._C._nn", None)
    functions = {name for name in dir(F) if callable(getattr(F, name)) and name[0].islower()}
    functions = {name for name in functions if getattr(getattr(F, name), "__module__", None) in modules}
    assert {
        name for name in functions if key_of(getattr(F, name)) not in RULES.keys() | INLINED | DECOMPOSITIONS.keys()
    } - OF_OTHERS == WITHOUT_A_RULE

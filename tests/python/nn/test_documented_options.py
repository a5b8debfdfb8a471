"""The tables of docs/window_layers.py have all options of torch.nn's layers, and name tests that exist."""

import inspect
import re
from pathlib import Path

import pytest
import torch

from support.programs import load_program

pytestmark = pytest.mark.ranks(1)

tests_of_layers = Path(__file__).parent
# The layers of torch.nn that the layers stand for, where they are called otherwise.
SEQUENTIAL = {"FeatureConv": "Conv", "ChannelConv": "Conv", "GeneralConv": "Conv"}


@pytest.fixture(scope="module")
def page():
    return load_program("docs/window_layers")


def options_of(layer):
    """The arguments of torch's layer, of its constructor or at the call."""
    if layer == "Pad":
        functions = [torch.nn.functional.pad]
    else:
        name = SEQUENTIAL.get(layer, layer)
        sequential = getattr(torch.nn, f"{name}2d", None) or getattr(torch.nn, name)
        functions = [sequential.__init__, sequential.forward]
    return {name for function in functions for name in inspect.signature(function).parameters} - {"self", "input"}


def test_tables_have_all_options(page):
    for family in page.FAMILIES.values():
        documented = {layer: [] for layer in family.layers}
        for names, layers, _ in family.options:
            for layer in layers:
                documented[layer] += re.findall(r"``(\w+)``", names)
        for layer, names in documented.items():
            assert sorted(names) == sorted(options_of(layer)), layer


def test_each_claim_has_a_test(page):
    claims = [claim for family in page.FAMILIES.values() for claim in family.tests()]
    assert [claim for claim, tests in claims if not tests] == []
    names = {name for tests in (page.EVERY_DTYPE, *(tests for _, tests in claims)) for name in tests.split()}
    assert names == set(page.TESTS)
    for test in page.TESTS.values():
        file, name = test.split("::")
        (path,) = tests_of_layers.rglob(file)
        assert f"\ndef {name}(" in path.read_text(), test

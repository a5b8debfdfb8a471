"""The tables of options in docs/window_layers.rst have all options of torch.nn's layers, and name tests that exist."""

import inspect
import re
from pathlib import Path

import pytest
import torch

pytestmark = pytest.mark.ranks(1)

tests_of_layers = Path(__file__).parent
page = (tests_of_layers.parents[2] / "docs" / "window_layers.rst").read_text()
REFERENCES = r"(?: \[#[\w-]+\]_)+"
# The layers of torch.nn that the layers stand for, where they are called otherwise.
SEQUENTIAL = {"FeatureConv": "Conv", "ChannelConv": "Conv", "GeneralConv": "Conv"}


def tables(title):
    """The rows of each table whose first column has this title, lists of cells."""
    selected = []
    for block in re.findall(r"^\.\. list-table::\n(?:   .*\n|\n)*", page, re.MULTILINE):
        rows = [re.split(r"\n? +- ", " - " + row)[1:] for row in re.split(r"^   \* - ", block, flags=re.MULTILINE)[1:]]
        (first, *_), *rest = [[" ".join(cell.split()) for cell in row] for row in rows]
        if first == title:
            selected.append(rest)
    return selected


def options_of(layer):
    """The arguments of torch's layer, of its constructor or at the call."""
    if layer == "Pad":
        functions = [torch.nn.functional.pad]
    else:
        name = SEQUENTIAL.get(layer, layer)
        sequential = getattr(torch.nn, f"{name}2d", None) or getattr(torch.nn, name)
        functions = [sequential.__init__, sequential.forward]
    return {name for function in functions for name in inspect.signature(function).parameters} - {"self", "input"}


@pytest.mark.parametrize("number", [0, 1])
def test_tables_have_all_options(number):
    abilities, options = tables("Layer")[number], tables("Option")[number]
    assert len(abilities) == (5, 6)[number]
    documented = {layer: [] for layer, *_ in abilities}
    for layer, *cells in abilities:
        for cell in cells:
            assert re.search(REFERENCES + "$", cell), (layer, cell)
    for names, layers, _ in options:
        for layer in re.split(r", ", layers):
            assert re.fullmatch(r"\w+" + REFERENCES, layer), (names, layer)
            documented[layer.split()[0]] += re.findall(r"``(\w+)``", names)
    for layer, names in documented.items():
        assert sorted(names) == sorted(options_of(layer)), layer


def test_tests_exist():
    tests = dict(re.findall(r"^\.\. \[#([\w-]+)\] ``(\S+)``$", page, re.MULTILINE))
    assert set(re.findall(r"\[#([\w-]+)\]_", page)) == set(tests)
    for test in tests.values():
        file, name = test.split("::")
        (path,) = tests_of_layers.rglob(file)
        assert f"\ndef {name}(" in path.read_text(), test

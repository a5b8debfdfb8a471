"""The tables of options in docs/window_layers.rst have all options of torch.nn's layers, and name tests that exist."""

import inspect
import re
from pathlib import Path

import pytest
import torch

pytestmark = pytest.mark.ranks(1)

tests_of_layers = Path(__file__).parent
page = (tests_of_layers.parents[2] / "docs" / "window_layers.rst").read_text()
DASH = "—"
# The layers of torch.nn that the columns stand for, where they are called otherwise.
SEQUENTIAL = {"FeatureConv": "Conv", "ChannelConv": "Conv", "GeneralConv": "Conv"}


def tables():
    """The rows of each table of layers, lists of cells."""
    found = []
    for block in re.findall(r"^\.\. list-table::\n(?:   .*\n|\n)*", page, re.MULTILINE):
        rows = [re.split(r"\n? +- ", " - " + row)[1:] for row in re.split(r"^   \* - ", block, flags=re.MULTILINE)[1:]]
        if "distdl.nn.Distributed" in rows[0][0]:
            found.append([[" ".join(cell.split()) for cell in row] for row in rows])
    return found


def options_of(column):
    """What torch's layer takes, from its constructor or at the call."""
    if column == "Pad":
        functions = [torch.nn.functional.pad]
    else:
        name = SEQUENTIAL.get(column, column)
        layer = getattr(torch.nn, f"{name}2d", None) or getattr(torch.nn, name)
        functions = [layer.__init__, layer.forward]
    return {name for function in functions for name in inspect.signature(function).parameters} - {"self", "input"}


@pytest.mark.parametrize("number", [0, 1])
def test_tables_have_all_options(number):
    (_, *columns), *rows = tables()[number]
    assert len(columns) == (5, 6)[number]
    options = {column: options_of(column) for column in columns}
    documented = set()
    for row, *cells in rows:
        named = set(re.findall(r"``(\w+)``", row))
        documented |= named
        assert len(cells) == len(columns), row
        for column, cell in zip(columns, cells, strict=True):
            assert re.search(r"\[#[\w-]+\]_", cell) or cell == DASH, (row, column)
            takes = named & options[column]
            assert takes == (set() if cell == DASH else named), (row, column)
    assert set().union(*options.values()) == documented


def test_tests_exist():
    tests = dict(re.findall(r"^\.\. \[#([\w-]+)\] ``(\S+)``$", page, re.MULTILINE))
    assert set(re.findall(r"\[#([\w-]+)\]_", page)) == set(tests)
    for test in tests.values():
        file, name = test.split("::")
        (found,) = tests_of_layers.rglob(file)
        assert f"\ndef {name}(" in found.read_text(), test

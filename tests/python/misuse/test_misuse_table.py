"""The table of misuses: on whichever rank, each raises the same on all ranks within a second, and nothing is lost."""

import inspect

import pytest

import distdl.nn as dnn
from support.families import FAMILIES
from support.misuses import alone, declared, fourier, layers, models, partitions, primitives, training
from support.misuses.table import placements, public
from support.ranks import job, raises_everywhere

TABLES = (declared, primitives, layers, partitions, alone, fourier, models, training)
TABLES += tuple(family for family in FAMILIES if hasattr(family, "rows"))
ROWS = {name: row for table in TABLES for name, row in table.rows().items()}  # the last row of a name counts
WRONG = {
    f"{name}-{argument}={wrong.name}": (row, argument, wrong)
    for name, row in ROWS.items()
    for argument, all_wrong in row.wrong.items()
    for wrong in all_wrong
}
OTHER = {f"{name}-{argument}": (row, argument) for name, row in ROWS.items() for argument in row.other}
every_row = pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)


def misuse(row, P, kind, match, misused, without=""):
    """`misused`, made of the good arguments, raises wherever it is used; a good call works before and afterwards."""
    for wrong_ranks in placements(row, row.good(P), without):
        good = row.good(P)
        bad = misused(good) if job.rank in wrong_ranks else good
        expected = (kind, match)
        if len(wrong_ranks) < job.size:  # an argument that cannot be judged alone is told as a difference
            expected = (
                (*([kind] if isinstance(kind, type) else kind), ValueError),
                f"{match}|ask for different things",
            )
        raises_everywhere(*expected, lambda bad=bad: row.call(**bad))
        row.call(**row.good(P))


@pytest.mark.ranks(1)
def test_there_are_enough():
    assert len(WRONG) > 250


@pytest.mark.shared
@pytest.mark.parametrize(("row", "argument", "wrong"), WRONG.values(), ids=WRONG)
def test_wrong_value(P_world, row, argument, wrong):
    misuse(
        row, P_world, wrong.kind, wrong.match, lambda good: {**good, argument: wrong.value}, without=argument
    )  # fmt: skip


@pytest.mark.shared
@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize(("row", "argument"), OTHER.values(), ids=OTHER)
def test_another_good_value_on_one_rank(P_world, row, argument):
    for rank in (job.size - 1, 0):
        good = row.good(P_world)
        arguments = {**good, argument: row.other[argument]} if job.rank == rank else good
        text = raises_everywhere(
            ValueError, "ask for different things", lambda arguments=arguments: row.call(**arguments), seconds=5.0
        )
        assert argument in text or argument.startswith(("axes", "op")), text
        row.call(**row.good(P_world))


@pytest.mark.shared
@every_row
def test_missing_arguments(P_world, row):
    for p in row.parameters():
        if p.default is inspect.Parameter.empty and p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY):
            missing = lambda good, p=p: {k: v for k, v in good.items() if k != p.name}  # noqa: E731
            misuse(row, P_world, TypeError, rf"missing .*{p.name}|{p.name} is a None", missing, without=p.name)


@pytest.mark.shared
@every_row
def test_unknown_arguments(P_world, row):
    if not any(p.kind is p.VAR_KEYWORD for p in row.parameters()):
        misuse(row, P_world, TypeError, "unknown_name", lambda good: {**good, "unknown_name": 1})


@pytest.mark.ranks(1)
def test_the_table_is_complete():
    """Every public callable is in it, and each of its arguments."""
    missing = []
    for name, thing in public().items():
        if isinstance(thing, type) and issubclass(thing, Exception):
            continue
        rows = [row for known, row in ROWS.items() if known.split(" ")[0] == name or row.call is thing]
        arguments = {parameter for parameter in inspect.signature(thing).parameters if parameter != "self"}
        covered = {argument for row in rows for argument in (*row.wrong, *row.other, *row.free)}
        missing += [f"{name}({argument})" for argument in sorted(arguments - covered)]
        missing += [] if rows else [name]
    assert missing == []


@pytest.mark.ranks(1)
def test_arguments_are_shown_as_documented():
    """torch.nn's positions behind P_x; further partitions by name, or behind P_x as well."""
    for layer in (dnn.DistributedFeatureConv2d, dnn.DistributedGeneralConv1d, dnn.DistributedConvTranspose3d):
        arguments = list(inspect.signature(layer).parameters)
        assert arguments[:4] == ["P_x", "in_channels", "out_channels", "kernel_size"]
        assert arguments[-2:] == ["P_y", "P_w"]

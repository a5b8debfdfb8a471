"""Every path and name that programs written for DistDL know, with its arguments, in classic mode and without it."""

import ast
import importlib
import inspect
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import distdl
from distdl.process import legacy_paths
from support import jobs
from support.classic.calls import CALLS
from support.classic.rows import DESCENDANT, ORIGINAL

pytestmark = pytest.mark.ranks(1)


def entries(rows):
    """(path, name, arguments or None, methods) of each row."""
    for path, texts in rows.items():
        of_base = None
        for text in texts:
            name, arguments, methods = re.fullmatch(r"(\w+)(\(.*?\))?((?: \.\w+)*)", text).groups()
            of_base = arguments if name.endswith("Base") else of_base
            yield path, name, arguments or of_base, methods.split()


ROWS = [*entries(ORIGINAL), *entries(DESCENDANT)]


def parameters_of(arguments):
    """(name, default) of each argument in a text such as (a, b=1)."""
    names = ast.parse(f"def f{arguments}: ...").body[0].args
    defaults = [None] * (len(names.args) - len(names.defaults)) + [ast.unparse(one) for one in names.defaults]
    return [(one.arg, default) for one, default in zip(names.args, defaults, strict=True)]


def same_default(given, text):
    return repr(given) == text or str(given) == text or (text.startswith("MPI.") and given == eval_mpi(text))


def eval_mpi(text):
    from mpi4py import MPI

    return getattr(MPI, text.removeprefix("MPI."))


def problem_of(found, name, arguments, methods):
    """What an old program would stumble over."""
    missing = [method for method in methods if not hasattr(found, method.removeprefix("."))]
    if missing or arguments is None:
        return missing
    own = [one for key, one in inspect.signature(found).parameters.items() if key != "self"]
    expected = parameters_of(arguments)
    names = [one.name for one in own]
    if name == "zero_volume_tensor":  # in two orders, which the types of arguments tell apart: see test_differences.py
        return [key for key, _ in expected if key not in names]
    if names[: len(expected)] != [key for key, _ in expected]:
        return names
    pairs = zip(own, expected, strict=False)
    return [str(one) for one, (_, default) in pairs if default is not None and not same_default(one.default, default)]


def test_imported_in_classic_mode(classic):
    """By position and by keyword, arguments mean what they meant: names, their order, and defaults."""
    for path, name, arguments, methods in ROWS:
        found = getattr(importlib.import_module(path), name)
        problem = problem_of(found, name, arguments, methods)
        assert not problem, (path, name, problem)


def test_imported_without_it():
    """Ours where there is one."""
    for path, name, *_ in ROWS:
        found = getattr(importlib.import_module(path), name)
        assert found is not None
        for owner in (distdl, distdl.nn):
            if name in vars(owner) and path != "distdl.nn.init":
                assert found is vars(owner)[name], (path, name)


def test_all_rows_are_called():
    names = {name for _, name, *_ in ROWS}
    assert names <= set(CALLS), names - set(CALLS)


@pytest.mark.parametrize("path", ["slicing", "tensor_decomposition", "torch"])
def test_star_imports(path):
    """Each of them brings the helpers of all of them."""
    names = {}
    exec(f"from distdl.utilities.{path} import *", names)
    assert {"np", "torch", "assemble_slices", "range_index", "compute_intersection"} <= set(names)
    assert {"compute_subtensor_shapes_balanced", "TensorStructure", "zero_volume_tensor"} <= set(names)


@pytest.mark.parametrize(
    ("name", "home"),
    {
        "distdl.backend.backend.Partition": "Partition",
        "distdl.backends.mpi.Partition": "Partition",
        "distdl.backends.mpi.partition.MPIPartition": "Partition",
        "distdl.utilities.torch.zero_volume_tensor": "zero_volume_tensor",
        "distdl.utilities.torch.TensorStructure": "TensorStructure",
    }.items(),
)
def test_aliases_without_classic_mode(name, home):
    path, _, attribute = name.rpartition(".")
    assert getattr(importlib.import_module(path), attribute) is vars(distdl)[home]


def test_paths_as_attributes():
    """Without an import of their own, in a process that has imported distdl alone."""
    program = (
        "import sys, distdl; assert not any('classic' in name for name in sys.modules)\n"
        "distdl.backend.backend.Partition, distdl.nn.halo_exchange.HaloExchange\n"
        "distdl.nn.conv.DistributedConvSelector, distdl.functional.ZeroVolumeCorrectorFunction\n"
        "assert 'distdl.classic' not in sys.modules\n"
        "assert distdl.nn.DistributedConv2d.__module__ == 'distdl.nn.conv.conv'\n"
        "assert not hasattr(distdl.nn, 'anything') and not hasattr(distdl.utilities, 'anything')\n"
        "import distdl.classic\n"
        "assert distdl.nn.DistributedConv2d.__module__ == 'distdl.classic.conv'\n"
    )
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False, env=jobs.OUTSIDE)
    assert done.returncode == 0, done.stderr


def test_unknown_paths():
    for path in ("distdl.anything", "distdl.nn.anything", "distdl.utilities.anything"):
        with pytest.raises(ModuleNotFoundError, match=path):
            importlib.import_module(path)


def test_turning_it_off_leaves_nothing_behind(classic):
    names = {name: vars(distdl.nn)[name] for name in distdl.nn.__all__}
    assert set(legacy_paths.module("paths").contents("distdl.nn")) <= set(names)  # for those who import all of it
    activation = legacy_paths.module("activation")
    activation.turn_off()
    assert all(".classic" not in getattr(vars(distdl.nn)[name], "__module__", "") for name in distdl.nn.__all__)
    activation.turn_on()
    assert {name: vars(distdl.nn)[name] for name in distdl.nn.__all__} == names


def test_nothing_else_knows_old_names():
    """Names and paths that this library has not got itself stand nowhere in its other modules."""
    ours = {one.name for one in pkgutil.walk_packages(distdl.__path__, "distdl.")}
    own_names = {name for place in (distdl, distdl.nn, distdl.nn.init) for name in vars(place)}
    old = {name for _, name, *_ in ROWS} - own_names
    old -= {"print_sequential", "eye", "normal", "uniform", "constant", "dirac"}  # words of this library
    old |= {path for path, *_ in ROWS if path not in ours}
    old |= {"sublinear", "conv_layer", "buffer_manager", "P_wb_cart"}
    root = Path(distdl.__file__).parent
    for file in root.rglob("*.py"):
        if "classic" not in file.parts:
            words = set(re.findall(r"[\w.]+", file.read_text()))
            assert not words & old, (file, words & old)


def test_gradients_of_the_corrector():
    """A scalar 0 on which backward can be called; other tensors pass."""
    from distdl.functional import ZeroVolumeCorrectorFunction

    x = torch.empty(2, 0, requires_grad=True)
    y = ZeroVolumeCorrectorFunction.apply(x)
    assert y.shape == ()
    assert y == 0
    y.backward()
    assert x.grad.shape == (2, 0)
    x = torch.ones(3, requires_grad=True)
    y = ZeroVolumeCorrectorFunction.apply(x)
    assert torch.equal(y, x)
    y.backward(torch.arange(3.0))
    assert torch.equal(x.grad, torch.arange(3.0))

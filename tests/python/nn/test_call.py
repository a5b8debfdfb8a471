"""The call of a layer: the files it goes through, and hints for layers of users."""

import sys
import warnings
from pathlib import Path

import pytest
import torch

import distdl
import distdl.nn as dnn
from distdl.diagnostics import first_call as noticed
from support.blocks import block_of, grid
from support.ranks import job, raises_everywhere, together
from support.tensors import values

PACKAGE = Path(distdl.__file__).parent
MOST = 7  # files of a call that a reader has to follow


def files_of(call):
    """The files of the package that a call goes through, by their names in it."""
    files = set()

    def enter(frame, event, argument):
        path = Path(frame.f_code.co_filename)
        if event == "call" and path.is_relative_to(PACKAGE):
            files.add(str(path.relative_to(PACKAGE)))

    for _ in range(3):
        call()
    sys.setprofile(enter)
    try:
        call()
    finally:
        sys.setprofile(None)
    return files


@pytest.mark.parametrize("padding_mode", ["zeros", "circular"])
def test_a_convolution_goes_through_few_files(P_world, padding_mode):
    torch.manual_seed(0)
    P_x = grid(P_world, [1, 1, P_world.size, 1])
    layer = dnn.DistributedConv2d(P_x, 3, 4, 3, padding=1, padding_mode=padding_mode)
    x = block_of(values([2, 3, 8, 8]).float(), P_x).requires_grad_()
    recorded = files_of(lambda: layer(x))
    with torch.no_grad():
        unrecorded = files_of(lambda: layer(x))
    assert max(len(recorded), len(unrecorded)) <= MOST, sorted(recorded | unrecorded)


class Forgetful(dnn.Layer):
    """input * weight, without bringing the weight to the workers."""

    def __init__(self, P_x):
        super().__init__(locals())

    def check_options(self):
        self.declare_parameter("weight", self.P_x, [3], [None], initialize=torch.nn.init.ones_)

    def compute(self, input):
        return input * self.weight


class Careful(Forgetful):
    def compute(self, input):
        (weight,) = self.parameters_in_use()
        return input * weight.new_ones(4 if job.rank else 3)


@pytest.mark.ranks(2)
@pytest.mark.parametrize(("kind", "is_named"), [(Forgetful, True), (Careful, False)])
def test_a_forgotten_transport_is_named_in_the_error(P_world, kind, is_named):
    layer, said = kind(grid(P_world, [job.size])), ""
    try:
        layer(torch.arange(3.0) + job.rank)
    except RuntimeError as error:
        said = str(error)
    assert together(bool(said)) == [False, True]
    assert together("compute() has not called parameters_in_use()" in said) == [False, is_named]


class Undeclared(dnn.Layer):
    """input * scale."""

    def __init__(self, P_x):
        super().__init__(locals())

    def check_options(self):
        self.scale = torch.nn.Parameter(torch.ones(()))

    def compute(self, input):
        return input * self.scale


@pytest.mark.ranks(2)
def test_warns_of_an_undeclared_parameter(P_world):
    noticed.said.clear()
    layer = Undeclared(grid(P_world, [job.size]))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        layer(torch.arange(3.0) + job.rank)
    texts = together([str(warning.message) for warning in caught])
    assert [len(of_rank) for of_rank in texts] == [1, *[0] * (job.size - 1)]
    assert texts[0][0].startswith("Undeclared: nobody declared the parameter scale")
    noticed.said.clear()


@pytest.mark.ranks(2)
def test_options_of_a_replaced_layer_within_are_compared(P_world):
    P_x = grid(P_world, [1, P_world.size, 1])
    twin = torch.nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True)
    torch.manual_seed(0)
    layer = dnn.DistributedTransformerEncoder.from_sequential(torch.nn.TransformerEncoder(twin, 2), P_x)
    other = dnn.DistributedTransformerEncoderLayer.from_sequential(twin, P_x)
    x = block_of(values([2, 4, 4]).float(), P_x)
    layer(x)
    layer.layers[1] = other
    layer(x)
    if job.rank == job.size - 1:
        other.norm_first = True
    match = "within DistributedTransformerEncoderLayer.norm_first=True"
    raises_everywhere(ValueError, match, lambda: layer(x))

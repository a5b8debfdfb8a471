"""distdl.nn.init fills whole parameters: the same numbers as torch.nn.init gives the sequential model."""

import copy

import pytest
import torch

import distdl
import distdl.nn as dnn
from support.blocks import grid
from support.ranks import together

FUNCTIONS = {
    "calculate_gain": None,
    "constant_": (0.5,),
    "dirac_": (),
    "eye_": (),
    "kaiming_normal_": (0.1, "fan_out", "leaky_relu"),
    "kaiming_uniform_": (),
    "normal_": (1.0, 2.0),
    "ones_": (),
    "orthogonal_": (1.5,),
    "sparse_": (0.3,),
    "trunc_normal_": (0.0, 1.0, -0.5, 0.5),
    "uniform_": (-1.0, 3.0),
    "xavier_normal_": (2.0,),
    "xavier_uniform_": (),
    "zeros_": (),
}


def models(P):
    """A convolution over channels and space, and a linear layer over features, beside their twins."""
    rows, columns = (2, P.size // 2) if P.size % 2 == 0 else (1, P.size)
    P_x, P_y, P_w = grid(P, [1, 1, columns]), grid(P, [1, rows, columns]), grid(P, [1, rows, 1, columns])
    yield dnn.DistributedConv1d(P_x, P_y, P_w, 6, 5, 3), torch.nn.Conv1d(6, 5, 3)
    P_x, P_y, P_W = grid(P, [1, columns]), grid(P, [1, rows]), grid(P, [rows, columns])
    yield dnn.DistributedLinear(P_x, P_y, P_W, 9, 7), torch.nn.Linear(9, 7)


def whole(layer, name):
    """A parameter of the sequential model, on all ranks."""
    return next(state for state in together(distdl.sequential_state_dict(layer)) if state)[name]


def test_names_are_those_of_torch():
    own = {name for name in vars(torch.nn.init) if name.endswith("_") and not name.startswith("_")} | {"calculate_gain"}
    assert set(dnn.init.__all__) == own == set(FUNCTIONS)


@pytest.mark.parametrize("kind", ["owner", "sharded", "replicated"])
@pytest.mark.parametrize("name", [name for name, options in FUNCTIONS.items() if options is not None])
@pytest.mark.shared
def test_equals_torch(P_world, name, kind):
    """Bit by bit, for any partition and layout, and the generators of all ranks stay in step."""
    with distdl.parameter_layout(kind):
        for layer, twin in models(P_world):
            if twin.weight.dim() != {"eye_": 2, "sparse_": 2, "dirac_": 3}.get(name, twin.weight.dim()):
                continue
            torch.manual_seed(3)
            assert getattr(dnn.init, name)(layer.weight, *FUNCTIONS[name]) is layer.weight
            after = torch.rand(1)
            torch.manual_seed(3)
            getattr(torch.nn.init, name)(twin.weight, *FUNCTIONS[name])
            assert torch.equal(after, torch.rand(1))
            assert torch.equal(whole(layer, "weight"), twin.weight)


@pytest.mark.ranks(1, 3)
def test_finds_the_parameter_behind_copies_and_data(P_world):
    """Of a deep copy, of .data, of a parameter that was put in place of the first, and of torch's own modules."""
    layer, twin = next(models(P_world))
    copied = copy.deepcopy(layer)
    copied.bias = torch.nn.Parameter(torch.empty_like(copied.bias))
    other = torch.nn.Linear(3, 4)
    torch.manual_seed(5)
    dnn.init.normal_(copied.weight.data)
    dnn.init.uniform_(copied.bias)
    dnn.init.normal_(tensor=other.weight)
    torch.manual_seed(5)
    torch.nn.init.normal_(twin.weight)
    torch.nn.init.uniform_(twin.bias)
    assert torch.equal(whole(copied, "weight"), twin.weight)
    assert torch.equal(whole(copied, "bias"), twin.bias)
    assert not torch.equal(whole(layer, "weight"), twin.weight)
    assert torch.equal(other.weight, torch.nn.init.normal_(torch.empty(4, 3)))


@pytest.mark.ranks(1, 2)
def test_parts_and_what_torch_refuses(P_world):
    layer, _ = next(models(P_world))
    with pytest.raises(ValueError, match="Fan in and fan out can not be computed"):
        dnn.init.xavier_normal_(layer.bias)
    if layer.weight.numel():
        with pytest.raises(ValueError, match=r"view of DistributedConv1d.weight, which is in blocks"):
            dnn.init.normal_(layer.weight[0])

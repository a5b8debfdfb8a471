"""The base class of layers: when the set-up runs, and on which ranks."""

import copy
import io

import pytest
import torch

import distdl
import distdl.nn as dnn
from support.blocks import grid
from support.ranks import job, raises_everywhere


class Counting(dnn.Module):
    """Counts the calls of the hooks, and multiplies with what it set up."""

    def __init__(self, *partitions):
        super().__init__()
        self.setups, self.teardowns = 0, 0
        if partitions:
            self._distdl_agree_among(*partitions)

    def _distdl_module_setup(self, input):
        self.setups += 1
        self.factor = input[0].shape[0]

    def _distdl_module_teardown(self, input):
        self.teardowns += 1
        self.factor = None

    def forward(self, x):
        return x * self.factor


def test_set_up_at_the_first_call_only():
    layer = Counting()
    assert layer.setups == 0
    for _ in range(3):
        assert torch.equal(layer(torch.ones(2)), torch.full((2,), 2.0))
    assert (layer.setups, layer.teardowns) == (1, 0)


@pytest.mark.parametrize(
    "change",
    [lambda x: x.new_ones(3), lambda x: x.double(), lambda x: x.clone().requires_grad_(), lambda x: x[None]],
    ids=["shape", "dtype", "requires_grad", "dimension"],
)
def test_torn_down_and_set_up_again_when_the_structure_changes(change):
    layer, x = Counting(), torch.ones(2)
    layer(x)
    changed = change(x)
    for _ in range(2):
        assert torch.equal(layer(changed), changed * changed.shape[0])
    assert (layer.setups, layer.teardowns) == (2, 1)
    layer(x)
    assert (layer.setups, layer.teardowns) == (3, 2)


def test_a_change_on_one_rank_sets_up_all(P_world):
    layer = Counting(P_world)
    last = job.rank == job.size - 1
    for _ in range(2):
        layer(torch.ones(2))
    assert (layer.setups, layer.teardowns) == (1, 0)
    layer(torch.ones(3 if last else 2))
    assert (layer.setups, layer.teardowns) == (2, 1)
    layer(torch.ones(3 if last else 2))
    assert (layer.setups, layer.teardowns) == (2, 1)


def test_ranks_outside_look_at_their_own(P_world):
    layer = Counting(grid(P_world, [1]))
    layer(torch.ones(2))
    assert layer.setups == 1


def test_an_overridden_question_is_asked():
    class Always(Counting):
        def _distdl_input_changed(self, input):
            return True

    layer = Always()
    for _ in range(3):
        layer(torch.ones(2))
    assert (layer.setups, layer.teardowns) == (3, 2)


def test_set_up_before_the_question(P_world):
    """A layer that keeps the structure of its input in its set-up alone."""

    class Keeps(Counting):
        def _distdl_module_setup(self, input):
            super()._distdl_module_setup(input)
            self.structure = distdl.TensorStructure(input[0])

        def _distdl_module_teardown(self, input):
            super()._distdl_module_teardown(input)
            del self.structure

        def _distdl_input_changed(self, input):
            return self.structure != distdl.TensorStructure(input[0])

    for layer in (Keeps(), Keeps(P_world)):
        for n in (2, 2, 3, 3):
            assert torch.equal(layer(torch.ones(n)), torch.full((n,), float(n)))
        assert (layer.setups, layer.teardowns) == (2, 1)


def test_a_setup_that_fails_is_tried_again(P_world):
    class Fails(Counting):
        fails = True

        def _distdl_module_setup(self, input):
            if self.fails:
                raise ValueError("not yet")
            super()._distdl_module_setup(input)

    layer = Fails(P_world)
    for _ in range(2):
        raises_everywhere(ValueError, "not yet", lambda: layer(torch.ones(2)))
    layer.fails = False
    assert torch.equal(layer(torch.ones(2)), torch.full((2,), 2.0))
    assert (layer.setups, layer.teardowns) == (1, 0)


def test_arguments_by_name():
    layer = Counting()
    assert torch.equal(layer(x=torch.ones(2)), torch.full((2,), 2.0))
    assert layer.setups == 1


def test_is_a_torch_module():
    """Hooks of the user, children, parameters, modes."""
    model = torch.nn.Sequential(Counting(), torch.nn.Linear(2, 2), Counting())
    seen = []
    model[0].register_forward_pre_hook(lambda module, input: seen.append(module.setups))
    model(torch.ones(2))
    assert seen == [1]  # ours was registered before
    assert len(list(model.parameters())) == 2
    assert not model.eval()[0].training


def test_copies_agree_on_their_own_input(P_world):
    layer = Counting(P_world)
    layer(torch.ones(2))
    twin = copy.deepcopy(layer)
    twin(torch.ones(3))
    assert torch.equal(layer(torch.ones(3)), torch.full((3,), 3.0))


def test_copies_and_saved_weights(P_world):
    """A copy is a layer of its own with equal parameters; blocks of weights survive torch.save."""
    P = grid(P_world, [1, 1, job.size])
    layer = dnn.DistributedConv1d(P, 1, 2, 3, padding=1)
    x = torch.ones(1, 1, 2)
    before = layer(x)
    twin = copy.deepcopy(layer)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.zero_()
    assert torch.equal(twin(x), before)
    assert torch.equal(layer(x), torch.zeros_like(before))

    file = io.BytesIO()
    torch.save(twin.state_dict(), file)
    file.seek(0)
    layer.load_state_dict(torch.load(file))
    assert torch.equal(layer(x), before)


def test_structure_of_a_tensor():
    x = torch.ones(2, 3)
    assert distdl.TensorStructure(x) == distdl.TensorStructure(x + 1)
    for other in (x.T, x.double(), x.clone().requires_grad_()):
        assert distdl.TensorStructure(x) != distdl.TensorStructure(other)


def test_zero_volume_tensors():
    assert distdl.zero_volume_tensor().shape == (0,)
    assert distdl.zero_volume_tensor(7).shape == (7, 0)
    x = distdl.zero_volume_tensor(dtype=torch.int64, device="cpu")
    assert (x.dtype, x.device, x.requires_grad) == (torch.int64, torch.device("cpu"), False)
    assert distdl.zero_volume_tensor(requires_grad=True).requires_grad


def test_a_shallow_copy_is_set_up_by_itself(P_world):
    P_x = grid(P_world, [1, 1, job.size])
    layer = distdl.nn.DistributedConv1d(P_x, 1, 1, 3, padding=1)
    layer(torch.ones(1, 1, 5))
    copied = copy.copy(layer)
    assert copied(torch.ones(1, 1, 4)).shape[-1] == 4
    assert layer(torch.ones(1, 1, 4)).shape[-1] == 4
    assert copied.weight is layer.weight

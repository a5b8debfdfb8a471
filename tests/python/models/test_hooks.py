"""Forward hooks on modules of a distributed model see this rank's blocks, as often as in one process."""

import copy

import pytest
import torch
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop

import distdl
from support.blocks import block_of, grid
from support.ranks import job, raises_everywhere, together

IMAGE = (2, 2, 7, 5)


class Net(torch.nn.Module):
    """Modules in others, a module that is called twice, an activation in place, and a checkpoint."""

    def __init__(self):
        super().__init__()
        self.stem = torch.nn.Sequential(torch.nn.Conv2d(2, 3, 3, padding=1), torch.nn.BatchNorm2d(3))
        self.relu = torch.nn.ReLU(inplace=True)
        self.body = torch.nn.Conv2d(3, 3, 3, padding=1)
        self.head = torch.nn.Conv2d(3, 4, 1)

    def forward(self, x):
        x = self.relu(self.stem(x))
        x = self.relu(checkpoint(self.body, x, use_reentrant=False))
        return self.head(input=x)


def look_at(model, seen):
    """Note a copy of all that modules give to hooks."""
    for name, module in model.named_modules():
        if name:
            module.register_forward_pre_hook(lambda module, args, n=name: seen.append((n, *map(torch.clone, args))))
            module.register_forward_hook(
                lambda module, args, kwargs, y, n=name: seen.append((n, *kwargs, y.clone())), with_kwargs=True
            )


def made(P_world):
    torch.manual_seed(0)
    model = Net().double()
    P_x = grid(P_world, [1, 1, job.size, 1])
    image = torch.rand(IMAGE, dtype=torch.float64)
    return model, distdl.distribute(model, P_x), image, distdl.scatter(image, P_x)


def test_hooks_see_the_blocks_of_what_they_see_in_one_process(P_world):
    model, ours, image, x = made(P_world)
    seen, expected = [], []
    look_at(ours.module, seen)
    look_at(model, expected)
    for _ in range(2):
        ours(x).sum().backward()
        with set_checkpoint_early_stop(False):  # all ranks compute all of a checkpoint again, as torch can
            model(image).sum().backward()
    assert together(len(seen)) == [len(expected)] * job.size
    for own, whole in zip(seen, expected, strict=True):
        assert [leaf for leaf in own if isinstance(leaf, str)] == [leaf for leaf in whole if isinstance(leaf, str)]
        pairs = [pair for pair in zip(own, whole, strict=True) if isinstance(pair[0], torch.Tensor)]
        for block, tensor in pairs:
            rows = torch.cat(together(block.detach()), 2)
            assert torch.allclose(rows, tensor.detach(), rtol=1e-12, atol=1e-13), own[0]


def test_hooks_are_removed_and_copied(P_world):
    _, ours, _, x = made(P_world)
    seen = []
    handle = ours.head.register_forward_hook(lambda module, args, y: seen.append(y))
    result = ours(x)
    assert seen[0] is result or torch.equal(seen[0], result)
    copy.deepcopy(ours)(x)
    assert len(seen) == 2
    handle.remove()
    assert torch.equal(ours.eval()(x), ours(x))
    assert len(seen) == 2


def test_hooks_of_the_model_count(P_world):
    model, _, image, x = made(P_world)
    model.stem.register_forward_hook(lambda module, args, y: y - y.mean())
    ours = distdl.distribute(model, grid(P_world, [1, 1, job.size, 1]))
    rows = torch.cat(together(ours(x).detach()), 2)
    assert torch.allclose(rows, model(image), rtol=1e-12, atol=1e-13)
    ours.stem._forward_hooks.clear()
    model.stem._forward_hooks.clear()
    rows = torch.cat(together(ours(x).detach()), 2)
    assert torch.allclose(rows, model(image), rtol=1e-12, atol=1e-13)


def returning(module, args, y):
    return 2 * y


def writing(module, args, y):
    y.detach().zero_()


@pytest.mark.parametrize("change", [returning, writing])
def test_hooks_that_change_what_is_computed_are_refused(P_world, change):
    _, ours, _, x = made(P_world)
    expected = ours.eval()(x)
    handle = ours.stem.register_forward_hook(change)
    raises_everywhere(ValueError, "distribute: a hook on stem changes what the model computes", lambda: ours(x))
    handle.remove()
    assert torch.equal(ours(x), expected)


@pytest.mark.mpi(min_size=2)
def test_a_hook_of_one_rank_raises_there_after_the_call(P_world):
    """The search for the first nan: only the ranks that have it raise, and no other rank waits for them."""
    model, ours, image, _ = made(P_world)
    image[0, 0, -1, 0] = torch.nan
    has_nan = bool(block_of(model.stem[0](image), ours.P_x).isnan().any())

    def refuse_nan(module, args, y):
        if y.isnan().any():
            raise ArithmeticError("nan in the stem")

    ours.eval().stem[0].register_forward_hook(refuse_nan)
    seen = []
    if job.rank == 0:
        ours.head.register_forward_hook(lambda module, args, y: seen.append(y))
    x = distdl.scatter(image, ours.P_x)
    try:
        ours(x)
        raised = False
    except ArithmeticError:
        raised = True
    assert together(raised) == together(has_nan)
    assert not all(together(raised))
    assert any(together(raised))
    assert together(len(seen)) == [1] + [0] * (job.size - 1)
    assert together(tuple(ours(torch.zeros_like(x)).shape[:2])) == [(2, 4)] * job.size

"""Activation checkpoints within a model, functions with derivatives of their own, and compiled models."""

import pytest
import torch
import torch.nn.functional as F
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import apply_activation_checkpointing
from torch.utils.checkpoint import checkpoint

import distdl
from distdl.models import rule
from distdl.models.operations.table import local, same
from distdl.models.rules import RULES
from support.blocks import grid
from support.checkpoints import keep_some, selective
from support.distributed import assert_equal_models, assert_none, noise, off, partitions
from support.models import Residual, Tokens
from support.ranks import job, together

P_world = distdl.Partition(job)
pytestmark = pytest.mark.shared


class Counted(torch.autograd.Function):
    """The square; counts how often it is computed."""

    calls = 0

    @staticmethod
    def forward(ctx, x):
        Counted.calls += 1
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, gradient):
        return 2 * gradient * ctx.saved_tensors[0]


def counted_square(x):
    return Counted.apply(x)


class Checkpointed(torch.nn.Module):
    """A convolution in a checkpoint and a head in another; no checkpoints for None."""

    def __init__(self, reentrant, function=F.relu):
        super().__init__()
        self.first, self.second = torch.nn.Conv2d(2, 3, 3, padding=1), torch.nn.Conv2d(3, 3, 3, padding=1)
        self.norm, self.head = torch.nn.BatchNorm2d(3), torch.nn.Linear(3, 2)
        self.reentrant, self.function = reentrant, function

    def forward(self, x):
        x = self.first(x)
        if self.reentrant is None:
            return self.head((x + self.block(x)).mean((2, 3)))
        y = checkpoint(self.block, x, use_reentrant=self.reentrant)
        return checkpoint(lambda z, n: (self.head(z.mean((2, 3))), n), x + y, 3, use_reentrant=self.reentrant)[0]

    def block(self, x):
        return self.function(self.norm(self.second(x)))


@pytest.mark.parametrize(
    "options",
    [{"use_reentrant": True}, {"use_reentrant": False}, selective(keep_some)],
    ids=["reentrant", "not reentrant", "selective"],
)
def test_a_first_call_within_a_checkpoint(options):
    """It records and plans, which the call that is computed again does not."""
    P_x = grid(P_world, [1, 1, job.size, 1])
    model = Residual().double().eval()
    x = distdl.scatter(noise((3, 2, 8, 8)), P_x)
    results = []
    for within in (True, False):
        ours, block = distdl.distribute(model, P_x), x.clone().requires_grad_()
        y = checkpoint(ours, block, **options) if within else ours(block)
        y.square().sum().backward()
        results.append((y.detach(), block.grad, distdl.sequential_gradients(ours)))
    (y, slope, gradients), (expected, wanted, of_parameters) = results
    assert all(together(torch.equal(y, expected) and torch.equal(slope, wanted)))
    assert all(together(all(torch.equal(gradients[name], gradient) for name, gradient in of_parameters.items())))


@pytest.fixture
def counted():
    """A rule for the function, by its name."""

    @rule("Counted")
    def each_by_itself(node):
        return local(node, [same(len(node.inputs[0].shape))])

    yield
    del RULES["Counted"]


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoints_give_the_numbers_of_the_model(reentrant):
    torch.manual_seed(0)
    for shape in ((2, 2, 7, 5), (1, 2, 1, 3)):
        for split in partitions(4):
            ours = assert_equal_models(Checkpointed(reentrant).double(), shape, split)
            assert sum(type(step.run).__name__ == "Segment" for step in ours.program.steps) == 2


def test_what_is_in_a_checkpoint_is_computed_twice(counted):
    P_x = grid(P_world, [1, 1, P_world.size, 1])
    for reentrant in (None, False, True):
        ours = distdl.distribute(Checkpointed(reentrant, counted_square), P_x)
        x = distdl.scatter(noise((2, 2, 2 * P_world.size, 5)).float(), P_x)
        ours(x)  # is recorded
        Counted.calls = 0
        ours(x).sum().backward()
        assert Counted.calls == (1 if reentrant is None else 2)


def test_wrappers_of_torch():
    torch.manual_seed(0)
    for make, shape in ((Residual, (2, 2, 8, 6)), (Tokens, (2, 2, 9, 10))):
        model = make().double()
        apply_activation_checkpointing(model, check_fn=lambda m: isinstance(m, torch.nn.Conv2d | torch.nn.Linear))
        assert_equal_models(model, shape, [1, 1, P_world.size, 1])


def test_functions_with_derivatives_of_their_own():
    """Without a rule they are split as they are observed."""
    torch.manual_seed(0)
    model = Checkpointed(False, counted_square).double()
    ours = assert_equal_models(model, (2, 2, 6, 5), [1, 1, P_world.size, 1])
    rows = [row for row in distdl.report(ours).rows if row.operation == "Counted"]
    assert rows
    assert all(row.workers == P_world.size and not row.gathered for row in rows)


def test_functions_with_derivatives_of_their_own_by_a_rule(counted):
    torch.manual_seed(0)
    assert_equal_models(Checkpointed(True, counted_square).double(), (2, 2, 6, 5), [1, 1, P_world.size, 1])


def test_a_kept_function_with_derivatives_of_its_own(counted):
    assert_equal_models(Checkpointed(False, Counted.apply).double(), (2, 2, 6, 5), [1, 1, P_world.size, 1])


@pytest.mark.parametrize("fullgraph", [False, True])
def test_compiled_models(fullgraph):
    torch.manual_seed(0)
    model = Residual().double()
    P_x = grid(P_world, [1, 1, P_world.size, 1])
    ours = distdl.distribute(model, P_x)
    compiled = torch.compile(ours, backend="aot_eager", fullgraph=fullgraph)
    try:
        for seed in range(2):
            whole = noise((2, 2, 8, 6), seed)
            x = distdl.scatter(whole, P_x)
            y = distdl.gather(compiled(x), ours.output_partition)
            y.sum().backward()
            expected = model(whole)
            expected.sum().backward()
            assert_none([off(y, expected)])
        gradients = distdl.sequential_gradients(ours)
        named = model.named_parameters() if job.rank == 0 else ()
        wrong = [off(gradients[name], parameter.grad, 1e-9) for name, parameter in named]
        assert not any(together("".join(wrong)))
    finally:
        torch._dynamo.reset()

"""Which workers compute which modules, where a plan says it."""

import pytest
import torch
import torch.nn.functional as F
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import apply_activation_checkpointing

import distdl
from distdl.models.operations.operation import Sharded
from distdl.models.operations.placement import Blocks
from distdl.models.plan.costs import cost
from distdl.models.plan.received import from_other_nodes, received_elements, senders_to
from distdl.models.plan.redistribution import ReadRegions
from distdl.models.plan.training import Training
from distdl.models.planned_model import PlannedModel
from distdl.partitions.grid import Grid
from support.blocks import grid
from support.distributed import assert_equal_models
from support.models import Dense, Residual, Volume
from support.ranks import job, raises_everywhere, together

P_world = distdl.Partition(job)


def workers_of(model, path):
    """The workers along each dimension, and the ranks, of each operation in a module."""
    steps = model.program.plan.steps
    return {(step.workers.splits, step.workers.ranks) for step in steps if step.node.path == path}


def test_plans_say_which_workers_compute_a_module():
    torch.manual_seed(0)
    n, last = P_world.size, P_world.size - 1
    columns, alone, batch = grid(P_world, [1, 1, 1, n]), grid(P_world, [1], [last]), grid(P_world, [n, 1, 1, 1])
    for plan in (
        {"conv": columns, "norm": columns},
        {"stem": batch, "head": alone},
        {"*": columns, "n*": grid(P_world, [1, 1, 1, 1], [last]), "norm": columns, "head": alone},
    ):
        ours = assert_equal_models(Residual().double(), (3, 2, 9, 7), [1, 1, n, 1], plan=plan)
        if "stem" in plan:
            assert workers_of(ours, "stem") == {((n, 1, 1, 1), tuple(range(n)))}
        else:
            assert workers_of(ours, "conv") == workers_of(ours, "norm") == {((1, 1, 1, n), tuple(range(n)))}
        if "head" in plan:
            assert workers_of(ours, "head") == {((1, 1), (last,))}
    assert_equal_models(Dense().double(), (2, 2, 8, 6), [1, 1, n, 1], plan={"": alone})
    channels = grid(P_world, [1, n, 1, 1, 1])  # in which convolutions and what has no parameters can be split
    assert_equal_models(Volume().double(), (2, 1, 6, 5, 4), [n, 1, 1, 1, 1], plan={"*": channels})


class Channels(torch.nn.Module):
    """A chain of convolutions."""

    def __init__(self, *convolutions):
        super().__init__()
        self.stem, self.deep = torch.nn.Conv2d(2, 8, 3, padding=1), torch.nn.Sequential(*convolutions)

    def forward(self, x):
        return self.deep(self.stem(x).relu()).sin()


@pytest.mark.parametrize(
    "make",
    [
        lambda: (
            torch.nn.Conv2d(8, 6, 3, padding=1, padding_mode="circular"),
            torch.nn.ReLU(),
            torch.nn.Conv2d(6, 9, 1),
        ),
        lambda: (torch.nn.Conv2d(8, 12, 3, groups=4, bias=False), torch.nn.ConvTranspose2d(12, 6, 2, 2)),
        lambda: (
            torch.nn.Conv2d(8, 8, 3, groups=8),
            torch.nn.ConvTranspose2d(8, 16, 3, groups=4, output_padding=1, stride=2),
        ),
    ],
    ids=["plain", "groups", "depthwise"],
)
def test_convolutions_are_split_in_channels_where_asked(make):
    torch.manual_seed(0)
    n = P_world.size
    splits = [[1, n, 1, 1], [2, n // 2, 1, 1]] if n % 2 == 0 else [[1, n, 1, 1]]
    for split in splits:
        model = Channels(*make()).double()
        ours = assert_equal_models(model, (2, 2, 7, 6), [1, 1, n, 1], plan={"deep": grid(P_world, split)})
        assert workers_of(ours, "deep.0") == {(tuple(split), tuple(range(n)))}
    mixed = grid(P_world, [1, n, 1, 1]), [1, 1, 1, n]
    assert_equal_models(Channels(*make()).double(), (1, 2, 7, 6), mixed[1], plan={"stem": mixed[0], "deep": mixed[0]})


@pytest.mark.parametrize("at", [0, -1], ids=["first", "last"])
def test_buffers_are_those_of_all_workers_where_one_computes(at):
    torch.manual_seed(0)
    plan = {"norm": grid(P_world, [1, 1, 1, 1], [at % P_world.size])}
    model = Residual().double()
    for wrapped in (False, True):
        if wrapped:  # norms are computed twice
            apply_activation_checkpointing(model)
        ours = assert_equal_models(model, (3, 2, 9, 7), [1, 1, P_world.size, 1], plan=plan)
        all_buffers = together({name: buffer.tolist() for name, buffer in ours.module.named_buffers()})
        assert all(buffers == all_buffers[0] for buffers in all_buffers)


class Resized(torch.nn.Module):
    def __init__(self, options):
        super().__init__()
        self.options = options

    def forward(self, x):
        return F.interpolate(x, scale_factor=2.0, mode="bilinear", **self.options)


class Scattered(torch.nn.Module):
    def forward(self, x):
        return x.scatter(2, (x[..., :2] > 0).long(), x[..., :2])


class Doubled(torch.nn.Module):
    """Each column twice."""

    def forward(self, x):
        return x.unsqueeze(-1).expand(*x.shape, 2).flatten(2).relu()


def test_blocks_are_not_moved_to_balance_them():
    n = P_world.size
    ours = assert_equal_models(Doubled(), (1, 2, 4 * n + 1), [1, 1, n])
    *_, flatten, relu = ours.program.plan.steps
    assert relu.workers.block_sizes == flatten.workers.block_sizes == ((1,), (2,), (10, *[8] * (n - 1)))


def test_images_are_resized_in_blocks_unless_they_are_smoothed():
    n = P_world.size
    for options in ({}, {"antialias": True}):
        ours = assert_equal_models(Resized(options), (1, 2, 3, 2 * n), [1, 1, 1, n])
        (step,) = ours.program.plan.steps
        assert (step.workers.splits == (1, 1, 1, n)) == (not options or n == 1)


def test_elements_are_scattered_in_blocks():
    """The indices have the sizes of the input in all dimensions but that along which elements are written."""
    n = P_world.size
    ours = assert_equal_models(Scattered(), (2, 2 * n, 5), [1, n, 1])
    assert all(step.workers.splits == (1, n, 1) for step in ours.program.plan.steps if step.node.key == "scatter")


def test_what_a_worker_has_does_not_travel():
    source, workers = Blocks((0, 1), ((3, 3),)), Blocks((0, 1), ((4, 2),))
    assert received_elements(source, ReadRegions.of(workers, (Sharded(0),)), (6,)) == {0: 1}
    assert received_elements(source, ReadRegions.of(Blocks((1, 0), ((4, 2),)), (Sharded(0),)), (6,)) == {0: 2, 1: 3}


def test_how_many_ranks_send():
    source = Blocks((0, 1, 2, 3), ((2, 2), (3, 3)))
    columns = ReadRegions((0, 1, 2, 3), (1,), (((0, 2), (2, 3), (3, 5), (5, 6)),))
    assert [senders_to(rank, source, columns, (4, 6)) for rank in range(4)] == [1, 2, 2, 1]
    round_the_end = ReadRegions((0, 1, 2, 3), (0, 1), (((-1, 3), (1, 5)), ((0, 3), (3, 6))))
    assert senders_to(0, source, round_the_end, (4, 6)) == 2


def test_who_receives_from_other_nodes():
    source = Blocks((0, 1, 2, 3), ((2, 2), (3, 3)))
    columns = ReadRegions((0, 1, 2, 3), (1,), (((0, 3), (3, 6), (0, 3), (3, 6)),))  # of all rows
    rows = ReadRegions((0, 1, 2, 3), (0,), (((0, 2), (0, 2), (2, 4), (2, 4)),))
    for regions, in_nodes in ((columns, {1: True, 2: True, 4: False}), (rows, {1: True, 2: False, 4: False})):
        for ranks_per_node, expected in in_nodes.items():
            found = [from_other_nodes(rank, source, regions, (4, 6), ranks_per_node) for rank in range(4)]
            assert found == [expected] * 4
    scalar = Blocks((1,), ())
    assert from_other_nodes(0, scalar, ReadRegions((0,), (), ()), (), 1)


def test_transfers_within_nodes_take_less():
    """Rows of images that are gathered within nodes take an exchange less than those gathered between them."""
    machine = distdl.Machine(ranks_per_node=2, latency=1e-6, node_latency=1e-3)
    planned = PlannedModel(MixedRows(), [((1, 1, 8, 8), torch.float32)])

    def seconds(shape):
        plan, works = planned.for_request(Grid.imagined(4).reshaped(shape), {})
        return cost(plan, machine, works, Training.of("plans", "owner", "adam")).seconds

    assert seconds((1, 1, 2, 2)) < seconds((1, 1, 1, 4)) - machine.node_latency / 2


class MixedRows(torch.nn.Module):
    """A transform along each row."""

    def forward(self, x):
        return torch.fft.fft(x, dim=3).abs()


def test_what_travels_round_the_end():
    source = Blocks((0, 1), ((3, 3),))
    regions = ReadRegions((0, 1), (0,), (((-2, 3), (3, 7)),))
    assert received_elements(source, regions, (6,)) == {0: 2, 1: 1}


def test_one_parameter():
    with distdl.parameter_layout("replicated"):
        assert_equal_models(torch.nn.Linear(3, 4, bias=False).double(), (2 * P_world.size, 3), [P_world.size, 1])


def test_plans_are_checked_on_all_ranks():
    P_x = grid(P_world, [1, 1, P_world.size, 1])
    alone = grid(P_world, [1], [0])
    raises_everywhere(TypeError, "plan is a list", lambda: distdl.distribute(Residual(), P_x, plan=[alone]))
    raises_everywhere(ValueError, "no module", lambda: distdl.distribute(Residual(), P_x, plan={"body": alone}))
    if P_world.size > 1:
        outside = grid(P_world, [1], [P_world.size - 1])
        raises_everywhere(ValueError, "workers of P_x", lambda: distdl.distribute(
            Residual(), grid(P_world, [1, 1, 1, 1], [0]), plan={"head": outside}))  # fmt: skip
        head = alone if job.rank else outside
        raises_everywhere(ValueError, "different things", lambda: distdl.distribute(
            Residual(), P_x, plan={"head": head}))  # fmt: skip


def test_plans_that_cannot_be_followed_are_refused_on_all_ranks():
    n = P_world.size
    if n == 1:
        return
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Softmax(-1))
    P_x = grid(P_world, [1, n, 1])
    for pattern in ("2", "[2]"):
        ours = distdl.distribute(model, P_x, plan={pattern: grid(P_world, [1, 1, n])})
        x = distdl.scatter(torch.ones(2, 6, 4), P_x)
        raises_everywhere(ValueError, "cannot be followed: Softmax in 2", lambda ours=ours, x=x: ours(x))
    distdl.distribute(model, P_x, plan={"2": P_x})(x)  # along the other dimensions it can
    ours = distdl.distribute(model, P_x, plan={"*": grid(P_world, [1, 1, n])})  # by Linear and ReLU
    assert distdl.gather(ours(distdl.scatter(torch.ones(2, 6, 4), P_x)), ours.output_partition) is not None

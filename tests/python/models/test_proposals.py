"""Ways to split a model that distdl.plans proposes."""

import pytest
import torch

import distdl
from support.distributed import assert_equal_models
from support.models import Line, Residual, Volume
from support.ranks import job, raises_everywhere, together

P_world = distdl.Partition(job)
pytestmark = pytest.mark.shared


def of(model, shape):
    """All proposals."""
    return distdl.plans(model, P_world, shape, most=1000)


@pytest.mark.parametrize(
    ("make", "shape"),
    [(Residual, (3, 2, 8, 8)), (Line, (2, 2, 11)), (Volume, (2, 1, 6, 5, 4))],
    ids=["2d", "1d", "3d"],
)
def test_every_proposal_gives_the_numbers_of_the_model(make, shape):
    torch.manual_seed(0)
    model = make().double()
    splits = of(model, shape)
    kinds = {(tuple(split.P_x.shape), tuple(split.plan)): split for split in splits}
    for split in [*kinds.values()][:: max(1, len(kinds) // 8)]:
        assert_equal_models(model, shape, [*map(int, split.P_x.shape)], plan=split.plan)


def test_proposals_are_ordered_and_the_same_on_all_ranks():
    with torch.device("meta"):
        model = Residual()
    splits = of(model, (4, 2, 64, 64))
    assert len(set(together(str([(str(split), split.memory, split.sent, split.seconds) for split in splits])))) == 1
    times = [split.seconds for split in splits]
    assert all(time >= 0.95 * max(times[: i + 1]) for i, time in enumerate(times))  # thicker blocks come first
    assert len({str(split) for split in splits}) == len(splits)
    lines = str(splits).splitlines()
    assert len(lines) - len(splits) in (2, 3)  # the names of columns, why others come first, and the answer
    assert lines[-1].startswith("fits in")
    assert len(distdl.plans(model, P_world, (4, 2, 64, 64), most=2)) == min(2, len(splits))
    alone = next(split for split in splits if split.P_x.size == 1 and not split.plan)
    assert alone.sent == 0
    weights = 4 * sum(parameter.numel() for parameter in model.parameters())
    assert (alone.parts.weights, alone.parts.optimizer) == (weights, 2 * weights)  # of Adam
    assert alone.memory == alone.parts.total
    for split in splits:
        if split.P_x.size == P_world.size > 1 and not split.plan:
            assert split.sent > 0
            assert split.memory < alone.memory


def test_mistakes_raise_on_all_ranks():
    raises_everywhere(TypeError, "torch.nn.Module", lambda: distdl.plans(torch.relu, P_world, (1, 2)))
    raises_everywhere(ValueError, "input_shape", lambda: distdl.plans(Residual(), P_world, "2x2"))
    raises_everywhere(ValueError, "most", lambda: distdl.plans(Residual(), P_world, (1, 2, 4, 4), most=0))
    raises_everywhere(Exception, "channels", lambda: of(Residual(), (1, 5, 4, 4)), seconds=20.0)
    if P_world.size > 1:
        shape = (1, 2, 4, 4 + job.rank)
        raises_everywhere(ValueError, "different things", lambda: of(Residual(), shape))
        model = torch.relu if job.rank else Residual()
        raises_everywhere(TypeError, "torch.nn.Module", lambda: distdl.plans(model, P_world, (1, 2, 4, 4)))


def test_layers_over_partitions_are_refused():
    P_x = P_world.create_cartesian_topology_partition([job.size, 1])
    distributed = distdl.distribute(torch.nn.Linear(3, 2), P_x)
    for model in (distributed, torch.nn.Sequential(distdl.nn.DistributedLinear(P_x, 3, 2))):
        raises_everywhere(TypeError, "^plans: .* holds a .*, a layer over partitions", lambda m=model: of(m, (4, 3)))
        refused = "distribute: .* holds a .*, a layer over partitions"
        raises_everywhere(TypeError, refused, lambda m=model: distdl.distribute(m, P_x))
